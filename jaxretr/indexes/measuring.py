"""Measuring the recall and the speed of an approximate index with questions whose exact neighbours are known."""

import importlib.metadata
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes.recall import Certificate, Line, Recall, S
from jaxretr.runtime.parallel.machine import cpu_name, cpu_threads
from jaxretr.version import __version__

DEPTHS = (10, 100)

_SINGLES = 1000

# (questions [B, D], k, threads) -> rows int64 [B, k], best first, -1 for none.
Search = Callable[[np.ndarray, int, int], NDArray[np.int64]]


@dataclass(frozen=True)
class GroundTruth:
    """Questions, and the exact neighbours that recall is measured against.

    Attributes:
      vectors: float32 [B, D].
      exact: rows of the exact neighbours, the best first, without the question's own, int64 [B, at least k].
      own_rows: the row that each question is itself, which does not count, or -1, [B].
    """

    vectors: NDArray[np.float32]
    exact: NDArray[np.int64]
    own_rows: NDArray[np.int64]

    def part(self, questions: slice) -> "GroundTruth":
        """The ground truth of some of the questions alone."""
        return GroundTruth(self.vectors[questions], self.exact[questions], self.own_rows[questions])

    def recalls(self, search: Search, k: int) -> NDArray[np.float64]:
        """Measure the share of each question's k exact neighbours that a search finds, float64 [B]."""
        question_rows = search(self.vectors, k + int((self.own_rows >= 0).any()), cpu_threads())
        shares = np.empty(len(question_rows))
        for question, (rows, neighbours, itself) in enumerate(
            zip(question_rows.tolist(), self.exact, self.own_rows, strict=True)
        ):
            hits = [row for row in rows if row != itself][:k]
            shares[question] = len(set(hits) & set(neighbours[:k].tolist())) / len(neighbours[:k])
        return shares


def measure_recalls(search: Search, truth: GroundTruth, depths: Sequence[int]) -> tuple[Recall, ...]:
    """Measure the recalls of a setting at some depths, with a search of its own for each depth."""
    unique_depths = dict.fromkeys(min(depth, truth.exact.shape[1]) for depth in depths)
    return tuple(Recall.of(truth.recalls(search, k), k) for k in unique_depths)


def measure_speed(search: Search, questions: np.ndarray, k: int) -> dict[str, float]:
    """Measure the times of `Line`; the first search warms up."""
    search(questions[:64], k, 1)
    began = time.perf_counter()
    search(questions, k, 1)
    batch = len(questions) / (time.perf_counter() - began)
    search(questions[:1], k, 1)
    seconds = []
    for row in range(min(len(questions), _SINGLES)):
        began = time.perf_counter()
        search(questions[row : row + 1], k, 1)
        seconds.append(time.perf_counter() - began)
    p50, p99 = np.quantile(seconds, [0.5, 0.99]) * 1000
    single = len(seconds) / sum(seconds)
    return {"batch_per_second": batch, "single_per_second": single, "p50_ms": float(p50), "p99_ms": float(p99)}


def machine_facts(*packages: str) -> dict[str, Any]:
    """The machine and the versions, for `Certificate`; those of `packages` too."""
    versions = {"python": platform.python_version(), "jaxretr": __version__}
    versions |= {name: importlib.metadata.version(name) for name in (*packages, "numpy")}
    return {"machine": cpu_name(), "threads": cpu_threads(), "versions": versions}


def certify(
    settings: Sequence[S],
    at: Callable[[S], Search],
    truth: GroundTruth,
    k: int,
    *,
    stand_ins: bool,
    packages: Sequence[str],
    timed: Callable[[S], Search] | None = None,
    **facts: Any,
) -> Certificate:
    """Measure each setting on questions that tuned nothing.

    Args:
      settings: one for each target.
      at: the search with a setting.
      truth: the certification questions.
      k: the depth of the targets.
      stand_ins: whether the questions are passages of the index.
      packages: Python packages whose versions the certificate states.
      timed: the search whose times are taken, if other than that of `at`.
      **facts: other fields of `Certificate`.
    """
    recalls = [measure_recalls(at(setting), truth, (k, *DEPTHS)) for setting in settings]
    lines = [
        Line(
            target=setting.target,
            tuned_k=k,
            reached=setting.reached,
            recalls=of_setting,
            **measure_speed((timed or at)(setting), truth.vectors, k),
            **setting.knobs(),
        )
        for setting, of_setting in zip(settings, recalls, strict=True)
    ]
    return Certificate(
        questions=len(truth.vectors),
        of="passages" if stand_ins else "questions",
        lines=tuple(lines),
        **machine_facts(*packages),
        **facts,
    )
