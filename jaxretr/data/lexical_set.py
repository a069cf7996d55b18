"""Training sets of ids for a retriever that imitates another ranking (SPAR, Chen et al. 2022).

A folder contains meta.json, the queries (queries.bin, queries-offsets.npy), sources.npy (int32 [Q], the row of the passage
that a query is a sentence of, -1 for a given query), and for every teacher teacher-00.npy (int32 [Q, P + M]: the
rows of its P first passages, then of the M at the negative ranks; -1 if it found none) and teacher-00-scores.npy
(float32, its scores; 0 there). Everything is mapped into memory. meta.json is written last.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.data.arrays import read_array, write_array
from jaxretr.data.mapped_texts import QueryStore, write_texts
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.storage.files import atomic_write, plain_number
from jaxretr.runtime.storage.sealed_folder import is_described, read_description

META = "meta.json"
SOURCES = "sources.npy"
ROWS, SCORES = "rows.npy", "scores.npy"

DEV = "dev"
"""The folder of the held-out queries, a set inside the set."""

_FORMAT = "jaxretr-lexical"
_VERSION = 1
_AGAIN = "give a folder that `jaxretr mine lexical` wrote, or make the set again with it"

# Queries written at a time.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Selection:
    """The ranks that are positives, and those that are negatives.

    Attributes:
      positives: P, ranks 1 to P.
      first_negative, last_negative: the ranks of the M negatives, inclusive.
    """

    positives: int = 10
    first_negative: int = 46
    last_negative: int = 50

    def __post_init__(self) -> None:
        if self.positives < 1:
            raise UsageError(f"at least 1 positive is required, not {self.positives}")
        if not self.positives < self.first_negative <= self.last_negative:
            raise UsageError(
                f"the negative ranks {self.first_negative}:{self.last_negative} must come after the positive ones, "
                f"1:{self.positives}"
            )

    @property
    def negatives(self) -> int:
        """The number of negatives, M."""
        return self.last_negative - self.first_negative + 1

    def cut(self, ranked: np.ndarray, missing: float) -> np.ndarray:
        """Return the columns [B, P + M] of rankings [B, K], filled up with `missing`."""
        lacking = max(0, self.last_negative - ranked.shape[1])
        ranked = np.pad(ranked, ((0, 0), (0, lacking)), constant_values=missing)
        negatives = ranked[:, self.first_negative - 1 : self.last_negative]
        return np.concatenate([ranked[:, : self.positives], negatives], axis=1)


@dataclass(frozen=True)
class Ranking:
    """A teacher's hits for all queries.

    Attributes:
      name: the teacher's name.
      rows: int32 [Q, K], best first, -1 after the last passage found.
      scores: float32 [Q, K], descending; 0 where the row is -1.
    """

    name: str
    rows: np.ndarray
    scores: np.ndarray

    @classmethod
    def open(cls, name: str, folder: Path, shape: tuple[int, int]) -> "Ranking":
        """Map the files rows.npy and scores.npy of a folder.

        Raises:
          UserError: one is missing or damaged.
        """
        remedy = f"remove {folder} and run the command again"
        rows, scores = (
            read_array(folder / file, dtype, shape, remedy) for file, dtype in ((ROWS, np.int32), (SCORES, np.float32))
        )
        return cls(name, rows, scores)


@dataclass(frozen=True)
class Teacher:
    """A teacher's passages for the queries of a set, mapped into memory.

    Attributes:
      name: its name on the command line.
      rows: int32 [Q, P + M], the positives (best first), then the negatives; -1 if there are too few.
      scores: float32 [Q, P + M]; 0 if the row is -1.
      num_positives: P.
    """

    name: str
    rows: np.ndarray
    scores: np.ndarray
    num_positives: int

    @property
    def positives(self) -> np.ndarray:
        """The rows of the positives, int32 [Q, P]."""
        return self.rows[:, : self.num_positives]

    @property
    def negatives(self) -> np.ndarray:
        """The rows of the negatives, int32 [Q, M]."""
        return self.rows[:, self.num_positives :]


@dataclass(frozen=True, eq=False, repr=False)
class LexicalSet:
    """A set that is open for reading. A pickle of it contains the folder's name alone.

    Attributes:
      folder: its folder.
      queries: Q texts.
      sources: int32 [Q], the row of the passage that each is a sentence of; -1 for a given query.
      teachers: at least one; each has a positive and a negative for every query.
      corpus_fingerprint: `Corpus.fingerprint()` of the passages that the rows point to.
      corpus_rows: N.
      settings: the settings that it was made with.
      counts: "queries", "dropped" (those without a positive or a negative), and "dropped_by_teacher".
    """

    folder: Path
    queries: QueryStore
    sources: np.ndarray
    teachers: list[Teacher]
    corpus_fingerprint: str
    corpus_rows: int
    settings: dict[str, Any]
    counts: dict[str, Any]

    def __len__(self) -> int:
        return len(self.queries)

    def __repr__(self) -> str:
        teachers = ", ".join(teacher.name for teacher in self.teachers)
        return (
            f"LexicalSet({str(self.folder)!r}, {len(self)} queries, {self.corpus_rows} passages, teachers: {teachers})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return LexicalSet.open, (self.folder,)

    @classmethod
    def open(cls, folder: str | Path) -> "LexicalSet":
        """Open a set.

        Raises:
          UserError: there is none, it has another version, or a file is missing or damaged.
        """
        folder = Path(folder).expanduser()
        meta = read_description(folder / META, (_FORMAT, _VERSION), _AGAIN)
        try:
            names, queries = list(meta["teachers"]), int(meta["counts"]["queries"])
            positives, negatives = int(meta["positives"]), int(meta["negatives"])
            fingerprint, rows = str(meta["corpus"]["fingerprint"]), int(meta["corpus"]["rows"])
            settings, counts = dict(meta["settings"]), dict(meta["counts"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder / META}: lacks or has a wrong value ({error}); {_AGAIN}") from error
        store = QueryStore(folder)
        if len(store) != queries:
            raise UserError(f"{folder}: contains {len(store)} queries, but {META} states {queries}; {_AGAIN}")
        shape = (queries, positives + negatives)
        teachers = [
            Teacher(
                str(name),
                _mapped(folder / f"{_teacher(number)}.npy", shape, np.int32),
                _mapped(folder / f"{_teacher(number)}-scores.npy", shape, np.float32),
                positives,
            )
            for number, name in enumerate(names)
        ]
        sources = _mapped(folder / SOURCES, (queries,), np.int32)
        return cls(folder, store, sources, teachers, fingerprint, rows, settings, counts)

    @classmethod
    def write(
        cls,
        folder: str | Path,
        queries: Sequence[str],
        sources: np.ndarray,
        rankings: Sequence[Ranking],
        *,
        selection: Selection,
        corpus_fingerprint: str,
        corpus_rows: int,
        settings: dict[str, Any],
        wanted: np.ndarray | None = None,
    ) -> "LexicalSet":
        """Write a set of the queries for which every teacher has a positive and a negative; return it, open.

        Args:
          folder: created if missing; a set in it is replaced, other files are left alone.
          queries: Q texts.
          sources: int32 [Q].
          corpus_fingerprint: the fingerprint of the N passages that the rows point to.
          corpus_rows: N.
          settings: recorded in meta.json.
          wanted: bool [Q], the queries to consider; all by default.

        Raises:
          UserError: no query is left, or a file cannot be written.
        """
        folder = Path(folder).expanduser()
        wanted = np.ones(len(queries), bool) if wanted is None else wanted
        # `kept` [Q]: the queries for which every teacher has a positive and a negative.
        usable = [usable_queries(ranking, selection) for ranking in rankings]
        kept = wanted & np.logical_and.reduce(usable)
        if not kept.any():
            raise UserError(
                f"{folder}: no query has both a positive and a passage at ranks {selection.first_negative}:"
                f"{selection.last_negative} of every teacher; look for negatives at better ranks, or add passages"
            )
        # While its files are replaced the folder is not a set.
        (folder / META).unlink(missing_ok=True)
        numbers = np.flatnonzero(kept)
        with write_texts(folder) as store:
            for number in numbers:
                store.append(queries[int(number)])
        write_array(folder / SOURCES, numbers.shape, np.int32, (sources[block] for block in _blocks(numbers)))
        shape = (len(numbers), selection.positives + selection.negatives)
        for number, ranking in enumerate(rankings):
            path = folder / f"{_teacher(number)}.npy"
            write_array(path, shape, np.int32, (_cut(ranking, selection, block)[0] for block in _blocks(numbers)))
            path = folder / f"{_teacher(number)}-scores.npy"
            write_array(path, shape, np.float32, (_cut(ranking, selection, block)[1] for block in _blocks(numbers)))
        meta = {
            "format": _FORMAT,
            "version": _VERSION,
            "teachers": [ranking.name for ranking in rankings],
            "positives": selection.positives,
            "negatives": selection.negatives,
            "counts": {
                "queries": len(numbers),
                "dropped": int(wanted.sum()) - len(numbers),
                "dropped_by_teacher": [int((wanted & ~of_teacher).sum()) for of_teacher in usable],
            },
            "corpus": {"fingerprint": corpus_fingerprint, "rows": corpus_rows},
            "settings": settings,
        }
        with atomic_write(folder / META) as file:
            file.write(json.dumps(meta, indent=1, ensure_ascii=False, default=plain_number) + "\n")
        return cls.open(folder)


def is_lexical_set(folder: str | Path) -> bool:
    """Whether a folder's meta.json is that of a lexical set of any version."""
    return is_described(Path(folder).expanduser() / META, _FORMAT)


def usable_queries(ranking: Ranking, selection: Selection) -> np.ndarray:
    """Return the mask of the queries for which a teacher has at least one positive and one negative, bool [Q]."""
    usable = np.empty(len(ranking.rows), bool)
    for block in _slices(len(usable)):
        found = selection.cut(ranking.rows[block], -1) >= 0
        usable[block] = found[:, : selection.positives].any(axis=1) & found[:, selection.positives :].any(axis=1)
    return usable


def _cut(ranking: Ranking, selection: Selection, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = selection.cut(ranking.rows[numbers], -1)
    return rows, np.where(rows >= 0, selection.cut(ranking.scores[numbers], 0), 0)


def _slices(length: int) -> Iterator[slice]:
    return (slice(start, min(start + _BLOCK, length)) for start in range(0, length, _BLOCK))


def _blocks(numbers: np.ndarray) -> Iterable[np.ndarray]:
    return (numbers[block] for block in _slices(len(numbers)))


def _teacher(number: int) -> str:
    return f"teacher-{number:02d}"


def _mapped(path: Path, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Map an array; a plain array over the map, which is faster to index."""
    return np.asarray(read_array(path, dtype, shape, _AGAIN))
