"""Rows of tokens for language models: one document a row, and of a long one a window that is drawn anew each time."""

import numpy as np

from jaxretr.data.token_store import TokenStore


def random_windows(
    store: TokenStore, rows: np.ndarray, width: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Reads documents, cutting those that are longer than `width`.

    Args:
      store: documents that begin and end with a special token ([CLS], [SEP]), which every window keeps.
      rows: which, int [B].
      width: L, the longest row.
      rng: draws where a window begins, every place with equal chance.

    Returns:
      tokens [B, L] in the store's dtype, padded with 0 on the right, and lengths int32 [B].
    """
    tokens, lengths = np.zeros((len(rows), width), store.dtype), np.zeros(len(rows), np.int32)
    begins = rng.random(len(rows))  # One draw a row, so that a document's length moves no other's window.
    for number, row in enumerate(rows):
        ids = store.row(int(row))
        if (spare := len(ids) - width) > 0:
            begin = 1 + int(begins[number] * (spare + 1))
            ids = np.concatenate([ids[:1], ids[begin : begin + width - 2], ids[-1:]])
        tokens[number, : len(ids)], lengths[number] = ids, len(ids)
    return tokens, lengths
