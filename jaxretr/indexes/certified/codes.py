"""The codes and the leaves of rows, by the tree and the codebook that ScaNN has learnt.

The codes are ScaNN's, made a few rows at a time. ScaNN itself makes them while it builds an index; when it saves one,
it writes the codebook once for each leaf, which takes more memory and time than the codes of a block of rows.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes.certified.learnt import Learnt, nearest
from jaxretr.runtime.parallel.machine import cpu_threads
from jaxretr.runtime.parallel.numba_loops import compiled

# Rows that a thread codes at a time.
_ROWS = 1024

# Rounds of coordinate descent, as in ScaNN; after them hardly a code changes.
_ROUNDS = 10


def codes_of(rows: NDArray[np.float32], learnt: Learnt) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return the codes of rows [n, D], uint8 [n, S], and their leaves, int32 [n]."""
    codes = np.empty((len(rows), len(learnt.codebook)), np.uint8)
    tokens = np.empty(len(rows), np.int32)

    def encode_part(start: int) -> None:
        part = slice(start, start + _ROWS)
        tokens[part] = nearest(rows[part], learnt.centres)
        _encode(rows[part], learnt.centres, tokens[part], learnt.codebook, learnt.threshold, codes[part])

    with ThreadPoolExecutor(cpu_threads()) as pool:
        list(pool.map(encode_part, range(0, len(rows), _ROWS)))
    return codes, tokens


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _encode(rows, centres, tokens, codebook, threshold, codes):
    """Write the codes of rows by the score-aware loss of Guo et al. (2020), equations 5 and 9, by coordinate descent.

    The error r of a row x, coded as its leaf's centre and the codes, costs eta |r along x|^2 + |r across x|^2, where eta
    = (D - 1) T^2 / (|x|^2 - T^2).
    """
    groups, count, width = codebook.shape
    dim = rows.shape[1]
    squares = np.empty((groups, count), np.float32)  # the square of a group's error, for each of its centres
    along = np.empty((groups, count), np.float32)  # the part of that error along the row
    nearest = np.empty(groups, np.float32)  # the smallest square of each group
    for n in range(len(rows)):
        row, centre, code = rows[n], centres[tokens[n]], codes[n]
        square = np.float32(0)
        for d in range(dim):
            square += row[d] * row[d]
        # Begin with the nearest centre of each group: `code` [S].
        scale = np.float32(1) / np.sqrt(square) if square > 0 else np.float32(0)
        for g in range(groups):
            for c in range(count):
                total, part = np.float32(0), np.float32(0)
                for w in range(min(width, dim - g * width)):
                    d = g * width + w
                    error = row[d] - centre[d] - codebook[g, c, w]
                    total += error * error
                    part += error * row[d]
                squares[g, c], along[g, c] = total, part * scale
            code[g] = np.argmin(squares[g])
            nearest[g] = squares[g, code[g]]
        if not threshold * threshold < square:  # no threshold, or a row so short that no score reaches it
            continue
        # `projection`: the part of the row's whole error along the row, with the codes so far.
        eta = np.float32((dim - 1) * threshold * threshold / (square - threshold * threshold))
        projection = np.float32(0)
        for g in range(groups):
            projection += along[g, code[g]]
        # Change one group's code at a time, the groups with the largest errors first, while that lowers the loss.
        order = np.argsort(-nearest)
        for _ in range(_ROUNDS):
            changed = False
            for g in order:
                old = code[g]
                rest = projection - along[g, old]
                best, least = old, np.float32(0)
                for c in range(count):
                    less = (rest + along[g, c]) ** 2 - projection * projection
                    cost = (eta - 1) * less + squares[g, c] - squares[g, old]
                    if less <= 0 and cost < least:
                        best, least = c, cost
                if best != old:
                    projection = rest + along[g, best]
                    code[g] = best
                    changed = True
            if not changed:
                break
