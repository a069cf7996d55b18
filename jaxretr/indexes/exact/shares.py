"""The best hits of all rows, from processes that each searched rows of their own.

No process reads another's embeddings or ids: k scores and rows a question go round, and then the ids of those that won.
"""

from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxretr.indexes.topk import NO_ROW

# Hits of a process that go round at a time: some MB from each.
_HITS = 2**16


def merge_hits(
    scores: np.ndarray, rows: np.ndarray, name: Callable[[int], str], k: int
) -> tuple[np.ndarray, list[list[str]]]:
    """Put the hits of all processes together; every process must call this, with hits of the same questions.

    Args:
      scores: float32 [B, k'], the best of this process's rows, descending; k' is at most k, and each process's own.
      rows: int [B, k'], their numbers among the rows of all processes; NO_ROW behind a question's last hit.
      name: the id of one of this process's rows by that number.
      k: results per question.

    Returns:
      scores float32 [B, k''], descending, and the ids of the hits, the same in every process. Equal scores are ordered
      by row, the lowest first. k'' is k, or the number of hits that all processes have together if that is less.
    """
    if jax.process_count() == 1:
        missing_row = int(NO_ROW)
        return scores, [[name(row) for row in question_rows if row != missing_row] for question_rows in rows.tolist()]
    missing = ((0, 0), (0, k - scores.shape[1]))
    scores = np.pad(scores, missing, constant_values=-np.inf)
    rows = np.pad(rows, missing, constant_values=NO_ROW).astype(np.int32)
    step = max(1, _HITS // k)
    merged = [
        _merge(scores[start : start + step], rows[start : start + step], name, k)
        for start in range(0, len(scores), step)
    ]
    count = max((len(names) for _, ids in merged for names in ids), default=0)
    best = [part[:, :count] for part, _ in merged]
    return np.concatenate([np.empty((0, count), np.float32), *best]), [names for _, ids in merged for names in ids]


def _merge(
    scores: np.ndarray, rows: np.ndarray, name: Callable[[int], str], k: int
) -> tuple[np.ndarray, list[list[str]]]:
    """Merge the processes' hits [b, k] of some questions; missing ones are -inf and NO_ROW."""
    # [b, processes * k]: each process's hits of a question one behind the other, so that order // k is the process.
    all_scores, all_rows = (
        np.moveaxis(np.asarray(part), 0, 1).reshape(len(scores), -1)
        for part in multihost_utils.process_allgather((scores, rows))
    )
    order = np.lexsort((all_rows, -all_scores), axis=-1)[:, :k]
    rows = np.take_along_axis(all_rows, order, axis=1)
    is_hit = rows != NO_ROW
    owners = (order // k)[is_hit]
    ids = iter(_names(owners, rows[is_hit], name))
    return np.take_along_axis(all_scores, order, axis=1), [[next(ids) for _ in range(n)] for n in is_hit.sum(axis=1)]


def _names(owners: np.ndarray, rows: np.ndarray, name: Callable[[int], str]) -> list[str]:
    """The ids of rows [n], each of which the process `owners` [n] names."""
    mine = [name(row).encode() for row in rows[owners == jax.process_index()].tolist()]
    longest = np.max(multihost_utils.process_allgather(np.int32(max(map(len, mine), default=0))))
    most = np.bincount(owners, minlength=jax.process_count()).max()
    # Every process sends arrays of one shape, its ids as rows of bytes.
    sent = np.zeros((most, longest), np.uint8)
    lengths = np.zeros(most, np.int32)
    for place, text in enumerate(mine):
        sent[place, : len(text)], lengths[place] = np.frombuffer(text, np.uint8), len(text)
    texts, lengths = (np.asarray(part) for part in multihost_utils.process_allgather((sent, lengths)))
    process_names = [iter(zip(*each, strict=True)) for each in zip(texts, lengths, strict=True)]
    return [text[:length].tobytes().decode() for text, length in (next(process_names[owner]) for owner in owners)]
