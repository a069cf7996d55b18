"""Passages that are word for word the same."""

from collections.abc import Sequence

import numpy as np

from jaxretr.data.corpus import Corpus


def first_copies(passages: Corpus) -> np.ndarray:
    """Returns for every row the lowest row with the same title and text, int32 [N]: its own where that is the first."""
    return _first(passages.titles, passages.texts)


def copies_among(passages: Corpus, rows: np.ndarray) -> np.ndarray:
    """Returns for each of `rows` the first of them with its content, as an int32 [N] table; other rows are their own."""
    table = np.arange(len(passages), dtype=np.int32)
    chosen = rows.tolist()
    first = _first([passages.titles[row] for row in chosen], [passages.texts[row] for row in chosen])
    table[rows] = rows[first]
    return table


def rows_of_texts(corpus: Corpus, titles: Sequence[str], texts: Sequence[str]) -> np.ndarray:
    """Returns the lowest row of the corpus with each title and text, int64; -1 where it has none."""
    keys, wanted = _content_keys(corpus.titles, corpus.texts), _content_keys(titles, texts)
    order = np.argsort(keys, kind="stable")
    begins, ends = (np.searchsorted(keys, wanted, side, sorter=order) for side in ("left", "right"))
    found = np.full(len(wanted), -1, np.int64)
    for i in np.flatnonzero(begins < ends).tolist():
        for row in order[begins[i] : ends[i]].tolist():
            if (corpus.titles[row], corpus.texts[row]) == (titles[i], texts[i]):
                found[i] = row
                break
    return found


def _first(titles: Sequence[str], texts: Sequence[str]) -> np.ndarray:
    keys = _content_keys(titles, texts)
    order = np.argsort(keys, kind="stable")
    begins = np.flatnonzero(np.diff(keys[order], prepend=~keys[order][:1]) != 0)
    first = np.empty(len(keys), np.int32)
    first[order] = np.repeat(order[begins], np.diff(begins, append=len(keys)))
    # Where keys of different contents meet, all copies of one content differ from the first of the key.
    strangers: dict[tuple[str, str], int] = {}
    for row in np.flatnonzero(first != np.arange(len(first))).tolist():
        content = titles[row], texts[row]
        if content != (titles[first[row]], texts[first[row]]):
            first[row] = strangers.setdefault(content, row)
    return first


def _content_keys(titles: Sequence[str], texts: Sequence[str]) -> np.ndarray:
    """A number for every passage, int64 [N]: equal for equal content, nearly always different otherwise.

    Python salts its hashes anew in every process; so the keys only find candidates, and no result depends on them.
    """
    return np.fromiter(map(hash, zip(titles, texts, strict=True)), np.int64, len(titles))
