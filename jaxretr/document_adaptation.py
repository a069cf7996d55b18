"""`jaxretr.adapt_to_documents`: a model for one's own documents, from them alone: generated questions, mined negatives,
training, and a comparison (GPL, Wang et al. 2022, arXiv 2112.07577; InPars)."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.config import (
    AutoDtype,
    Contrastive,
    ContrastiveConfig,
    ContrastiveData,
    Distillation,
    Encoder,
    Negatives,
    Optimizer,
    Train,
)
from jaxretr.config.run import check_limits
from jaxretr.data.corpus import Corpus
from jaxretr.data.duplicate_groups import duplicate_groups
from jaxretr.data.formats.examples import Candidate, Example
from jaxretr.data.formats.reading import read_examples
from jaxretr.data.formats.writing import write_examples
from jaxretr.data.held_out import with_lowest_hashes
from jaxretr.data.made_of import note_settings
from jaxretr.data.questions import Question
from jaxretr.data.source import source_of
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.embeddings.encoding import encode, encode_texts
from jaxretr.evaluate.evaluating import read_own_test
from jaxretr.evaluate.measuring import TestSet, run_of
from jaxretr.evaluate.report import Report
from jaxretr.evaluate.searches import EncoderSearch, System, bm25_search, find_all, store_search
from jaxretr.indexes.hybrid.fusion import reciprocal_rank
from jaxretr.mining.generated import generate, loaded_generator
from jaxretr.mining.mining import mine
from jaxretr.models.any_scorer import load_scorer, scorer_kind
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.encode import chosen_dtype
from jaxretr.models.hub.dual_encoder_folder import check_finished
from jaxretr.models.hub.hf_files import resolve
from jaxretr.models.question_generator import QuestionGenerator
from jaxretr.runtime.errors import UsageError, UserError, at_least, check_seed, require_at_least
from jaxretr.runtime.storage.files import atomic_write, write_json
from jaxretr.runtime.storage.sealed_folder import check_replaceable
from jaxretr.training.loop import train
from jaxretr.training.metrics_log import read_best

log = logging.getLogger(__name__)

Path_ = str | Path

METRICS = ("ndcg@10", "mrr@10", "recall@20")

_COMMAND, _QUESTIONS, _HELD_OUT, _FIRST = "command.json", "generated.jsonl", "held_out", "embeddings_before"
_TRAIN, _MODEL_MINED, _MINED, _TARGETS = "train.jsonl", "mined_by_the_model.jsonl", "mined.jsonl", "targets.jsonl"
_QUERIES, _QRELS = "queries.jsonl", "qrels.jsonl"
_SECONDS = "seconds.json"

# Passages whose questions choose the checkpoint, and are compared on where the user has none: at most a tenth.
_MOST_HELD_OUT = 200

# Candidates for negatives of each question; how many of them are kept; and how many the scorer scores, for a step to weigh.
_DEPTH, _KEPT, _SCORED = 50, 10, 7

# Divisor of the scorer's scores.
_TEMPERATURE = 0.2

# Steps from which on a run is evaluated on its way, and not at its start and its end alone.
_LONG = 200

# A negative is at most this share less similar to the question than its passage (NV-Retriever, arXiv 2407.15831).
_MARGIN = 0.05


@dataclass(frozen=True)
class AdaptedToDocuments:
    """A model that was adapted to documents.

    Attributes:
      folder: contains generated.jsonl (the questions), run/ (the training), model/, embeddings/ and report.json.
      model: the adapted model.
      store: the documents, encoded with it.
      comparison: metrics of the adapted model, the one before, and BM25, with paired tests.
      report: numbers of questions, times, and the metrics.
    """

    folder: Path
    model: DualEncoder
    store: EmbeddingStore
    comparison: Report
    report: Mapping[str, Any]

    def table(self) -> str:
        """Return the report as text for people."""
        report, seconds = self.report, self.report["seconds"]
        minutes = ", ".join(f"{name} {each / 60:.1f}" for name, each in seconds.items())
        lines = [
            self.comparison.table(),
            f"on {report['compared_on']}",
            f"{report['questions']} questions about {report['passages_asked']} of {report['passages']} passages; minutes: "
            f"{minutes}",
        ]
        if report["best_step"] == 0:
            lines.append(
                "no step was better than the start on the held-out generated questions: the model is what it was; try a "
                "larger generator, a scorer, or more passages"
            )
        return "\n".join([*lines, f"model: {self.folder / 'model'}, its corpus: {self.folder / 'embeddings'}"])


def adapt_to_documents(
    documents: Path_,
    *,
    model: Path_,
    generator: QuestionGenerator | Path_,
    out: Path_,
    scorer: Path_ | None = None,
    passages: int | None = None,
    per_passage: int = 2,
    template: str = "auto",
    prompt_length: int | None = None,
    round_trip: int = 20,
    steps: int | None = None,
    batch_size: int = 32,
    max_length: int | None = None,
    learning_rate: float = 2e-5,
    teacher_temperature: float | None = None,
    seed: int = 0,
    queries: Path_ | None = None,
    qrels: Path_ | None = None,
    split: str = "test",
    dtype: AutoDtype = "auto",
) -> AdaptedToDocuments:
    """Adapt a model to documents without questions or judgements; an interrupted call resumes.

    A language model writes questions about the passages. BM25 and the model find each question's hard negatives. The model
    is trained to tell the question's passage from these and from those of other questions; with a scorer, also to weigh a
    question's passages as the scorer and the model before do together, ART's posterior:
    p(passage | question) ~ exp(scorer / teacher_temperature) p_model(passage | question). The best checkpoint by generated
    questions about other passages is kept.

    Args:
      documents: the passages, as for `jaxretr.encode`: a corpus file, a BEIR folder, or files:FOLDER for texts, tables and
        pages as they are. A BEIR folder with judgements of `split` also gives the questions to compare on.
      model: the model to adapt: a run directory, folder or hub name.
      generator: a causal language model or a T5 that writes the questions: a folder or hub name. Or a loaded one.
      out: folder for generated.jsonl, run/, model/, embeddings/, embeddings_before/ and report.json.
      scorer: a cross-encoder, causal language model or T5 (the generator, too) whose scores of the passages are distilled
        together with the model's own (listwise KL divergence); None: the generated pairs alone are learnt from.
      passages: draw at most this many passages to ask about, evenly.
      per_passage: questions to ask about each of them; repeated ones are dropped.
      template: prompt of the generator, see `jaxretr.generate`.
      prompt_length: tokens of the generator's prompt; by default 512, or its positions if there are fewer.
      round_trip: train only with questions for which BM25 finds their passage among the first so many; 0: with all.
      steps: training steps; by default one pass over the questions.
      batch_size: questions of a step.
      max_length: tokens of a passage in training, where fewer save time; by default the model's own, which the adapted model
        reads in any case.
      learning_rate: highest learning rate.
      teacher_temperature: divisor of the scorer's scores; by default 0.2.
      seed: seed of the generation and the training.
      queries: questions to compare on, instead of generated ones.
      qrels: judgements of `queries`.
      split: split of the BEIR folder's judgements to compare on.
      dtype: precision of the matmuls; auto: bfloat16 where this machine runs it faster.

    Raises:
      UserError: bad input, a model that cannot be used, or too few questions pass the filters.
      UsageError: `queries` without `qrels`, or the reverse; or a setting out of its range.
    """
    require_at_least(0, round_trip=round_trip)
    check_seed(seed)
    require_at_least(1, per_passage=per_passage, batch_size=batch_size)
    at_least(1, passages=passages, steps=steps)
    at_least(4, max_length=max_length)
    if teacher_temperature is not None and scorer is None:
        raise UsageError(f"teacher_temperature={teacher_temperature}: there is no scorer=; give one, or leave it out")
    teacher_temperature = _TEMPERATURE if teacher_temperature is None else teacher_temperature
    check_limits(learning_rate=learning_rate, teacher_temperature=teacher_temperature)
    check_finished(model)
    dtype = chosen_dtype(dtype)
    out, name = Path(out).expanduser(), str(generator)
    corpus, own = read_own_test(documents, queries, qrels, split)
    if scorer is not None:
        scorer_kind(scorer)
    if not (out / _QUESTIONS).is_file():  # What cannot be loaded is found before a setting is noted.
        try:
            generator = loaded_generator(generator, template, prompt_length, dtype)
        except UsageError as error:  # `max_length` is another setting here.
            raise UsageError(str(error).replace("max_length=", "prompt_length=")) from None
        DualEncoder.from_pretrained(model, max_passage_length=max_length, dtype=dtype)
    check_replaceable(out, "a model adapted to documents", lambda names: _COMMAND in names)
    note_settings(
        out / _COMMAND,
        out,
        {
            "documents": {"files": [str(documents)], "sha256": corpus.fingerprint()},
            "model": str(model),
            "generator": name,
            "scorer": None if scorer is None else str(scorer),
            **{"passages": passages, "per_passage": per_passage, "template": template, "prompt_length": prompt_length},
            **{"round_trip": round_trip, "steps": steps, "batch_size": batch_size, "max_length": max_length},
            **{
                "learning_rate": learning_rate,
                "teacher_temperature": teacher_temperature,
                "seed": seed,
                "dtype": dtype,
            },
        },
    )
    seconds: dict[str, float] = json.loads((out / _SECONDS).read_text()) if (out / _SECONDS).is_file() else {}

    def timed(name: str, work: Callable[[], Any], made: Path | None = None) -> Any:
        """Do one part of the work, if its file is not there, and add its time to that of interrupted calls."""
        if made is not None and made.is_file():
            log.info("%s: is there already", made)
            return None
        started = time.monotonic()
        try:
            return work()
        finally:
            seconds[name] = round(seconds.get(name, 0.0) + time.monotonic() - started, 1)
            write_json(out / _SECONDS, seconds)

    # ---- questions ---------------------------------------------------------------------------------------------------
    timed(
        "generating",
        lambda: generate(
            generator,
            corpus=corpus,
            out=out / _QUESTIONS,
            per_passage=per_passage,
            limit=passages,
            round_trip=round_trip or None,
            seed=seed,
        ),
        out / _QUESTIONS,
    )
    generator = name  # Its weights are not needed any longer.
    examples = list(read_examples(out / _QUESTIONS, format="tevatron2"))
    learnt, held_out = _divided(examples, corpus, out / _QUESTIONS)

    # ---- negatives ---------------------------------------------------------------------------------------------------
    before = DualEncoder.from_pretrained(model, dtype=dtype)
    first = timed("encoding", lambda: encode(before, corpus=corpus, out=out / _FIRST, model=str(model)))
    find_first = store_search(before, first)
    timed("mining", lambda: _mine(out, learnt, corpus, find_first, scorer, dtype), out / _MINED)
    if scorer is not None:
        scale = teacher_temperature / _temperature(before)
        timed("mining", lambda: _write_targets(out, corpus, before, first, scale), out / _TARGETS)

    # ---- training ----------------------------------------------------------------------------------------------------
    _write_judged(out / _HELD_OUT, held_out)
    steps = steps or -(-len(learnt) // batch_size)
    # Each evaluation encodes the corpus.
    every = steps if steps < _LONG else -(-steps // 3)
    course = Train(
        steps=steps,
        batch_size=batch_size,
        seed=seed,
        log_every=max(1, steps // 40),
        eval_every=every,
        save_every=every,
        best_metric="mrr@10",
    )
    config = _config(
        before,
        out,
        str(source_of(documents).absolute()),
        course,
        scored=scorer is not None,
        length=max_length,
        rate=learning_rate,
        temperature=teacher_temperature,
    )
    timed("training", lambda: train(config, out / "run"))
    # Trained with shorter passages, the model still reads what it read before.
    longest = max(before.config.max_passage_length, config.encoder.max_passage_length)
    after = DualEncoder.from_pretrained(out / "run", max_passage_length=longest, dtype=dtype)
    after.save(out / "model")
    best = read_best(out / "run")
    assert best is not None, "the run has dev questions"
    store = timed("encoding", lambda: encode(after, corpus=corpus, out=out / "embeddings", model=str(out / "model")))

    # ---- before and after --------------------------------------------------------------------------------------------
    test = own or held_out
    on = f"{len(test.questions)} questions with judgements"
    if own is None:
        easy = f", and BM25 finds each of these passages among the first {round_trip}" if round_trip else ""
        on = (
            f"{len(test.questions)} generated questions about passages that were not trained on. They flatter: people "
            f"ask otherwise{easy}"
        )
    systems: list[System] = [
        (str(out / "model"), lambda _: store_search(after, store)),
        (str(model), lambda _: find_first),
        ("BM25", bm25_search),
    ]
    comparison = Report.of(find_all(systems, test, METRICS), test, METRICS)
    report = {
        "model": str(model),
        "generator": name,
        "scorer": None if scorer is None else str(scorer),
        "passages": len(corpus),
        "passages_asked": min(passages or len(corpus), len(corpus)),
        "questions": len(examples),
        "best_step": int(best["step"]),
        "steps": config.train.steps,
        "seconds": seconds,
        "compared_on": on,
        "comparison": json.loads(comparison.to_json()),
    }
    write_json(out / "report.json", report, indent=1)
    return AdaptedToDocuments(out, after, store, comparison, report)


# ---- questions and negatives -----------------------------------------------------------------------------------------


def _divided(examples: Sequence[Example], corpus: Corpus, where: Path) -> tuple[list[Example], TestSet]:
    """Divide questions by their passages, copies of one being one: those to train with, and those to choose by."""
    if unknown := next((id for id in map(_passage, examples) if id not in corpus), None):
        raise UserError(f"{where}: passage '{unknown}' is not one of the documents; remove its questions")
    groups = duplicate_groups(corpus)
    of_examples = [int(groups[corpus.row(_passage(each))]) for each in examples]
    names = [corpus.ids[group] for group in of_examples]
    chosen = with_lowest_hashes(names, _MOST_HELD_OUT)
    if not chosen:
        raise UserError(
            f"{where}: questions about {len(set(names))} passages are too few to train with; ask about more passages"
        )
    learnt = [each for each, name in zip(examples, names, strict=True) if name not in chosen]
    held_out = [(each, group) for each, group, name in zip(examples, of_examples, names, strict=True) if name in chosen]
    qrels = {
        each.id: {corpus.ids[row]: 1 for row in np.flatnonzero(groups == group).tolist()} for each, group in held_out
    }
    return learnt, TestSet(_questions([each for each, _ in held_out]), corpus, qrels)


def _passage(example: Example) -> str:
    return example.positives[0].id or ""


def _questions(examples: Sequence[Example]) -> list[Question]:
    return [Question(each.id, each.question) for each in examples]


def _write_judged(folder: Path, test: TestSet) -> None:
    """Write questions and judgements, as JSON lines, which take any id."""
    with atomic_write(folder / _QUERIES) as file:
        file.writelines(json.dumps({"_id": each.id, "text": each.text}) + "\n" for each in test.questions)
    with atomic_write(folder / _QRELS) as file:
        file.writelines(
            json.dumps({"query-id": id, "corpus-id": passage, "score": grade}) + "\n"
            for id, judged in (test.qrels or {}).items()
            for passage, grade in judged.items()
        )


def _mine(
    out: Path,
    learnt: Sequence[Example],
    corpus: Corpus,
    find: EncoderSearch,
    scorer: Path_ | None,
    dtype: AutoDtype,
) -> None:
    """Write the training examples with negatives of BM25 and of the model; with a scorer, all of them with its scores."""
    write_examples(out / _TRAIN, learnt, "tevatron2", corpus, source=out / _QUESTIONS)
    questions = _questions(learnt)
    of_model = run_of(find, questions, _DEPTH)
    settings: dict[str, Any] = {"corpus": corpus, "ranks": (1, _DEPTH), "answers": None}
    if scorer is None:
        found = mine(out / _TRAIN, run=of_model, relative_margin=_MARGIN, negatives=_KEPT, **settings)
        if len(found.negatives.values):
            found.save(out / _MODEL_MINED)
        else:
            log.warning(
                "all passages that the model finds are too near the questions' own: the negatives are BM25's alone"
            )
        mine(out / _TRAIN, negatives=_KEPT, out=out / _MINED, **settings)
        return
    of_bm25 = run_of(bm25_search(corpus), questions, _DEPTH)
    fused = reciprocal_rank([of_bm25, of_model])
    asked = {"scorer": load_scorer(scorer, dtype=dtype), "negatives": _SCORED, "out": out / _MINED}
    mine(out / _TRAIN, run=fused, **asked, **settings)


def _write_targets(out: Path, corpus: Corpus, encoder: DualEncoder, store: EmbeddingStore, scale: float) -> None:
    """Write the mined examples with `scale` times the encoder's own scores added to the scorer's."""
    examples = list(read_examples(out / _MINED, format="tevatron2"))
    numbers, rows = np.transpose(
        [(number, corpus.row(each.id or "")) for number, one in enumerate(examples) for each in one.candidates]
    )
    questions = encode_texts(encoder, _questions(examples), None)
    added, start = np.empty(len(rows)), 0
    for block in store.blocks():
        here = np.flatnonzero((start <= rows) & (rows < start + len(block)))
        added[here] = scale * np.einsum("pd,pd->p", questions[numbers[here]], block[rows[here] - start])
        start += len(block)
    rest = iter(added.tolist())

    def scored(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        return tuple(replace(each, score=(each.score or 0.0) + next(rest)) for each in candidates)

    posteriors = (replace(one, positives=scored(one.positives), negatives=scored(one.negatives)) for one in examples)
    write_examples(out / _TARGETS, posteriors, "tevatron2", corpus, source=out / _MINED)


# ---- training --------------------------------------------------------------------------------------------------------


def _temperature(encoder: DualEncoder) -> float:
    """Return the divisor of the model's scores."""
    return 0.05 if encoder.config.normalise else 1.0


def _config(
    encoder: DualEncoder,
    out: Path,
    corpus: str,
    train: Train,
    *,
    scored: bool,
    length: int | None,
    rate: float,
    temperature: float,
) -> ContrastiveConfig:
    """Return the configuration of a run that continues a model's training on the mined questions."""
    assert encoder.dtype != "int8"
    shape = encoder.config
    learns = Distillation(loss="kl", teacher_temperature=temperature)
    mined = out / _MODEL_MINED
    negatives = Negatives(static=1, mined=int(mined.is_file()))
    return ContrastiveConfig(
        name="adapt_to_documents",
        data=ContrastiveData(
            train=str((out / (_TARGETS if scored else _MINED)).absolute()),
            mined=str(mined.absolute()) if negatives.mined else None,
            corpus=corpus,
            dev_questions=str((out / _HELD_OUT / _QUERIES).absolute()),
            dev_qrels=str((out / _HELD_OUT / _QRELS).absolute()),
        ),
        encoder=Encoder(
            path=str(resolve(encoder.source or "").absolute()),
            shared=shape.shared,
            normalise=shape.normalise,
            max_question_length=shape.max_question_length,
            max_passage_length=length or shape.max_passage_length,
            dtype=encoder.dtype,
        ),
        negatives=Negatives(static=_SCORED) if scored else negatives,
        contrastive=Contrastive(temperature=_temperature(encoder), chunk=16),
        distillation=learns if scored else Distillation(),
        optimizer=Optimizer(learning_rate=rate, weight_decay=0.01, warmup=0.1, final=0.0),
        train=train,
    )
