"""The recall certificate of an approximate index: the share of exact search's hits that it finds, and how fast.

The parts that belong to one kind of index are in files of their own: scann/certificate.py, engine_certificate.py.
"""

import importlib.metadata
import math
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from jaxretr.runtime.json_dataclass import dataclass_from
from jaxretr.runtime.parallel.machine import cpu_name, cpu_threads
from jaxretr.runtime.storage.files import atomic_write, write_json
from jaxretr.runtime.storage.sealed_folder import read_object
from jaxretr.version import __version__

CERTIFICATE = "certificate.json"
TABLE = "certificate.md"

DEPTHS = (10, 100)

# Two-sided 95%.
_Z = 1.96

# One-sided 99%, times the root of 2: as many other questions, whose mean recall varies as much, must show the target as
# well. Of many settings the fastest that seems good enough is one that was lucky, so a small share of misses remains.
_CERTAIN_Z = 2.326 * 2**0.5

_SINGLES = 1000

# (questions [B, D], k, threads) -> scores [B, k] and rows int64 [B, k].
Search = Callable[[np.ndarray, int, int], tuple[np.ndarray, NDArray[np.int64]]]


@dataclass(frozen=True, kw_only=True)
class Recall:
    """Recall at some depth, over the certification questions, with its 95% interval (Wilson)."""

    k: int
    recall: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """The recall and the speed of one target's setting.

    Attributes:
      target: recall@`tuned_k` asked for.
      tuned_k: the depth of the target.
      reached: whether the tuning questions showed it with 99% certainty.
      recalls: the recalls at `tuned_k` (first), 10 and 100.
      batch_per_second: questions, one thread, all in one batch, `tuned_k` results.
      single_per_second: questions one by one, one thread.
      p50_ms, p99_ms: the median and the 99th percentile of the times of single questions, in milliseconds.
    """

    target: float
    tuned_k: int
    reached: bool
    recalls: tuple[Recall, ...]
    batch_per_second: float
    single_per_second: float
    p50_ms: float
    p99_ms: float

    def settings_cells(self) -> dict[str, str]:
        """The columns of `table` with the kind's own settings."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Certificate(ABC):
    """The contents of certificate.json.

    Attributes:
      questions: the number of certification questions, none of which the settings were tuned on.
      of: "questions", or "passages" where passages of the index stood in for them.
      rows, dim: N and D.
      seed: the seed of the split of the questions, and of other samples.
      model: the model that made the embeddings, where it is known.
      machine, threads: the machine on which the times were taken, and the number of its threads.
      versions: the versions of Python, jaxretr, numpy and the index's library.
      lines: one for each target.
      stale: rows were added or deleted since.
    """

    questions: int
    of: str
    rows: int
    dim: int
    seed: int
    model: str | None
    machine: str
    threads: int
    versions: dict[str, str]
    lines: tuple[Line, ...]
    stale: bool = False

    @abstractmethod
    def made(self) -> str:
        """Describe the index in words, for people."""

    def more(self) -> list[str]:
        """Lines that the table for people ends with."""
        return []


C = TypeVar("C", bound=Certificate)


def recall_bounds(recalls: NDArray[np.float64], z: float = _Z) -> tuple[float, float]:
    """Wilson's interval of a mean of recalls, each in [0, 1].

    The questions count for as many yes-or-no trials as would vary as much; where all have the same recall, for one
    each. So that all of few questions were answered perfectly proves little.

    Args:
      recalls: the recall of each question.
      z: the number of standard errors to either side; 1.96 for 95% between the ends.

    Returns:
      The lower and the upper end.
    """
    n, mean = float(len(recalls)), float(recalls.mean())
    variance, binary = float(recalls.var()), mean * (1 - mean)
    if variance > 0:
        n *= max(1.0, binary / variance)
    middle = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(max(0.0, binary / n + z * z / (4 * n * n)))
    return max(0.0, middle - half), min(1.0, middle + half)


def recall(found: NDArray[np.int64], exact: NDArray[np.int64], own: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """Compute the share of each question's k exact neighbours that was found.

    Args:
      found: rows [B, at least k], and one more where a question is a row itself; -1 for none.
      exact: rows [B, at least k], without the question's own.
      own: the row that a question is itself, which does not count, or -1, [B].
      k: depth.

    Returns:
      Float64 [B].
    """
    shares = np.empty(len(found))
    for question, (rows, wanted, itself) in enumerate(zip(found.tolist(), exact.tolist(), own.tolist(), strict=True)):
        kept = [row for row in rows if row != itself][:k]
        shares[question] = len(set(kept) & set(wanted[:k])) / len(wanted[:k])
    return shares


def certain_recall(recalls: NDArray[np.float64], k: int) -> float:
    """The recall@k that as many other questions would reach with 99% certainty.

    Args:
      recalls: the recall of each tuning question.
      k: depth.
    """
    # Counts one more question that missed a neighbour, because it proves little that few questions found all of them.
    return recall_bounds(np.append(recalls, 1 - 1 / k), _CERTAIN_Z)[0]


def measure_recalls(
    search: Search, questions: np.ndarray, exact: NDArray[np.int64], own: NDArray[np.int64], depths: Sequence[int]
) -> tuple[Recall, ...]:
    """Measure the recalls of a setting at some depths, with a search of its own for each depth."""
    found = []
    for k in dict.fromkeys(min(depth, exact.shape[1]) for depth in depths):
        rows = search(questions, k + int((own >= 0).any()), cpu_threads())[1]
        shares = recall(rows, exact, own, k)
        low, high = recall_bounds(shares)
        found.append(Recall(k=k, recall=float(shares.mean()), low=low, high=high))
    return tuple(found)


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


def write(folder: Path, certificate: Certificate) -> None:
    """Write certificate.json and certificate.md."""
    write_json(folder / CERTIFICATE, asdict(certificate), indent=1, ensure_ascii=False)
    with atomic_write(folder / TABLE) as file:
        file.write(table(certificate))


def read(folder: Path, kind: type[C]) -> C:
    """Read certificate.json.

    Args:
      folder: the folder that holds it.
      kind: the class of certificate to read.

    Raises:
      UserError: it is missing or broken.
    """
    path = folder / CERTIFICATE
    return dataclass_from(kind, read_object(path, "build the index again"), str(path))


def table(certificate: Certificate) -> str:
    """The certificate for people, in Markdown."""
    c = certificate
    of = "questions" if c.of == "questions" else "passages of the index that stood in for questions"
    names = [f"recall@{found.k} (95% interval)" for found in c.lines[0].recalls] if c.lines else []
    own = list(c.lines[0].settings_cells()) if c.lines else []
    head = ["target", *names, *own, "batched/s", "single/s", "p50 ms", "p99 ms"]
    rows = [
        [
            f"{line.target:g} @{line.tuned_k}" + ("" if line.reached else " not reached"),
            *(f"{found.recall:.4f} ({found.low:.4f} to {found.high:.4f})" for found in line.recalls),
            *line.settings_cells().values(),
            *(f"{value:,.0f}" for value in (line.batch_per_second, line.single_per_second)),
            *(f"{value:.2f}" for value in (line.p50_ms, line.p99_ms)),
        ]
        for line in c.lines
    ]
    text = [
        f"{c.rows:,} passages of {c.dim} dimensions{f', {c.model}' if c.model else ''}; {c.made()} (seed {c.seed}).",
        f"Measured on {c.questions:,} {of}, none of which the settings were tuned on, with one thread of {c.threads} "
        f"of {c.machine}; {', '.join(f'{name} {version}' for name, version in c.versions.items())}.",
    ]
    if c.of != "questions":
        text.append("Real questions are farther from the passages, and recall may be lower: give some.")
    if c.stale:
        text.append("STALE: passages were added or deleted since this was measured.")
    more = c.more()
    return (
        "\n".join(["# Recall certificate", "", *text, "", *markdown(head, rows), *([""] if more else []), *more]) + "\n"
    )


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    return ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]]
