"""`jaxretr.adapt`: a model for one's own corpus, by masked language modelling of its encoder alone (DDR)."""

import dataclasses
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxretr.config import AutoDtype, MlmConfig, Optimizer, PretrainData, Train
from jaxretr.data.source import source_of
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.embeddings.encoding import encode
from jaxretr.evaluate.evaluating import read_own_test
from jaxretr.evaluate.measuring import TestSet, depth
from jaxretr.evaluate.searches import encoder_search, store_search
from jaxretr.evaluate.significance import compare
from jaxretr.models.backbones.backbone_config import BACKBONE
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.encode import chosen_dtype
from jaxretr.models.hub import adapter_folder
from jaxretr.models.hub.dual_encoder_folder import check_finished
from jaxretr.models.hub.hf_files import resolve
from jaxretr.runtime.storage.files import write_json
from jaxretr.training.loop import train
from jaxretr.training.metrics_log import read_metrics

log = logging.getLogger(__name__)

Path_ = str | Path

METRICS = ("ndcg@10", "mrr@10", "recall@100")
WARMUP_STEPS = 1000


@dataclass(frozen=True)
class Adapted:
    """A model that was adapted to a corpus.

    Attributes:
      folder: contains dam/ (the run of masked language modelling), model/, embeddings/ and report.json.
      model: the adapted model.
      store: the corpus, encoded with it.
      report: perplexity and, with judgements, retrieval metrics before and after; times and sizes.
    """

    folder: Path
    model: DualEncoder
    store: EmbeddingStore
    report: Mapping[str, Any]

    def table(self) -> str:
        """Return the report as text for people."""
        report, out = self.report, self.folder
        lines = [f"{'':<16}{'before':>10}{'after':>10}{'p':>10}"]
        if report["perplexity_before"] is not None:
            lines.append(f"{'perplexity':<16}{report['perplexity_before']:>10.2f}{report['perplexity_after']:>10.2f}")
        for name, values in report.get("retrieval", {}).items():
            lines.append(f"{name:<16}{values['mean_b']:>10.4f}{values['mean_a']:>10.4f}{values['p_value']:>10.4f}")
        lines.append(
            f"{report['seconds_training']:.0f} s of training, {report['seconds_encoding']:.0f} s of encoding; "
            f"the domain's encoder takes {report['bytes_of_the_domain'] / 1e6:.1f} MB, the adapters "
            f"{report['bytes_of_the_adapters'] / 1e6:.1f} MB"
        )
        if report["best_step"] == 0:
            lines.append(
                "no step lowered the perplexity: the model is what it was; try another learning rate or more steps"
            )
        return "\n".join([*lines, f"model: {out / 'model'}, its corpus: {out / 'embeddings'}"])


def adapt(
    model: Path_,
    *,
    corpus: Path_,
    out: Path_,
    steps: int = 2000,
    batch_size: int = 64,
    max_length: int = 190,
    learning_rate: float = 2e-5,
    dropout: float = 0.1,
    chunk: int = 16,
    head_steps: int = 1000,
    held_out: int | None = None,
    seed: int = 0,
    queries: Path_ | None = None,
    qrels: Path_ | None = None,
    split: str = "test",
    dtype: AutoDtype = "float32",
) -> Adapted:
    """Adapt a model to a corpus without judgements, and encode the corpus; an interrupted call resumes.

    Args:
      model: a model whose adapters were trained separately (encoder.adapter); other models with a warning.
      corpus: passages, as for `jaxretr.encode`; a BEIR folder also gives the questions.
      out: folder for dam/ (the encoder), model/, embeddings/ and report.json.
      steps: training steps; 20000 in the paper.
      batch_size: windows per step; 512 in the paper.
      max_length: tokens per window.
      learning_rate: highest learning rate of the training.
      dropout: dropout of the training.
      chunk: rows per device and pass.
      head_steps: steps to train a masked language modelling head, if the model has none.
      held_out: passages held out for the perplexity; by default 1000, at most a tenth.
      seed: seed of the training.
      queries: questions for the report; by default the BEIR folder's.
      qrels: judgements of `queries`; by default those of the BEIR folder's `split`.
      split: split of the BEIR folder's qrels.
      dtype: precision of the matmuls; auto: bfloat16 where this machine runs it faster.

    Raises:
      UserError: the model or a file cannot be read, or none of `queries` is judged.
      UsageError: `queries` without `qrels`, or the reverse.
    """
    check_finished(model)
    out = Path(out).expanduser()
    passages, test = read_own_test(corpus, queries, qrels, split)
    if test is None:
        log.info("no judgements (%s/qrels/%s.tsv): the report will have no retrieval metrics", source_of(corpus), split)
    _warn_if_not_apart(model)
    config = MlmConfig(
        name="adapt",
        start=str(resolve(model).absolute()),
        data=PretrainData(
            corpora=(str(source_of(corpus).absolute()),),
            max_length=max_length,
            held_out=held_out or min(1000, len(passages) // 10),
        ),
        dropout=dropout,
        head_warmup=head_steps,
        chunk=chunk,
        dtype=chosen_dtype(dtype),
        # The paper's schedule: a warm-up of 1,000 steps, then constant; in a short run the warm-up is at most a tenth.
        optimizer=Optimizer(
            learning_rate=learning_rate, weight_decay=0.01, warmup=min(0.1, WARMUP_STEPS / steps), final=1.0
        ),
        train=Train(
            steps=steps,
            batch_size=batch_size,
            seed=seed,
            log_every=max(1, steps // 40),
            eval_every=max(1, steps // 10),
            save_every=max(1, steps // 10),
            best_metric="loss",
        ),
    )

    # ---- the domain's encoder ----------------------------------------------------------------------------------------
    started = time.monotonic()
    train(config, out / "dam")
    trained_s = time.monotonic() - started
    report: dict[str, Any] = {"model": str(model), "corpus": str(corpus), "passages": len(passages)}
    report |= _of_training(out / "dam")

    # ---- the model ---------------------------------------------------------------------------------------------------
    before = DualEncoder.from_pretrained(model, dtype=dtype)
    after = _with_encoder_of(before, DualEncoder.bare(out / "dam"))
    after.save(out / "model")

    # ---- the corpus, encoded again -----------------------------------------------------------------------------------
    started = time.monotonic()
    store = encode(after, corpus=passages, out=out / "embeddings", model=str(out / "model"))
    report |= {
        "seconds_training": round(trained_s, 1),
        "seconds_encoding": round(time.monotonic() - started, 1),
        "bytes_of_the_domain": sum(path.stat().st_size for path in (out / "dam" / "model").glob("*.safetensors")),
        "bytes_of_the_adapters": sum(path.stat().st_size for path in (out / "model").glob("adapter/*.safetensors")),
    }

    # ---- before and after --------------------------------------------------------------------------------------------
    if test is not None:
        report["retrieval"] = _compare_models(before, after, store, test)
    write_json(out / "report.json", report, indent=1)
    return Adapted(out, after, store, report)


def _warn_if_not_apart(model: Path_) -> None:
    """Warn about the effect on a model whose relevance is not in separate modules."""
    if adapter_folder.find(model) is None:
        log.warning(
            "%s has no adapters: what it knows of relevance is in the weights that are trained now, and may get lost. "
            "Compare the report's metrics, or train adapters first (encoder.adapter)",
            model,
        )


def _of_training(run: Path) -> dict[str, Any]:
    """Return the perplexity of the held-out passages before and after, and the step after which it was best."""
    figures = [line for line in read_metrics(run) if "perplexity" in line]
    best = min(figures, key=lambda line: line["loss"], default=None)
    if best is None:
        return {"perplexity_before": None, "perplexity_after": None, "best_step": None}
    return {
        "perplexity_before": figures[0]["perplexity"],
        "perplexity_after": best["perplexity"],
        "best_step": int(best["step"]),
    }


def _with_encoder_of(model: DualEncoder, domain: DualEncoder) -> DualEncoder:
    """Return the model with the encoder of another one in each tower; adapters, projection and settings stay."""
    model = model.unmerge_lora()
    bert = next(iter(domain.params.values()))[BACKBONE]
    params = {name: {**tower, BACKBONE: bert} if BACKBONE in tower else tower for name, tower in model.params.items()}
    return DualEncoder(model.config, params, model.tokenizer, dtype=model.dtype, mlm_head=domain.mlm_head)


def _compare_models(
    before: DualEncoder, after: DualEncoder, store: EmbeddingStore, on: TestSet
) -> dict[str, Mapping[str, Any]]:
    """Retrieval metrics of both models, with paired tests.

    Returns:
      {metric: the fields of a `Comparison`}, `mean_a` being the model after and `mean_b` before.
    """
    searches = store_search(after, store), encoder_search(before, on.corpus, None)
    a, b = (on(on.search(search, depth(METRICS)), METRICS) for search in searches)
    return {name: dataclasses.asdict(compare(a[name], b[name])) for name in METRICS}
