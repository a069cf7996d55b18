"""Duplicate groups: passages with the same title and text. A group is named by its lowest row."""

import logging
from collections.abc import Sequence

import numpy as np

from jaxretr.data.corpus import Corpus
from jaxretr.runtime.notes import note

_log = logging.getLogger(__name__)


def duplicate_groups(passages: Corpus) -> np.ndarray:
    """Return the duplicate group of every row, int32 [N]: the lowest row with the same title and text; warn of any."""
    first = _first(passages.titles, passages.texts)
    if len(repeated := np.flatnonzero(first != np.arange(len(first)))):
        note(
            _log.warning,
            "%d passages have the title and text of an earlier one (the first: '%s'); they count as the same passage",
            len(repeated),
            passages.ids[repeated[0]],
        )
    return first


def duplicate_groups_among(passages: Corpus, rows: np.ndarray) -> np.ndarray:
    """Return the duplicate groups of `rows` among themselves, int32 [N]; every other row is a group of its own."""
    table = np.arange(len(passages), dtype=np.int32)
    chosen = rows.tolist()
    first = _first([passages.titles[row] for row in chosen], [passages.texts[row] for row in chosen])
    table[rows] = rows[first]
    return table


def rows_of_texts(corpus: Corpus, titles: Sequence[str], texts: Sequence[str]) -> np.ndarray:
    """Return the lowest row of the corpus with each title and text, int64; -1 if it has none."""
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
    # If different contents share a key, all duplicates of one content differ from the first row of the key.
    strangers: dict[tuple[str, str], int] = {}
    for row in np.flatnonzero(first != np.arange(len(first))).tolist():
        content = titles[row], texts[row]
        if content != (titles[first[row]], texts[first[row]]):
            first[row] = strangers.setdefault(content, row)
    return first


def _content_keys(titles: Sequence[str], texts: Sequence[str]) -> np.ndarray:
    """A number for every passage, int64 [N]: equal for equal content, nearly always different otherwise.

    Python salts its hashes in every process, so the keys only find candidates, and no result depends on them.
    """
    return np.fromiter(map(hash, zip(titles, texts, strict=True)), np.int64, len(titles))
