"""Windows of long documents: whole pieces of them, every piece as often as any other, drawn again at each access."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tiny import DATA

from jaxretr.data.corpus import Corpus
from jaxretr.data.readers import read_corpus
from jaxretr.data.token_store import TokenStore, random_windows
from jaxretr.data.tokens import Template, load_tokenizer

SEED = 23
CLS, SEP = 2, 3
WIDTH = 10


class Documents(TokenStore):
    """Documents of given lengths in memory; the ids between the special ones are 10, 11, 12, ..., so that a window
    tells where it was cut."""

    def __init__(self, *lengths: int):
        self.dtype = np.dtype(np.uint16)
        self.ids = [np.array([CLS, *range(10, 8 + length), SEP], np.uint16) for length in lengths]

    def row(self, i: int) -> np.ndarray:
        return self.ids[i]


def windows(documents: TokenStore, rows: Sequence[int], seed: int = SEED, width: int = WIDTH) -> np.ndarray:
    return random_windows(documents, np.array(rows), width, np.random.default_rng(seed))[0]


def begins(tokens: np.ndarray) -> np.ndarray:
    """The place in its document that the second token of each window comes from; 1 is the first possible one."""
    return tokens[:, 1].astype(int) - 9


def test_a_window_is_one_piece_between_the_document_s_special_tokens() -> None:
    """A hole, a turned order or a lost [CLS] would teach the encoder texts that do not exist."""
    documents = Documents(*range(WIDTH + 1, 60))
    rows = np.random.default_rng(SEED).integers(0, len(documents.ids), 2000)
    tokens, lengths = random_windows(documents, rows, WIDTH, np.random.default_rng(SEED))
    assert (lengths == WIDTH).all() and lengths.dtype == np.int32 and tokens.shape == (2000, WIDTH)
    assert (tokens[:, 0] == CLS).all() and (tokens[:, -1] == SEP).all()
    assert (np.diff(tokens[:, 1:-1].astype(int), axis=1) == 1).all()
    for row, window in zip(rows, tokens, strict=True):
        assert np.isin(window, documents.ids[row]).all()


@pytest.mark.parametrize("length", [WIDTH + 1, WIDTH + 2, 2 * WIDTH, 137])
@pytest.mark.parametrize("width", [3, WIDTH])
def test_every_place_is_a_window_s_begin_equally_often(length: int, width: int) -> None:
    """The first and the last place too: a range that is one too short never shows a document's last word."""
    places = length - width + 1
    draws = 500 * places
    counts = np.bincount(begins(windows(Documents(length), [0] * draws, width=width)), minlength=places + 1)
    assert counts[0] == 0 and len(counts) == places + 1
    square = ((counts[1:] - 500) ** 2 / 500).sum()
    assert abs(square - (places - 1)) < 3 * np.sqrt(2 * (places - 1)), f"chi-square, seed {SEED}: {counts[1:]}"


def test_a_document_that_fits_is_left_alone() -> None:
    documents = Documents(3, 7, WIDTH - 1, WIDTH)
    tokens, lengths = random_windows(documents, np.array([3, 0, 2, 1, 3]), WIDTH, np.random.default_rng(SEED))
    np.testing.assert_array_equal(lengths, [10, 3, 9, 7, 10])
    assert tokens.dtype == documents.dtype
    for row, number in enumerate([3, 0, 2, 1, 3]):
        np.testing.assert_array_equal(tokens[row, : lengths[row]], documents.ids[number])
        assert (tokens[row, lengths[row] :] == 0).all()


def test_the_other_documents_lengths_move_no_window() -> None:
    """A corrected typo in one document must not change what a run reads of all the others."""
    one = windows(Documents(50, 40, 30), [0, 1, 2, 1, 0])
    other = windows(Documents(50, 8, 30), [0, 1, 2, 1, 0])
    np.testing.assert_array_equal(one[[0, 2, 4]], other[[0, 2, 4]])
    assert (one[[1, 3]] != other[[1, 3]]).any(axis=1).all()


def test_windows_are_drawn_anew_at_each_access_and_follow_the_seed() -> None:
    documents, rows = Documents(1000), np.zeros(200, int)
    rng = np.random.default_rng(SEED)
    first, second = (begins(random_windows(documents, rows, WIDTH, rng)[0]) for _ in range(2))
    assert (first == second).mean() < 0.05, "one place in 991 is the same by chance"
    np.testing.assert_array_equal(begins(windows(documents, [0] * 200)), first)
    assert (begins(windows(documents, [0] * 200, SEED + 1)) == first).mean() < 0.05
    # The rows of one access have nothing to do with each other either.
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 3 / np.sqrt(199)


def test_real_passages_from_a_token_store(tiny_models: Path, tmp_path: Path) -> None:
    """Rows as the recipe reads them: not the first of the corpus, and one of them twice."""
    corpus = Corpus.from_passages(read_corpus(DATA))
    tokenizer = load_tokenizer(tiny_models / "encoder_tokenizer")
    store = TokenStore.build(tmp_path, corpus, tokenizer, Template.PASSAGE_PAIR, 1 << 16)
    rows, width = np.array([7, 3, 7, 19]), 24
    tokens, lengths = random_windows(store, rows, width, np.random.default_rng(SEED))
    assert (store.lengths[rows] > width).all() and (lengths == width).all()
    for row, window in zip(rows, tokens, strict=True):
        ids = store.row(int(row))
        pieces = np.lib.stride_tricks.sliding_window_view(ids[1:-1], width - 2)
        assert (pieces == window[1:-1]).all(axis=1).any()
        assert (window[[0, -1]] == ids[[0, -1]]).all()
    assert (tokens[0] != tokens[2]).any()
