"""`jaxretr.tune`: the weight of two models' combination, by exact search with a whole grid of weights."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxretr.config import EncodeDtype
from jaxretr.data.corpus import Corpus
from jaxretr.data.readers import read_beir, read_corpus, read_qrels, read_questions
from jaxretr.embeddings.encoding import encode_texts
from jaxretr.evaluate import metrics
from jaxretr.evaluate.answers import Match
from jaxretr.evaluate.measuring import TestSet, check_same_corpus, cut_of_answers, depth, warn_of_own
from jaxretr.evaluate.weight_curve import Curve, check_grid, check_metric, trace
from jaxretr.indexes.checks import check_index
from jaxretr.indexes.hybrid.weight_choice import balancing_weight
from jaxretr.indexes.hybrid.weight_grid import SLAB_ROWS, search_weights
from jaxretr.indexes.index import Index
from jaxretr.indexes.opening import opened
from jaxretr.indexes.source import masked, rebatched
from jaxretr.models.combined_encoder import CombinedEncoder, How
from jaxretr.models.combining import load_models
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.hub.combined_folder import check_replaceable
from jaxretr.runtime.errors import UsageError, UserError, check_list
from jaxretr.runtime.progress import Progress

# Questions and passages of the estimate of both models' scales; its error, a few percent, is far below the grid's step.
_SAMPLED_QUESTIONS = 64
_SAMPLED_PASSAGES = 2048


Blocks = Callable[[], Iterable[np.ndarray]]
Path_ = str | Path


@dataclass(frozen=True)
class Tuned:
    """A combination with the weight that is best on the dev questions.

    Attributes:
      encoder: the combined encoder with that weight.
      curve: the metric for each weight, with a cross-fitted test; it has `as_table`, `as_json`, `draw` and `write`.
    """

    encoder: CombinedEncoder
    curve: Curve

    @property
    def weight(self) -> float:
        """The weight of the second model's questions."""
        return self.curve.choice.weight

    def table(self) -> str:
        """The curve of the metric over the weight as a table for people."""
        return self.curve.as_table()


def tune(
    models: Sequence[Path_],
    *,
    beir: Path_ | None = None,
    split: str = "dev",
    corpus: Path_ | None = None,
    queries: Path_ | None = None,
    qrels: Path_ | None = None,
    answers: bool = False,
    match: Match = "string",
    metric: str | None = None,
    grid: str | Sequence[float] = "log",
    how: How | None = None,
    index_a: Path_ | None = None,
    index_b: Path_ | None = None,
    out: Path_ | None = None,
    dtype: EncodeDtype = "auto",
    batch_size: int | None = None,
) -> Tuned:
    """Choose the query-side weight of a combination on dev questions (SPAR, Chen et al. 2022, section 4.2).

    Args:
      models: the base and the other model, each a run directory, or any folder or hub name of a model with both towers; or
        a combined one of two parts.
      beir: a BEIR folder, with corpus, queries and qrels, instead of those three.
      split: split of the BEIR folder's qrels.
      corpus: the passages, as for `jaxretr.encode`. Not needed if both indexes and qrels are given.
      queries: the dev questions.
      qrels: judgements in BEIR's or TREC's format.
      answers: use the answers in `queries` instead, with DPR's matching.
      match: how answers are matched.
      metric: the metric to maximise, such as recall@100, mrr@10 or acc@20; by default recall@100, or acc@100.
      grid: log: search for the maximum in steps of 2, then of 2^(1/4); paper: .1, .2, ... 1 and their reciprocals; or the
        weights to try, separated by commas.
      how: how vectors are combined; a sum keeps their size; by default concatenate, or a combined model's own.
      index_a: index of the corpus by the first model, of any kind that gives vectors back; it is not encoded then. The
        search for the weights is exact.
      index_b: index of the corpus by the second model.
      out: write the combined model with the best weight and the curve to this folder.
      dtype: precision of the matmuls; auto: bfloat16 where this machine runs it faster.
      batch_size: texts per batch; by default chosen for the device.

    Raises:
      UsageError: arguments that do not go together.
      UserError: a file cannot be read, or an index belongs to another model or corpus.
    """
    check_list("models", models)
    if len(models) > 2:
        raise UsageError(f"tune finds one weight, of two models, not {len(models)}; combine more step by step")
    if beir is not None:
        if corpus or queries or qrels:
            raise UsageError("beir= has corpus, queries and qrels; leave corpus=, queries= and qrels= out")
        if answers:
            raise UsageError("beir= is measured with its qrels; leave answers= out")
    elif queries is None or answers == (qrels is not None):
        raise UsageError("give queries= with either qrels= or answers=, or give beir=")
    elif corpus is None and (answers or index_a is None or index_b is None):
        raise UsageError("give corpus=; only with index_a=, index_b= and qrels= it is not needed")
    check_grid(grid)
    check_metric(metric)
    dev, metric = _read_dev(beir, split, corpus, queries, qrels, metric, match)
    # One passage more is searched for in place of a question that is a passage itself.
    k, texts = hits_needed(dev, metric) + bool(dev.own_questions), dev.corpus if len(dev.corpus) else None
    if out is not None:
        check_replaceable(out)
    encoder = load_models(models, how, dtype=dtype)
    if len(encoder.parts) != 2:
        raise UsageError(f"tune finds one weight, of two models; {models[0]} has {len(encoder.parts)} parts")
    with ExitStack() as stack:
        indexes = [
            None if place is None else stack.enter_context(opened(place, len(dev.questions), k))
            for place in (index_a, index_b)
        ]
        for part, name, index in zip(encoder.parts, encoder.names, indexes, strict=True):
            if index is not None:
                check_index(index, part, name)
        ids = check_same_corpus(indexes, texts)
        questions = [encode_texts(part, dev.questions, batch_size) for part in encoder.parts]
        passages = [
            _blocks_of(part, index, ids, texts, batch_size) for part, index in zip(encoder.parts, indexes, strict=True)
        ]
        how = encoder.config.how

        def evaluate(weights: Sequence[float]) -> dict[float, dict[str, float]]:
            hits_of = _search_grid(weights, how, questions, passages, len(ids), k)
            return {weight: values_of(dev, metric, weight, *hits, ids) for weight, hits in hits_of.items()}

        curve = trace(
            evaluate,
            grid,
            lambda: balancing_weight(_sampled_scores(how, questions, passages, len(ids))),
            metric=metric,
            systems=(encoder.names[0], encoder.names[1]),
        )
    best = encoder.with_weights([1.0, curve.choice.weight])
    if out is not None:
        best.save(out)
        curve.write(Path(out).expanduser() / "curve.json")
        curve.draw(Path(out).expanduser() / "curve.png")
    return Tuned(best, curve)


# ---- the dev set -----------------------------------------------------------------------------------------------------


def _read_dev(
    beir: Path_ | None,
    split: str,
    corpus: Path_ | None,
    queries: Path_ | None,
    qrels: Path_ | None,
    metric: str | None,
    match: Match,
) -> tuple[TestSet, str]:
    """The questions of a BEIR folder, or of `queries` with their judgements or answers; and the metric."""
    metric = metric or ("recall@100" if beir is not None or qrels is not None else "acc@100")
    if beir is not None:
        data = read_beir(beir, split)
        metrics.evaluate(data.qrels, {}, [metric])  # Refuse an unknown metric now, not after an hour.
        return TestSet(data.questions, data.corpus, data.qrels), metric
    assert queries is not None
    questions = read_questions(queries)
    judged = None
    if qrels is not None:
        judged = read_qrels(qrels)
        metrics.evaluate(judged, {}, [metric])
        known = {question.id for question in questions}
        if missing := [question_id for question_id in judged if question_id not in known]:
            raise UserError(
                f"{qrels}: judges {len(missing)} questions that {queries} lacks (the first: '{missing[0]}'); "
                "give the judgements of these questions"
            )
        questions = [question for question in questions if question.id in judged]
    else:
        name, _, cut = metric.lower().partition("@")
        if name != "acc" or not cut.isdecimal() or not int(cut):
            raise UsageError(f"metric={metric}: by answers= the metric is acc@20, acc@100 and so on")
        if not any(question.answers for question in questions):
            raise UserError(f"{queries}: no question has answers; give a file with answers, or qrels=")
    # Without a corpus it is unknown whether a passage with a question's id is the question itself.
    passages = Corpus([], [], []) if corpus is None else read_corpus(corpus)
    return TestSet(questions, passages, judged, match), metric.lower() if judged is None else metric


def values_of(
    dev: TestSet, metric: str, weight: float, scores: np.ndarray, rows: np.ndarray, ids: Sequence[str]
) -> dict[str, float]:
    """The metric of each question from the scores float32 [B, k] and rows int [B, k] of a weight, best first."""
    names = [[ids[int(row)] for row in of_question] for of_question in rows.tolist()]
    run = dev.search(lambda questions, k: (scores, names), hits_needed(dev, metric))
    if weight == 0 and dev.qrels is not None and not len(dev.corpus):
        warn_of_own(run, dev.qrels, "the first model's run")
    return dev(run, (metric,))[metric]


def hits_needed(dev: TestSet, metric: str) -> int:
    """The number of passages per question that the metric looks at, K."""
    return cut_of_answers(metric) if dev.qrels is None else depth((metric,))


# ---- passages --------------------------------------------------------------------------------------------------------


def _blocks_of(
    part: DualEncoder, index: Index | None, ids: Sequence[str], corpus: Corpus | None, batch_size: int | None
) -> Blocks:
    """The function that gives a model's passages as blocks in the order of `ids`, anew for every pass."""
    starts = range(0, len(ids), SLAB_ROWS)
    if index is not None:
        return lambda: (index.vectors(ids[start : start + SLAB_ROWS]) for start in starts)
    assert corpus is not None
    embeddings = encode_texts(part, corpus, batch_size)
    return lambda: (embeddings[start : start + SLAB_ROWS] for start in starts)


def _sums(passages: Sequence[Blocks]) -> Iterator[np.ndarray]:
    """Yield the sums of both models' passages, as blocks; the same number of rows is checked elsewhere."""
    streams = ((np.asarray(piece, np.float32) for piece in rebatched(blocks(), SLAB_ROWS)) for blocks in passages)
    yield from (one + other for one, other in zip(*streams, strict=True))


# ---- the grid --------------------------------------------------------------------------------------------------------


def _search_grid(
    weights: Sequence[float],
    how: str,
    questions: Sequence[np.ndarray],
    passages: Sequence[Blocks],
    count: int,
    k: int,
) -> dict[float, tuple[np.ndarray, np.ndarray]]:
    """Find each weight's scores and rows [B, k] in one pass over N passages; for sums each model alone is another pass."""
    if how == "sum":
        single = [weight for weight in weights if weight in (0, math.inf)]
        between = [weight for weight in weights if weight not in single]
        summed = [lambda: _sums(passages)] * 2
        hits_of = _search_grid(single, "concatenate", questions, passages, count, k) if single else {}
        return hits_of | _search_grid(between, "concatenate", questions, summed, count, k)
    with Progress(count, "passage", f"searched with {len(weights)} weights") as progress:

        def counted() -> Iterator[np.ndarray]:
            for block in passages[0]():
                yield block
                progress.advance(len(block))

        on = (questions[0], counted()), (questions[1], passages[1]())
        hits = zip(*search_weights(*on, weights, k), strict=True)
        return dict(zip(weights, hits, strict=True))


def _sampled_scores(
    how: str, questions: Sequence[np.ndarray], passages: Sequence[Blocks], count: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield both models' scores of some passages for some questions."""
    rng = np.random.default_rng(0)
    mask = np.zeros(count, bool)
    mask[rng.choice(count, min(count, _SAMPLED_PASSAGES), replace=False)] = True
    numbers = rng.choice(len(questions[0]), min(len(questions[0]), _SAMPLED_QUESTIONS), replace=False)
    sampled = [np.concatenate(list(masked(blocks(), mask))).astype(np.float32) for blocks in passages]
    if how == "sum":
        sampled = [sampled[0] + sampled[1]] * 2
    for number in numbers:
        yield sampled[0] @ questions[0][number], sampled[1] @ questions[1][number]
