"""Tuning and certifying the index of a database with one knob: how wide its graph is searched.

The exact neighbours are found by our own search over the vectors that were loaded, so that the certificate compares the
database with something other than itself.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes import question_sets
from jaxretr.indexes.measuring import GroundTruth, Search, certify, measure_recalls
from jaxretr.indexes.question_sets import Questions
from jaxretr.indexes.recall import Certificate, Target, certain_recall, ladder, of_target
from jaxretr.indexes.source import IndexSource

log = logging.getLogger(__name__)

# Questions of each half: a database answers them one by one, and a recall of 0.99 is certain with 1,100 and more.
_MOST_QUESTIONS = 1200

# The fewest passages to certify: fewer are searched exactly, and prove nothing.
_FEWEST_ROWS = 4

# pgvector's own default.
_NARROWEST = 40

VERIFIED_QUESTIONS = 200
"""The number of questions that `verify` asks again."""

# (questions [B, D], k, width) -> at most k rows of each question, best first.
WidthSearch = Callable[[np.ndarray, int, int], Sequence[Sequence[int] | NDArray[np.int64]]]


@dataclass(frozen=True, kw_only=True)
class Width(Target):
    """The width of the graph's search that reaches a target.

    Attributes:
      width: candidates that the graph's search holds; 0 where every row is scored.
    """

    width: int


def width_of(settings: Sequence[Width], target: float | None, index: str) -> int:
    """The width for a target; that of the first by default.

    Raises:
      UserError: a target that was not tuned for.
    """
    return of_target(settings, target, index, "choose one of these, or export again").width


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """The index that an export to a database is to make.

    Attributes:
      m, ef_construction: parameters of the HNSW graphs; None: the database's default here.
      questions: vectors float32 [B, D] to tune and to certify with; None: passages of the store.
      targets: recalls@k to tune the search for.
      k: their depth.
      seed: the seed of the samples.
    """

    m: int | None = None
    ef_construction: int | None = None
    questions: np.ndarray | None = None
    targets: Sequence[float] = (0.95,)
    k: int = 10
    seed: int = 0

    def graph(self, m: int, ef_construction: int) -> dict[str, int]:
        """The parameters of the graphs, with a database's defaults."""
        overrides = {"m": self.m, "ef_construction": self.ef_construction}
        return {"m": m, "ef_construction": ef_construction} | {
            name: at for name, at in overrides.items() if at is not None
        }


@dataclass(frozen=True)
class Tuned:
    """The tuned settings of a database's index, and their certificate.

    Attributes:
      settings: one for each target.
      questions: those that were asked, with the exact neighbours of the certification questions.
      certificate: the measured recall and speed.
    """

    settings: tuple[Width, ...]
    questions: Questions
    certificate: Certificate


def tuned_and_certified(
    search: WidthSearch,
    source: IndexSource,
    options: GraphOptions,
    *,
    widest: int | None,
    index: str,
    packages: Sequence[str],
) -> Tuned | None:
    """Find a width for each target, and measure it on other questions; None for too few passages.

    Args:
      widest: the most candidates that the graph's search can hold; None: there is no graph, and every row is scored.
      index: the kind of index and its parameters, for people.
      packages: Python packages whose versions the certificate states.
    """
    rows, meta, seed, targets = len(source.ids), source.store.meta, options.seed, options.targets
    if rows < _FEWEST_ROWS:
        return None
    if options.questions is None:
        questions = question_sets.stand_ins(
            source.ids, lambda row: source.store.rows(row, row + 1)[0], seed, _MOST_QUESTIONS
        )
    else:
        questions = question_sets.split(options.questions, seed, _MOST_QUESTIONS)
    row_of = {name: row for row, name in enumerate(source.ids)}
    own_rows = questions.own_rows(row_of, slice(None))
    truth = question_sets.with_exact(questions.vectors, own_rows, source.pieces(), min(question_sets.DEPTH, rows), rows)
    k, certifying = min(options.k, rows), truth.part(questions.certify)
    if widest is None:
        settings = [Width(target=target, width=0, reached=True) for target in targets]
    else:
        # Narrower ones save little, and questions may be farther from the passages than those that they were tuned on.
        widths = ladder(min(max(k, _NARROWEST), widest), widest)
        settings = _tune(search, truth.part(questions.tune), targets, k, widths)
    certificate = certify(
        settings,
        lambda setting: _at(search, setting.width),
        certifying,
        k,
        stand_ins=questions.stand_ins,
        packages=packages,
        rows=rows,
        dim=meta.dim,
        seed=seed,
        model=meta.model,
        index=index,
    )
    return Tuned(tuple(settings), question_sets.with_neighbours(questions, certifying.exact, source.ids), certificate)


def _tune(
    search: WidthSearch, truth: GroundTruth, targets: Sequence[float], k: int, widths: Sequence[int]
) -> list[Width]:
    """The narrowest of the widths (ascending) that reaches each target; a warning where none does for certain."""
    certain: dict[int, float] = {}
    for width in widths:
        recalls = truth.recalls(_at(search, width), k)
        certain[width] = certain_recall(recalls, k)
        if certain[width] >= max(targets) or recalls.min() == 1:  # more cannot be shown
            break
    settings = []
    for target in targets:
        enough = [width for width, bound in certain.items() if bound >= target]
        width = min(enough) if enough else max(certain, key=lambda width: (certain[width], -width))
        if not enough:
            log.warning(
                "recall@%d of %g is not reached for certain: with %d candidates %.4f is certain on %d tuning questions; "
                "give more questions, or a lower target",
                k,
                target,
                width,
                certain[width],
                len(truth.vectors),
            )
        settings.append(Width(target=target, width=width, reached=bool(enough)))
    return settings


def measured_again(certificate: Certificate, search: WidthSearch, truth: GroundTruth) -> tuple[list[str], str]:
    """Measure the recalls of an exported index again, and compare them with its certificate.

    Args:
      truth: certification questions, with their neighbours as they are now.

    Returns:
      The recalls that lie below the certificate's by more than chance; and what agrees if there are none, for people.
    """
    problems = []
    for line in certificate.lines:
        assert line.width is not None
        certified_recall = line.recalls[0]
        recall = measure_recalls(_at(search, line.width), truth, (line.tuned_k,))[0]
        if recall.high < certified_recall.low:
            problems.append(
                f"recall@{recall.k} at the target {line.target:g} is {recall.recall:.4f}, but the certificate states {certified_recall}"
            )
    certified_recall = certificate.lines[0].recalls[0]
    return problems, f"recall@{certified_recall.k} {certified_recall.recall:.3f} when it was exported, and no less now"


def _at(search: WidthSearch, width: int) -> Search:
    """The search at one width, with the database's own threads."""
    return lambda questions, k, threads: padded(search(questions, k, width), k)


def padded(question_rows: Sequence[Sequence[int] | NDArray[np.int64]], k: int) -> NDArray[np.int64]:
    """Rows of B questions as int64 [B, k], with -1 where there are fewer."""
    rows = np.full((len(question_rows), k), -1, np.int64)
    for number, found_rows in enumerate(question_rows):
        rows[number, : len(found_rows)] = found_rows
    return rows
