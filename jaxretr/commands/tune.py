"""`jaxretr tune`: the weight of two models' combination, by full search with a whole grid of weights."""

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from jaxretr.commands.combine import load_models
from jaxretr.commands.hits import check_output
from jaxretr.commands.weight_curve import trace
from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_beir, read_corpus, read_qrels, read_questions
from jaxretr.errors import UsageError, UserError
from jaxretr.evaluate import metrics
from jaxretr.evaluate.answers import AnswerMatcher
from jaxretr.evaluate.measuring import check_same_corpus, depth
from jaxretr.evaluate.runs import strictly_decreasing
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.formats.combined_folder import check_replaceable
from jaxretr.progress import Progress
from jaxretr.search.hybrid.weight_choice import balancing_weight
from jaxretr.search.hybrid.weight_grid import pieces, search_weights
from jaxretr.search.searching import check_store
from jaxretr.stores.embedding_store import EmbeddingStore
from jaxretr.stores.encoding import encode_texts
from jaxretr.stores.opening import open_store

# Of the estimate of both models' scales: its error of a few percent is far below the grid's steps.
_SAMPLED_QUESTIONS = 64
_SAMPLED_PASSAGES = 2048

_BLOCK_ROWS = 32_768

Blocks = Callable[[], Iterable[np.ndarray]]


def run(args: argparse.Namespace) -> None:
    """Measures the grid, prints it, and writes what was asked for."""
    check_arguments(args)
    dev = read_dev(args)
    if args.out is not None:
        check_replaceable(args.out)
    if args.curve is not None:
        check_output(args.curve)
    encoder = load_models(args.models, args.how, compute=args.compute)
    if len(encoder.parts) != 2:
        raise UsageError(f"tune finds one weight, of two models; {args.models[0]} has {len(encoder.parts)} parts")
    stores = [None if path is None else open_store(path) for path in (args.index_a, args.index_b)]
    for part, name, store in zip(encoder.parts, encoder.names, stores, strict=True):
        if store is not None:
            check_store(store, part, name)
    ids = check_same_corpus(stores, dev.corpus)
    questions = [encode_texts(part, dev.questions, args.batch_size) for part in encoder.parts]
    passages = [
        blocks_of(part, store, dev.corpus, args.batch_size) for part, store in zip(encoder.parts, stores, strict=True)
    ]
    curve = trace(
        lambda weights: evaluate(weights, encoder.config.how, questions, passages, ids, dev),
        args.grid,
        lambda: balancing_weight(sampled_scores(encoder.config.how, questions, passages, len(ids))),
        metric=dev.metric,
        systems=(encoder.names[0], encoder.names[1]),
    )
    print(curve.as_json() if args.json else curve.as_table())
    if args.curve is not None:
        curve.draw(Path(args.curve).expanduser())
        curve.write(Path(args.curve).expanduser().with_suffix(".json"))
    if args.out is not None:
        encoder.with_weights([1.0, curve.choice.weight]).save(args.out)
        curve.write(Path(args.out).expanduser() / "curve.json")
        curve.draw(Path(args.out).expanduser() / "curve.png")


def check_arguments(args: argparse.Namespace) -> None:
    """Raises UsageError unless the arguments say exactly one thing to do."""
    if len(args.models) > 2:
        raise UsageError(f"tune finds one weight, of two models, not {len(args.models)}; combine more step by step")
    if args.beir is not None:
        if args.corpus or args.queries or args.qrels:
            raise UsageError("the --beir folder has corpus, queries and qrels; leave --corpus, --queries, --qrels out")
    elif args.queries is None or args.answers == (args.qrels is not None):
        raise UsageError("give --queries FILE with either --qrels FILE or --answers, or give --beir DIR")
    elif args.corpus is None and (args.answers or args.index_a is None or args.index_b is None):
        raise UsageError("give --corpus FILE; only with --index-a, --index-b and --qrels it is not needed")
    if args.answers and args.beir is not None:
        raise UsageError("--beir is measured with its qrels; leave --answers out")
    if args.curve is not None and Path(args.curve).suffix.lower() != ".png":
        raise UsageError(f"--curve {args.curve}: the picture is a PNG; give a name that ends in .png")


# ---- the dev set -----------------------------------------------------------------------------------------------------


@dataclass
class Dev:
    """Questions, and how what is found for them is measured.

    Attributes:
      questions: those that are searched for.
      corpus: None where neither texts to encode nor texts to look for answers in are needed.
      metric: of the judgements or of the answers.
      qrels: the judgements; None: by answers.
      match: of answers.
      without_itself: a passage that is the question (of the same id) is not counted as found, as BEIR has it.
    """

    questions: list[Question]
    corpus: Corpus | None
    metric: str
    qrels: Mapping[str, Mapping[str, int]] | None
    match: str = "string"
    without_itself: bool = False
    _matcher: AnswerMatcher = field(init=False)
    _has_answer: list[dict[int, bool]] = field(init=False)

    def __post_init__(self) -> None:
        self._matcher = AnswerMatcher(self.match)  # pyright: ignore[reportArgumentType]
        self._has_answer = [{} for _ in self.questions]

    def cut(self) -> int:
        """K: the number of passages a question that the metric looks at."""
        return depth((self.metric,)) if self.qrels is not None else int(self.metric.partition("@")[2])

    def figures(self, scores: np.ndarray, rows: np.ndarray, ids: Sequence[str]) -> dict[str, float]:
        """The metric of each question from scores float32 [B, k] and rows int [B, k], best first."""
        if self.qrels is None:
            hits = [self._hit(number, found) for number, found in enumerate(rows[:, : self.cut()].tolist())]
            return {question.id: float(hit) for question, hit in zip(self.questions, hits, strict=True)}
        run = {}
        for question, values, found in zip(self.questions, scores, rows.tolist(), strict=True):
            # Among equal scores the order of the search counts, as in the file that `jaxretr search` writes.
            of_one = dict(zip((ids[row] for row in found), strictly_decreasing(values).tolist(), strict=True))
            if self.without_itself:
                of_one.pop(question.id, None)
            run[question.id] = dict(list(of_one.items())[: self.cut()])
        return metrics.evaluate(self.qrels, run, [self.metric], per_query=True)[1][self.metric]

    def _hit(self, number: int, rows: list[int]) -> bool:
        """Whether a passage has an answer; the same pairs come up with nearly every weight."""
        assert self.corpus is not None
        known = self._has_answer[number]
        for row in rows:
            if row not in known:
                known[row] = self._matcher.has_answer(self.corpus.texts[row], self.questions[number].answers)
            if known[row]:
                return True
        return False


def read_dev(args: argparse.Namespace) -> Dev:
    """Reads what --beir, or --corpus, --queries and --qrels, name."""
    metric = args.metric or ("acc@100" if args.answers else "recall@100")
    if args.beir is not None:
        beir = read_beir(args.beir, args.split)
        dev = Dev(beir.questions, beir.corpus, metric, beir.qrels, without_itself=True)
        metrics.evaluate(dev.qrels or {}, {}, [metric])  # An unknown metric is an error now, not after an hour.
        return dev
    questions = read_questions(args.queries)
    qrels = None
    if args.qrels is not None:
        qrels = read_qrels(args.qrels)
        metrics.evaluate(qrels, {}, [metric])
        known = {question.id for question in questions}
        if missing := [question_id for question_id in qrels if question_id not in known]:
            raise UserError(
                f"{args.qrels}: judges {len(missing)} questions that {args.queries} lacks (the first: '{missing[0]}'); "
                "give the judgements of these questions"
            )
        questions = [question for question in questions if question.id in qrels]
    else:
        name, _, cut = metric.lower().partition("@")
        if name != "acc" or not cut.isdecimal() or not int(cut):
            raise UsageError(f"--metric {metric}: by --answers the metric is acc@20, acc@100 and so on")
        if not any(question.answers for question in questions):
            raise UserError(f"{args.queries}: no question has answers; give a file with answers, or --qrels FILE")
    corpus = None if args.corpus is None else read_corpus(args.corpus)
    return Dev(questions, corpus, metric.lower() if qrels is None else metric, qrels, args.match)


# ---- passages --------------------------------------------------------------------------------------------------------


def blocks_of(part: DualEncoder, store: EmbeddingStore | None, corpus: Corpus | None, batch_size: int | None) -> Blocks:
    """What gives a model's passages as blocks, again for every pass."""
    if store is not None:
        return store.blocks
    assert corpus is not None
    embeddings = encode_texts(part, corpus, batch_size)
    return lambda: (embeddings[start : start + _BLOCK_ROWS] for start in range(0, len(embeddings), _BLOCK_ROWS))


def sums(passages: Sequence[Blocks], size: int) -> Iterator[np.ndarray]:
    """The sums of both models' passages, as blocks; the same number of rows is checked elsewhere."""
    streams = [pieces(blocks(), size, "passages") for blocks in passages]
    yield from (one + other for one, other in zip(*streams, strict=True))


# ---- the grid --------------------------------------------------------------------------------------------------------


def evaluate(
    weights: Sequence[float],
    how: str,
    questions: Sequence[np.ndarray],
    passages: Sequence[Blocks],
    ids: Sequence[str],
    dev: Dev,
) -> dict[float, dict[str, float]]:
    """{weight: {question id: value}} in one pass; for sums each model alone is another pass."""
    if how == "sum":
        alone = [weight for weight in weights if weight in (0, math.inf)]
        between = [weight for weight in weights if weight not in alone]
        size = questions[0].shape[1]
        summed = [lambda: sums(passages, size)] * 2
        found = evaluate(alone, "concatenate", questions, passages, ids, dev) if alone else {}
        return found | evaluate(between, "concatenate", questions, summed, ids, dev)
    with Progress(len(ids), "passage", f"searched with {len(weights)} weights") as progress:

        def counted() -> Iterator[np.ndarray]:
            for block in passages[0]():
                yield block
                progress.advance(len(block))

        k = dev.cut() + dev.without_itself
        scores, rows = search_weights((questions[0], counted()), (questions[1], passages[1]()), weights, k)
    return {
        weight: dev.figures(*found, ids) for weight, found in zip(weights, zip(scores, rows, strict=True), strict=True)
    }


def sampled_scores(
    how: str, questions: Sequence[np.ndarray], passages: Sequence[Blocks], count: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields both models' scores of some passages for some questions."""
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(count, min(count, _SAMPLED_PASSAGES), replace=False))
    chosen = rng.choice(len(questions[0]), min(len(questions[0]), _SAMPLED_QUESTIONS), replace=False)
    sampled = [taken(blocks(), rows) for blocks in passages]
    if how == "sum":
        sampled = [sampled[0] + sampled[1]] * 2
    for number in chosen:
        yield sampled[0] @ questions[0][number], sampled[1] @ questions[1][number]


def taken(blocks: Iterable[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Some rows of a corpus that comes as blocks, float32 [n, D]; `rows` are ascending."""
    found, start = [], 0
    for block in blocks:
        inside = rows[(rows >= start) & (rows < start + len(block))]
        found.append(np.asarray(block[inside - start], np.float32))
        start += len(block)
    return np.concatenate(found)
