"""The recall certificate of an approximate index: the share of exact search's hits that it finds, and how fast.

A kind of index says which settings reach the targets, and how it searches with one of them; all else is here.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from jaxretr.config import ENGINE_LABELS, EngineName
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.json_dataclass import dataclass_from
from jaxretr.runtime.storage.files import atomic_write, write_json
from jaxretr.runtime.storage.sealed_folder import read_object

CERTIFICATE = "certificate.json"
TABLE = "certificate.md"

# Two-sided 95%.
_Z = 1.96

# One-sided 99%, times the root of 2: as many other questions, whose mean recall varies as much, must show the target as
# well. Of many settings the fastest that seems good enough is one that was lucky, so a small share of misses remains.
_CERTAIN_Z = 2.326 * 2**0.5

# Rungs of a ladder of settings, each this many times the one before.
_STEP = 1.35

# ---- settings --------------------------------------------------------------------------------------------------------


# Fields of a kind's settings, which are fields of `Line` too.
_KNOBS = ("leaves", "candidates", "width")


@dataclass(frozen=True, kw_only=True)
class Target:
    """A target of recall; the class of a kind's settings adds what reaches it.

    Attributes:
      target: recall@k asked for.
      reached: whether the tuning questions showed it with 99% certainty.
    """

    target: float
    reached: bool

    def knobs(self) -> dict[str, int]:
        """The values that reach the target, by their names in `Line`."""
        values = {name: getattr(self, name, None) for name in _KNOBS}
        return {name: value for name, value in values.items() if value is not None}


S = TypeVar("S", bound=Target)


def check_targets(targets: float | Sequence[float]) -> tuple[float, ...]:
    """The targets as a tuple, each once.

    Raises:
      UsageError: one outside (0, 1], or none.
    """
    values: Any = [targets] if isinstance(targets, str) or not isinstance(targets, Iterable) else targets
    unique = tuple(dict.fromkeys(values))
    numbers = all(isinstance(each, int | float | np.floating) and not isinstance(each, bool) for each in unique)
    if not unique or not numbers or not all(0 < target <= 1 for target in unique):
        raise UsageError(f"target_recall={targets}: give a share above 0 and at most 1, for instance 0.95")
    return unique


def of_target(settings: Sequence[S], target: float | None, index: str, remedy: str) -> S:
    """The setting for a target; the first one by default.

    Args:
      settings: one for each target of the index.
      target: one of these targets.
      index, remedy: the name of the index and what can be done, for the error.

    Raises:
      UserError: a target that was not tuned for.
    """
    setting = settings[0] if target is None else next((each for each in settings if each.target == target), None)
    if setting is None:
        listing = ", ".join(f"{each.target:g}" for each in settings)
        raise UsageError(f"target_recall={target}: {index} was built for {listing}; {remedy}")
    return setting


def ladder(first: int, last: int) -> list[int]:
    """Whole numbers from first to last, each about a third more than the one before."""
    rungs = [first]
    while rungs[-1] < last:
        rungs.append(min(last, max(rungs[-1] + 1, round(rungs[-1] * _STEP))))
    return rungs


# ---- the certificate -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Recall:
    """Recall at some depth, over the certification questions, with its 95% interval (Wilson)."""

    k: int
    recall: float
    low: float
    high: float

    @classmethod
    def of(cls, recalls: NDArray[np.float64], k: int) -> "Recall":
        """The mean of the questions' recalls [B]."""
        low, high = recall_bounds(recalls)
        return cls(k=k, recall=float(recalls.mean()), low=low, high=high)

    def __str__(self) -> str:
        return f"{self.recall:.4f} ({self.low:.4f} to {self.high:.4f})"


@dataclass(frozen=True, kw_only=True)
class Line(Target):
    """The recall and the speed of one target's setting.

    Attributes:
      tuned_k: the depth of the target.
      recalls: the recalls at `tuned_k` (first), 10 and 100.
      batch_per_second: questions, one thread, all in one batch, `tuned_k` results.
      single_per_second: questions one by one, one thread.
      p50_ms, p99_ms: the median and the 99th percentile of the times of single questions, in milliseconds.
      leaves, candidates: of a `ScannIndex`: leaves that are searched, 0 where there is no tree, and passages that are
        scored exactly for each question, at `tuned_k` results.
      width: of a database: candidates that the graph's search holds.
    """

    tuned_k: int
    recalls: tuple[Recall, ...]
    batch_per_second: float
    single_per_second: float
    p50_ms: float
    p99_ms: float
    leaves: int | None = None
    candidates: int | None = None
    width: int | None = None


@dataclass(frozen=True, kw_only=True)
class FilterLine:
    """The recall and the speed of one target's setting where a filter allows a share of the rows.

    Attributes:
      target: see `Line`.
      share: the share of the rows that are allowed.
      leaves: leaves that are searched.
      random, related, unrelated: the recall with each kind of filter; see certified/filtering.py.
      ms, exact_ms: milliseconds of a single question with one thread, and if every allowed row were scored.
    """

    target: float
    share: float
    leaves: int
    random: Recall
    related: Recall
    unrelated: Recall
    ms: float
    exact_ms: float

    @property
    def recalls(self) -> tuple[Recall, ...]:
        """The recalls with each kind of filter."""
        return self.random, self.related, self.unrelated


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A recall certificate: the recall and speed that were measured for each target, as certificate.json holds them.

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
      index: of a database: the kind of index and its parameters, for people.
      leaves, train_rows: of a `ScannIndex`: leaves of the tree, 1 where there is none, and passages that the tree and the
        codes were learnt from.
      engine: of a `ScannIndex`: the engine that proposes the candidates; None in those that know ScaNN alone.
      filters: of a `ScannIndex`: for each target the shares of allowed rows with which the engine is asked; with smaller
        ones every allowed row is scored.
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
    index: str | None = None
    leaves: int | None = None
    train_rows: int | None = None
    engine: EngineName | None = None
    filters: tuple[FilterLine, ...] | None = None

    def description(self) -> str:
        """Describe the index in words, for people."""
        if self.index is not None:
            return self.index
        if not self.train_rows:
            return "every passage is scored"
        tree = f"a tree of {self.leaves:,} leaves" if (self.leaves or 1) > 1 else "no tree"
        return f"{ENGINE_LABELS[self.engine or 'scann']} with {tree}, learnt from {self.train_rows:,} passages"


# Names of the fields of one kind of index, which the JSON of another one lacks.
_OF_A_KIND = {*_KNOBS, "index", "train_rows", "engine", "filters"}


def as_dict(value: Any) -> dict[str, Any]:
    """A certificate, or a dataclass that holds one, for JSON: without the fields of other kinds of index."""

    def known(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: each for name, each in pairs if each is not None or name not in _OF_A_KIND}

    return asdict(value, dict_factory=known)


def write(folder: Path, certificate: Certificate) -> None:
    """Write certificate.json and certificate.md."""
    write_json(folder / CERTIFICATE, as_dict(certificate), indent=1, ensure_ascii=False)
    with atomic_write(folder / TABLE) as file:
        file.write(table(certificate))


def read(folder: Path) -> Certificate:
    """Read certificate.json.

    Raises:
      UserError: it is missing or broken.
    """
    path = folder / CERTIFICATE
    return dataclass_from(Certificate, read_object(path, "build the index again"), str(path))


def table(certificate: Certificate) -> str:
    """The certificate for people, in Markdown."""
    c = certificate
    of = "questions" if c.of == "questions" else "passages of the index that stood in for questions"
    names = [f"recall@{recall.k} (95% interval)" for recall in c.lines[0].recalls] if c.lines else []
    knobs = list(c.lines[0].knobs()) if c.lines else []
    rows = [
        [
            f"{line.target:g} @{line.tuned_k}" + ("" if line.reached else " not reached"),
            *map(str, line.recalls),
            *("-" if name == "leaves" and not value else f"{value}" for name, value in line.knobs().items()),
            *(f"{value:,.0f}" for value in (line.batch_per_second, line.single_per_second)),
            *(f"{value:.2f}" for value in (line.p50_ms, line.p99_ms)),
        ]
        for line in c.lines
    ]
    text = [
        f"{c.rows:,} passages of {c.dim} dimensions{f', {c.model}' if c.model else ''}; {c.description()} (seed {c.seed}).",
        f"Measured on {c.questions:,} {of}, none of which the settings were tuned on, with one thread of {c.threads} "
        f"of {c.machine}; {', '.join(f'{name} {version}' for name, version in c.versions.items())}.",
    ]
    if c.of != "questions":
        text.append("Real questions are farther from the passages, and recall may be lower: give some.")
    if c.stale:
        text.append("STALE: passages were added or deleted since this was measured.")
    lines = _markdown(["target", *names, *knobs, "batched/s", "single/s", "p50 ms", "p99 ms"], rows)
    return "\n".join(["# Recall certificate", "", *text, "", *lines, *_of_filters(c)]) + "\n"


def _of_filters(certificate: Certificate) -> list[str]:
    if not certificate.filters:
        return ["", "With a filter every allowed passage is scored."] if certificate.train_rows else []
    rows = [
        [
            f"{line.target:g} @{line.random.k}",
            f"{line.share:.1%}",
            *map(str, line.recalls),
            f"{line.leaves or '-'}",
            *(f"{value:.2f}" for value in (line.ms, line.exact_ms)),
        ]
        for line in certificate.filters
    ]
    names = [f"{kind} (95% interval)" for kind in ("random", "related", "unrelated")]
    return [
        "",
        "With a filter, recall of what it allows; where it allows less than is listed, every allowed passage is scored.",
        "The filters allow random passages, or those nearest to a passage: for questions near it (related) and for any",
        "(unrelated).",
        "",
        *_markdown(["target", "allowed", *names, "leaves", "ms", "ms if all are scored"], rows),
    ]


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]]


# ---- certainty -----------------------------------------------------------------------------------------------------


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


def certain_recall(recalls: NDArray[np.float64], k: int) -> float:
    """The recall@k that as many other questions would reach with 99% certainty.

    Args:
      recalls: the recall of each tuning question.
    """
    # Counts one more question that missed a neighbour, because it proves little that few questions found all of them.
    return recall_bounds(np.append(recalls, 1 - 1 / k), _CERTAIN_Z)[0]
