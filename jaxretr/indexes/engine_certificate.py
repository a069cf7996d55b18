"""Tuning and certifying the index of a database with one knob: how wide its graph is searched.

The exact neighbours are found by our own search over the vectors that were loaded, so that the certificate compares the
database with something other than itself.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes import certificate as certificates
from jaxretr.indexes import question_sets
from jaxretr.indexes.question_sets import Questions
from jaxretr.runtime.errors import UserError

log = logging.getLogger(__name__)

# Questions of each half: a database answers them one by one, and a recall of 0.99 is certain with 1,100 and more.
MOST_QUESTIONS = 1200

# The fewest passages to certify: fewer are searched exactly, and prove nothing.
FEWEST_ROWS = 4

# (questions [B, D], k, width) -> rows int64 [B, k], best first, -1 for none.
WidthSearch = Callable[[np.ndarray, int, int], NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Width:
    """The width of the graph's search that reaches a target.

    Attributes:
      target: recall@k asked for.
      width: candidates that the graph's search holds.
      reached: whether the tuning questions showed the target with 99% certainty.
    """

    target: float
    width: int
    reached: bool


def settings_of(facts: Mapping[str, Any]) -> list[Width]:
    """The widths that an index's facts state."""
    return [Width(**setting) for setting in facts["settings"]]


@dataclass(frozen=True, kw_only=True)
class Line(certificates.Line):
    """The recall and the speed of one target's width.

    Attributes:
      width: candidates that the graph's search holds.
    """

    width: int

    def settings_cells(self) -> dict[str, str]:
        return {"width": f"{self.width}"}


@dataclass(frozen=True, kw_only=True)
class Certificate(certificates.Certificate):
    """The certificate of a database's index.

    Attributes:
      index: the kind of index and its parameters, for people.
      lines: one for each target.
    """

    index: str
    lines: tuple[Line, ...]

    def made(self) -> str:
        return self.index


@dataclass(frozen=True)
class Asked:
    """Questions, and the exact neighbours that recall is measured against.

    Attributes:
      questions: the tuning and the certification questions.
      exact: the exact neighbours of all questions, int64 [Q, DEPTH or fewer], the best first.
      own: the row that each question is itself, or -1, [Q].
    """

    questions: Questions
    exact: NDArray[np.int64]
    own: NDArray[np.int64]

    @classmethod
    def of(cls, questions: Questions, row_of: Mapping[str, int], blocks: Iterable[np.ndarray], rows: int) -> "Asked":
        """Find the exact neighbours in one pass over the vectors."""
        own = questions.own_rows(row_of, slice(None))
        depth = min(question_sets.DEPTH, rows)
        return cls(questions, question_sets.exact_rows(questions.vectors, own, blocks, depth, rows), own)


def check_targets(targets: float | Sequence[float]) -> tuple[float, ...]:
    """The targets as a tuple, each once.

    Raises:
      UserError: one outside (0, 1], or none.
    """
    given: Any = [targets] if isinstance(targets, str) or not isinstance(targets, Iterable) else targets
    found = tuple(dict.fromkeys(given))
    if not found or not all(isinstance(target, int | float | np.floating) and 0 < target <= 1 for target in found):
        raise UserError(f"target_recall={targets}: give a share above 0 and at most 1, for instance 0.95")
    return found


def tune(search: WidthSearch, asked: Asked, targets: Sequence[float], k: int, widths: Sequence[int]) -> list[Width]:
    """Find the narrowest search that reaches each target; a warning for one that none reaches for certain.

    Args:
      search: the index.
      asked: the questions, of which the tuning ones are used.
      targets: recalls@k.
      k: their depth.
      widths: the widths to choose among, ascending.
    """
    part = asked.questions.tune
    vectors, exact, own = asked.questions.vectors[part], asked.exact[part], asked.own[part]
    extra = int((own >= 0).any())
    certain: dict[int, float] = {}
    for width in widths:
        found = search(vectors, k + extra, width)
        recalls = certificates.recall(found, exact, own, k)
        certain[width] = certificates.certain_recall(recalls, k)
        if certain[width] >= max(targets) or recalls.min() == 1:  # more cannot be shown
            break
    chosen = []
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
                len(vectors),
            )
        chosen.append(Width(target=target, width=width, reached=bool(enough)))
    return chosen


def certify(
    search: WidthSearch, asked: Asked, settings: Sequence[Width], k: int, packages: Sequence[str], **facts: Any
) -> Certificate:
    """Measure each setting on the questions that tuned nothing.

    Args:
      search: the index.
      asked: the questions, of which the certification ones are used.
      settings: the width of each target.
      k: the depth of the targets.
      packages: Python packages whose versions the certificate states.
      facts: the fields rows, dim, seed, model and index of `Certificate`.
    """
    part = asked.questions.certify
    vectors, exact, own = asked.questions.vectors[part], asked.exact[part], asked.own[part]
    lines = []
    for setting in settings:
        one = _at(search, setting.width)
        lines.append(
            Line(
                target=setting.target,
                tuned_k=k,
                reached=setting.reached,
                width=setting.width,
                recalls=certificates.measure_recalls(one, vectors, exact, own, (k, *certificates.DEPTHS)),
                **certificates.measure_speed(one, vectors, k),
            )
        )
    return Certificate(
        questions=len(vectors),
        of="passages" if asked.questions.stand_ins else "questions",
        lines=tuple(lines),
        **certificates.machine_facts(*packages),
        **facts,
    )


def width_of(settings: Sequence[Width], target: float | None, index: str) -> int:
    """The width for a target; that of the first by default.

    Raises:
      UserError: a target that was not tuned for.
    """
    found = settings[0] if target is None else next((each for each in settings if each.target == target), None)
    if found is None:
        there = ", ".join(f"{each.target:g}" for each in settings)
        raise UserError(f"target_recall={target}: {index} was built for {there}; choose one of these, or export again")
    return found.width


def check_again(certificate: Certificate, search: WidthSearch, asked: Asked) -> list[str]:
    """Measure again, and list the recalls that lie below the certificate's by more than chance.

    Args:
      certificate: the measurements made with the index.
      search: the index as it is now.
      asked: certification questions alone, with their neighbours as they are now.
    """
    problems = []
    for line in certificate.lines:
        stated = line.recalls[0]
        found = certificates.measure_recalls(
            _at(search, line.width), asked.questions.vectors, asked.exact, asked.own, (line.tuned_k,)
        )[0]
        if found.high < stated.low:
            problems.append(
                f"recall@{found.k} at the target {line.target:g} is {found.recall:.4f}, but the certificate states "
                f"{stated.recall:.4f} ({stated.low:.4f} to {stated.high:.4f})"
            )
    return problems


def _at(search: WidthSearch, width: int) -> certificates.Search:
    """The search at one width; it has no scores, which nothing here reads, and uses the database's own threads."""

    def one(questions: np.ndarray, k: int, threads: int) -> tuple[np.ndarray, NDArray[np.int64]]:
        rows = search(questions, k, width)
        return np.empty(rows.shape, np.float32), rows

    return one
