"""The questions that an approximate index is tuned on, the others that certify it, and their exact neighbours."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from jaxretr.data.arrays import read_array
from jaxretr.runtime.errors import UserError

log = logging.getLogger(__name__)

VECTORS = "questions.npy"
QUESTIONS = "questions.jsonl"

# Neighbours that are noted of each certification question.
DEPTH = 100

# Questions of each half: the folder holds their vectors.
MOST = 2000


class Passages(Protocol):
    """The interface that `stand_ins` needs: an index, or the passages it is made of."""

    @property
    def ids(self) -> Sequence[str]: ...

    def __len__(self) -> int: ...

    def vector(self, row: int) -> NDArray[np.float32]:
        """The vector of a row, float32 [D]."""
        ...


@dataclass(frozen=True)
class Questions:
    """Q questions.

    Attributes:
      vectors: float32 [Q, D].
      tuning: the number of questions, from the first, that are for tuning; the others certify.
      stand_ins: whether the questions are passages of the index.
      own: the id of the passage that each question is, or None.
      neighbours: for each certification question the ids of its exact neighbours, the best first; empty before
        `with_neighbours`.
    """

    vectors: NDArray[np.float32]
    tuning: int
    stand_ins: bool
    own: tuple[str | None, ...]
    neighbours: tuple[tuple[str, ...], ...] = ()

    def own_rows(self, row_of: Mapping[str, int], part: slice) -> NDArray[np.int64]:
        """The rows that some of the questions are themselves, -1 for none."""
        return np.array([-1 if name is None else row_of.get(name, -1) for name in self.own[part]], np.int64)

    @property
    def tune(self) -> slice:
        """The tuning questions."""
        return slice(0, self.tuning)

    @property
    def certify(self) -> slice:
        """The certification questions."""
        return slice(self.tuning, len(self.vectors))


def split(questions: np.ndarray, seed: int, most: int = MOST) -> Questions:
    """Draw the questions that tune and those that certify: half each, at most `most`."""
    if len(questions) < 2:
        raise UserError(f"questions: {len(questions)} is too few; one half is tuned on and the other certifies")
    order = np.random.default_rng(seed).permutation(len(questions))
    half = min(len(order) // 2, most)
    kept = order[: 2 * half]
    return Questions(np.ascontiguousarray(questions[kept]), half, False, (None,) * len(kept))


def stand_ins(rows: Passages, seed: int, most: int = MOST // 2) -> Questions:
    """Passages of the index as questions, at most `most` in each half, which do not count as their own neighbours."""
    count = min(len(rows) // 2, most) * 2
    kept = list(map(int, np.random.default_rng(seed).choice(len(rows), count, replace=False)))
    vectors = np.stack([rows.vector(row) for row in kept])
    log.warning("no questions are given: tuned and certified on passages, which are easier; real questions find less")
    return Questions(vectors, count // 2, True, tuple(rows.ids[row] for row in kept))


def exact_rows(
    questions: NDArray[np.float32], own: NDArray[np.int64], blocks: Iterable[np.ndarray], k: int, n: int
) -> NDArray[np.int64]:
    """The rows of the exact neighbours [B, k or fewer], found in one pass over the vectors."""
    from jaxretr.indexes.exact import search_blocks

    extra = int((own >= 0).any())
    _, rows = search_blocks(blocks, questions, min(k + extra, n))
    if not extra:
        return rows
    kept = rows.shape[1] - 1
    return np.array([[row for row in found if row != itself][:kept] for found, itself in zip(rows, own, strict=True)])


def with_neighbours(questions: Questions, exact: NDArray[np.int64], ids: list[str]) -> Questions:
    """Note the exact neighbours of the certification questions by their ids."""
    return replace(questions, neighbours=tuple(tuple(ids[row] for row in found) for found in exact.tolist()))


def write(folder: Path, questions: Questions) -> None:
    """Write questions.npy and questions.jsonl."""
    np.save(folder / VECTORS, questions.vectors)
    with open(folder / QUESTIONS, "w", encoding="utf-8") as file:
        for number, own in enumerate(questions.own):
            line: dict[str, object] = {"use": "tune" if number < questions.tuning else "certify"}
            if own is not None:
                line["own"] = own
            if number >= questions.tuning and questions.neighbours:
                line["neighbours"] = questions.neighbours[number - questions.tuning]
            file.write(json.dumps(line) + "\n")


def read(folder: Path, dim: int) -> Questions:
    """Read the questions that `write` wrote.

    Raises:
      UserError: a file is missing or broken.
    """
    path = folder / QUESTIONS
    vectors = read_array(folder / VECTORS, np.float32, (None, dim), "build the index again", mapped=False)
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        tuning = sum(line["use"] == "tune" for line in lines)
        own = tuple(line.get("own") for line in lines)
        neighbours = tuple(tuple(line["neighbours"]) for line in lines[tuning:] if "neighbours" in line)
        if len(vectors) != len(lines) or len(neighbours) not in (0, len(lines) - tuning):
            raise ValueError(f"{len(lines)} lines for vectors {list(vectors.shape)}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); build the index again") from error
    return Questions(vectors, tuning, any(name is not None for name in own), own, neighbours)
