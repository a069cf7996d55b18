"""The questions that an approximate index is tuned on, the others that certify it, and their exact neighbours."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxretr.data.arrays import read_array
from jaxretr.indexes.measuring import GroundTruth
from jaxretr.runtime.errors import UserError

log = logging.getLogger(__name__)

VECTORS = "questions.npy"
QUESTIONS = "questions.jsonl"

# Neighbours that are noted of each certification question.
DEPTH = 100

# Questions of each half: the folder holds their vectors.
MOST = 2000


@dataclass(frozen=True)
class Questions:
    """The questions that an index is tuned on, and after them those that certify it.

    Attributes:
      vectors: float32 [Q, D].
      tuning: the number of questions, from the first, that are for tuning; the others certify.
      stand_ins: whether the questions are passages of the index.
      own_ids: the id of the passage that each question is, or None.
      neighbours: for each certification question the ids of its exact neighbours, the best first; empty before
        `with_neighbours`.
    """

    vectors: NDArray[np.float32]
    tuning: int
    stand_ins: bool
    own_ids: tuple[str | None, ...]
    neighbours: tuple[tuple[str, ...], ...] = ()

    def own_rows(self, row_of: Mapping[str, int], part: slice) -> NDArray[np.int64]:
        """The rows that some of the questions are themselves, -1 for none."""
        return np.array([-1 if name is None else row_of.get(name, -1) for name in self.own_ids[part]], np.int64)

    @property
    def tune(self) -> slice:
        """The slice of the tuning questions."""
        return slice(0, self.tuning)

    @property
    def certify(self) -> slice:
        """The slice of the certification questions."""
        return slice(self.tuning, len(self.vectors))

    def certifying(self, most: int | None = None) -> "Questions":
        """The certification questions alone, at most the first `most`."""
        part = slice(self.tuning, None if most is None else self.tuning + most)
        return replace(
            self, vectors=self.vectors[part], tuning=0, own_ids=self.own_ids[part], neighbours=self.neighbours[:most]
        )

    def as_noted(self, row_of: Mapping[str, int]) -> GroundTruth:
        """The certification questions with the neighbours that were noted; -2 for one that is no longer there."""
        exact = [[row_of.get(name, -2) for name in names] for names in self.neighbours]
        part = self.certify
        return GroundTruth(self.vectors[part], np.array(exact, np.int64), self.own_rows(row_of, part))


def split(questions: np.ndarray, seed: int, most: int = MOST) -> Questions:
    """Draw the questions that tune and those that certify: half each, at most `most`."""
    if len(questions) < 2:
        raise UserError(f"questions: {len(questions)} is too few; one half is tuned on and the other certifies")
    order = np.random.default_rng(seed).permutation(len(questions))
    half = min(len(order) // 2, most)
    numbers = order[: 2 * half]
    return Questions(np.ascontiguousarray(questions[numbers]), half, False, (None,) * len(numbers))


def stand_ins(
    ids: Sequence[str], vector: Callable[[int], NDArray[np.float32]], seed: int, most: int = MOST // 2
) -> Questions:
    """Passages of the index as questions, at most `most` in each half, which do not count as their own neighbours.

    Args:
      ids: the ids of the N passages.
      vector: the vector of a row, float32 [D].
    """
    count = min(len(ids) // 2, most) * 2
    numbers = list(map(int, np.random.default_rng(seed).choice(len(ids), count, replace=False)))
    log.warning("no questions are given: tuned and certified on passages, which are easier; real questions find less")
    return Questions(np.stack([vector(row) for row in numbers]), count // 2, True, tuple(ids[row] for row in numbers))


def with_exact(
    vectors: NDArray[np.float32], own_rows: NDArray[np.int64], blocks: Iterable[np.ndarray], k: int, n: int
) -> GroundTruth:
    """Find the k exact neighbours of questions (fewer if there are no more) in one pass over the N vectors."""
    from jaxretr.indexes.exact import search_blocks

    depth = min(k + int((own_rows >= 0).any()), n)
    return without_own(vectors, search_blocks(blocks, vectors, depth)[1], own_rows)


def without_own(vectors: NDArray[np.float32], rows: NDArray[np.int64], own_rows: NDArray[np.int64]) -> GroundTruth:
    """Leave each question's own row out of its exact neighbours, which are one more than needed if any is a row."""
    if (own_rows >= 0).any():
        depth = rows.shape[1] - 1
        rows = np.array(
            [
                [row for row in neighbours if row != itself][:depth]
                for neighbours, itself in zip(rows, own_rows, strict=True)
            ]
        )
    return GroundTruth(vectors, rows, own_rows)


def with_neighbours(questions: Questions, exact: NDArray[np.int64], ids: list[str]) -> Questions:
    """Note the exact neighbours of the certification questions by their ids."""
    return replace(questions, neighbours=tuple(tuple(ids[row] for row in rows) for rows in exact.tolist()))


def write(folder: Path, questions: Questions) -> None:
    """Write questions.npy and questions.jsonl."""
    np.save(folder / VECTORS, questions.vectors)
    with open(folder / QUESTIONS, "w", encoding="utf-8") as file:
        for number, own_id in enumerate(questions.own_ids):
            line: dict[str, object] = {"use": "tune" if number < questions.tuning else "certify"}
            if own_id is not None:
                line["own"] = own_id
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
        own_ids = tuple(line.get("own") for line in lines)
        neighbours = tuple(tuple(line["neighbours"]) for line in lines[tuning:] if "neighbours" in line)
        if len(vectors) != len(lines) or len(neighbours) not in (0, len(lines) - tuning):
            raise ValueError(f"{len(lines)} lines for vectors {list(vectors.shape)}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); build the index again") from error
    return Questions(vectors, tuning, any(name is not None for name in own_ids), own_ids, neighbours)
