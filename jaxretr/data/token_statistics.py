"""Counts over the rows of a token store."""

import numpy as np

from jaxretr.data.token_store import TokenStore

_ROWS = 65_536


def document_frequencies(store: TokenStore, vocabulary: int) -> np.ndarray:
    """In how many rows each id stands at least once.

    Args:
      store: rows of ids below `vocabulary`.
      vocabulary: V.

    Returns:
      int64 [V].
    """
    counts = np.zeros(vocabulary, np.int64)
    width = max(1, store.max_row_length)
    for start in range(0, len(store), _ROWS):
        stop = min(start + _ROWS, len(store))
        tokens, lengths = store.padded(start, stop, width)
        # Behind a row's end its first id is repeated: it counts once anyway. Empty rows count nothing.
        tokens, lengths = tokens[lengths > 0], lengths[lengths > 0]
        filled = np.sort(np.where(np.arange(width) < lengths[:, None], tokens, tokens[:, :1]), axis=1)
        first = np.ones(filled.shape, bool)
        first[:, 1:] = filled[:, 1:] != filled[:, :-1]
        counts += np.bincount(filled[first], minlength=vocabulary)
    return counts
