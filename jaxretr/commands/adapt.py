"""`jaxretr adapt`: a model for one's own corpus, by masked language modelling of its encoder alone."""

import argparse
import dataclasses
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxretr.commands.model import check_finished
from jaxretr.config import MlmConfig, Optimizer, PretrainData, Train
from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_beir, read_corpus, read_qrels, read_questions
from jaxretr.errors import UsageError
from jaxretr.evaluate.measuring import depth, of_qrels, run_of
from jaxretr.evaluate.metrics import Qrels
from jaxretr.evaluate.significance import compare
from jaxretr.metrics_log import read_metrics
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.encode import fastest_dtype
from jaxretr.models.formats import adapter_folder
from jaxretr.models.formats.hf_files import resolve
from jaxretr.search.exact import ExactIndex
from jaxretr.search.searching import search_store
from jaxretr.storage.files import atomic_write
from jaxretr.stores.embedding_store import EmbeddingStore
from jaxretr.stores.encoding import encode, encode_texts
from jaxretr.train import train

log = logging.getLogger(__name__)

METRICS = ("ndcg@10", "mrr@10", "recall@100")
WARMUP_STEPS = 1000


def run(args: argparse.Namespace) -> None:
    """Adapts, encodes, and prints the report, which stands in report.json as well."""
    check_finished(args.model)
    out = Path(args.out).expanduser()
    corpus, questions, qrels = read_input(args)
    warn_if_not_apart(args.model)

    # ---- the domain's encoder ----------------------------------------------------------------------------------------
    started = time.monotonic()
    train(mlm_config(args, len(corpus)), out / "dam")
    trained_s = time.monotonic() - started
    report: dict[str, Any] = {"model": str(args.model), "corpus": str(args.corpus), "passages": len(corpus)}
    report |= of_training(out / "dam")

    # ---- the model ---------------------------------------------------------------------------------------------------
    before = DualEncoder.from_pretrained(args.model, dtype=args.compute)
    after = with_encoder_of(before, DualEncoder.from_pretrained(out / "dam"))
    after.save(out / "model")

    # ---- the corpus encoded anew -------------------------------------------------------------------------------------
    started = time.monotonic()
    store = encode(after, corpus=corpus, out=out / "embeddings", model=str(out / "model"))
    report |= {
        "seconds_training": round(trained_s, 1),
        "seconds_encoding": round(time.monotonic() - started, 1),
        "bytes_of_the_domain": sum(path.stat().st_size for path in (out / "dam" / "model").glob("*.safetensors")),
        "bytes_of_the_adapters": sum(path.stat().st_size for path in (out / "model").glob("adapter/*.safetensors")),
    }

    # ---- before and after --------------------------------------------------------------------------------------------
    if questions:
        report["retrieval"] = compare_models(before, after, store, corpus, questions, qrels)
    with atomic_write(out / "report.json") as file:
        json.dump(report, file, indent=1)
    print(as_text(report, out))


def read_input(args: argparse.Namespace) -> tuple[Corpus, list[Question], Qrels]:
    """The corpus, and the questions and judgements that the report needs, if there are any."""
    if (args.queries is None) != (args.qrels is None):
        raise UsageError("--queries and --qrels go together; give both, or neither")
    corpus = read_corpus(args.corpus)
    if args.qrels is not None:
        qrels = read_qrels(args.qrels)
        return corpus, [question for question in read_questions(args.queries) if question.id in qrels], qrels
    folder = Path(args.corpus).expanduser()
    if not (folder / "qrels" / f"{args.split}.tsv").is_file():
        log.info("no judgements (%s/qrels/%s.tsv): the report will have no retrieval figures", folder, args.split)
        return corpus, [], {}
    beir = read_beir(folder, args.split)
    return corpus, beir.questions, beir.qrels


def warn_if_not_apart(model: str) -> None:
    """Says what is to be expected of a model whose relevance is not in modules of its own."""
    if adapter_folder.find(model) is None:
        log.warning(
            "%s has no adapters: what it knows of relevance is in the weights that are trained now, and may get lost. "
            "Compare the report's figures, or train adapters first (encoder.adapter)",
            model,
        )


def mlm_config(args: argparse.Namespace, passages: int) -> MlmConfig:
    """The run of masked language modelling."""
    return MlmConfig(
        name="adapt",
        start=str(resolve(args.model).absolute()),
        data=PretrainData(
            corpora=(str(Path(args.corpus).expanduser().absolute()),),
            max_length=args.max_length,
            held_out=args.held_out or min(1000, passages // 10),
        ),
        dropout=args.dropout,
        head_warmup=args.head_steps,
        chunk=args.chunk,
        dtype=fastest_dtype() if args.compute == "auto" else args.compute,
        # The paper's: a warm-up of 1,000 steps, then constant; of a short run the warm-up is at most a tenth.
        optimizer=Optimizer(
            learning_rate=args.learning_rate, weight_decay=0.01, warmup=min(0.1, WARMUP_STEPS / args.steps), final=1.0
        ),
        train=Train(
            steps=args.steps,
            batch_size=args.batch_size,
            seed=args.seed,
            log_every=max(1, args.steps // 40),
            eval_every=max(1, args.steps // 10),
            save_every=max(1, args.steps // 10),
            best_metric="loss",
        ),
    )


def of_training(run: Path) -> dict[str, Any]:
    """Perplexity of the held-out passages before and after, and after how many steps it was best."""
    figures = [line for line in read_metrics(run) if "perplexity" in line]
    best = min(figures, key=lambda line: line["loss"], default=None)
    if best is None:
        return {"perplexity_before": None, "perplexity_after": None, "best_step": None}
    return {
        "perplexity_before": figures[0]["perplexity"],
        "perplexity_after": best["perplexity"],
        "best_step": int(best["step"]),
    }


def with_encoder_of(model: DualEncoder, domain: DualEncoder) -> DualEncoder:
    """The model with the encoder of another one in each tower; adapters, projection and settings stay."""
    model = model.unmerge_lora()
    bert = next(iter(domain.params.values()))["bert"]
    params = {name: {**tower, "bert": bert} for name, tower in model.params.items()}
    return DualEncoder(model.config, params, model.tokenizer, dtype=model.dtype, mlm_head=domain.mlm_head)


def compare_models(
    before: DualEncoder,
    after: DualEncoder,
    store: EmbeddingStore,
    corpus: Corpus,
    questions: list[Question],
    qrels: Qrels,
) -> dict[str, Mapping[str, Any]]:
    """Retrieval figures of both models, with paired tests.

    Returns:
      {metric: the fields of a `Comparison`}, `mean_a` being the model after and `mean_b` before.
    """
    index = ExactIndex(encode_texts(before, corpus, None), corpus.ids)
    searches = (
        lambda asked, k: search_store(store, corpus.ids, encode_texts(after, asked, None), k),
        lambda asked, k: index.search(encode_texts(before, asked, None), k),
    )
    a, b = (of_qrels(qrels, run_of(search, questions, depth(METRICS)), METRICS) for search in searches)
    return {name: dataclasses.asdict(compare(a[name], b[name])) for name in METRICS}


def as_text(report: Mapping[str, Any], out: Path) -> str:
    """The report for people."""
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
        lines.append("no step lowered the perplexity: the model is what it was; try --learning-rate or more --steps")
    return "\n".join([*lines, f"model: {out / 'model'}, its corpus: {out / 'embeddings'}"])
