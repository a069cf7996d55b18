"""Golden hits: hits that exact search over an exported index must find for a few questions.

golden_hits.json holds the questions with the ids and scores of their best passages, golden_questions.npy the questions'
vectors, so that verifying the index needs no model.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import numpy as np

from jaxretr.data.arrays import read_array, write_npy
from jaxretr.embeddings import golden
from jaxretr.indexes.exact import search_blocks
from jaxretr.indexes.source import rebatched
from jaxretr.models.encode import without_truncation_warnings
from jaxretr.models.text_encoder import TextEncoder
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.files import atomic_write, write_json
from jaxretr.runtime.storage.sealed_folder import read_object

HITS = "golden_hits.json"
VECTORS = "golden_questions.npy"
TOP = 10

# Tolerance as a share of a question's largest score: some hundred roundings of float32, as by another order of sums.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Hits:
    """The best passages of each question: ids, and their scores, descending."""

    ids: list[list[str]]
    scores: list[list[float]]


def questions(encoder: TextEncoder) -> np.ndarray:
    """The vectors of the golden questions, float32 [n, D]."""
    with jax.default_matmul_precision("highest"), without_truncation_warnings():
        return encoder.encode_queries(list(golden.QUESTIONS), progress=False)


def exact(pieces: Iterable[np.ndarray], ids: list[str], vectors: np.ndarray, k: int = TOP) -> Hits:
    """Search exactly.

    Args:
      pieces: the passages' vectors, float32 [n, D]; there may be none.
      ids: the passages' ids; they are read after the pieces.
      vectors: the questions' vectors, float32 [B, D].
    """
    blocks = rebatched(pieces)
    first = next(blocks, None)
    if first is None:
        return Hits([[] for _ in vectors], [[] for _ in vectors])

    def all_blocks():
        yield first
        yield from blocks

    with jax.default_matmul_precision("highest"):
        scores, rows = search_blocks(all_blocks(), vectors, k)
    return Hits([[ids[row] for row in found] for found in rows.tolist()], scores.tolist())


def write(folder: Path, vectors: np.ndarray, hits: Hits) -> None:
    """Write both files."""
    with atomic_write(folder / VECTORS, "wb") as file:
        write_npy(file, vectors)
    write_json(folder / HITS, {"questions": golden.QUESTIONS, **asdict(hits)}, ensure_ascii=False, indent=1)


def read(folder: Path) -> tuple[np.ndarray, Hits]:
    """Read the questions' vectors, float32 [n, D], and their hits.

    Raises:
      UserError: a file is missing or broken.
    """
    vectors = read_array(folder / VECTORS, np.float32, (None, None), "export again", mapped=False)
    content = read_object(folder / HITS, "export again")
    try:
        hits = Hits(content["ids"], content["scores"])
        if not len(vectors) == len(hits.ids) == len(hits.scores):
            raise ValueError("other numbers of questions in the two files")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / HITS}: cannot be read ({error}); export again") from error
    return vectors, hits


def difference(found: Hits, expected: Hits) -> str:
    """Describe how hits differ from those expected; "" if only passages of equal scores do."""
    wrong = 0
    for ids, scores, true_ids, true_scores in zip(found.ids, found.scores, expected.ids, expected.scores, strict=True):
        allowed = TOLERANCE * max((abs(score) for score in true_scores), default=0.0)
        if len(scores) != len(true_scores) or not np.allclose(scores, true_scores, rtol=0.0, atol=allowed):
            wrong += 1
            continue
        # At the end of the list, any of several passages with the same score may appear.
        missing = set(true_ids) - set(ids)
        last = true_scores[-1] if true_scores else 0.0
        wrong += any(
            name in missing and score > last + allowed for name, score in zip(true_ids, true_scores, strict=True)
        )
    return f"{wrong} of {len(expected.ids)} golden questions find other passages or scores" if wrong else ""
