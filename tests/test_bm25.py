"""BM25 equals Lucene's formula computed in plain Python, with ties to the lowest row."""

import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from jaxretr.data.corpus import Corpus, read_corpus
from jaxretr.errors import UsageError, UserError
from jaxretr.search.bm25 import Bm25Index

PASSAGES = Path(__file__).parent / "data" / "trec" / "corpus.jsonl"
QUESTIONS = [
    "where does the White Nile lose more than half of its water",
    "who is Dorothy Gale's uncle",
    "Hank Pym split into two Pyms",
    "big ten conference Michigan 1916",
    "the the the of of of the 5 s",
    "centroid",
]


def _corpus(*texts: str) -> Corpus:
    return Corpus([str(row) for row in range(len(texts))], [""] * len(texts), list(texts))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _lucene_scores(corpus: Corpus, question: str, k1: float, b: float) -> list[float]:
    passages = [_words(f"{title} {text}") for title, text in zip(corpus.titles, corpus.texts, strict=True)]
    average = sum(map(len, passages)) / len(passages)
    holders = Counter(word for passage in passages for word in set(passage))
    scores = []
    for passage in passages:
        counts = Counter(passage)
        score = 0.0
        for word in _words(question):  # a repeated word of the question counts again
            idf = math.log(1 + (len(passages) - holders[word] + 0.5) / (holders[word] + 0.5))
            if counts[word]:
                score += idf * counts[word] / (counts[word] + k1 * (1 - b + b * len(passage) / average))
        scores.append(score)
    return scores


@pytest.mark.parametrize(("k1", "b"), [(None, None), (1.5, 0.75), (0.0, 0.0), (0.9, 1.0)])
def test_equals_lucenes_formula_in_plain_python(k1, b):
    corpus = read_corpus(PASSAGES)
    given = {} if k1 is None else {"k1": k1, "b": b}
    index = Bm25Index.build(corpus, stemmer=None, **given)
    scores, rows = index.search(QUESTIONS, len(corpus.ids))
    assert scores.dtype == np.float32 and rows.dtype == np.int64
    for number, question in enumerate(QUESTIONS):
        expected = np.array(_lucene_scores(corpus, question, k1=0.9 if k1 is None else k1, b=0.4 if b is None else b))
        assert sorted(rows[number]) == list(range(len(corpus.ids)))
        # Sums of a dozen float32 values against doubles.
        np.testing.assert_allclose(scores[number], expected[rows[number]], rtol=2e-6, atol=1e-6)
        assert (np.diff(scores[number]) <= 0).all()
    assert corpus.titles[rows[0, 0]] == "Nile" and corpus.titles[rows[3, 0]] == "Big Ten Conference"


def test_smaller_k_and_threads_give_the_same_hits():
    corpus = read_corpus(PASSAGES)
    index = Bm25Index.build(corpus)
    all_scores, all_rows = index.search(QUESTIONS, 10_000)
    assert all_rows.shape == (len(QUESTIONS), len(corpus.ids)) == all_scores.shape
    for k in (1, 3, 31, 32):
        scores, rows = index.search(QUESTIONS, k, threads=2)
        np.testing.assert_array_equal(rows, all_rows[:, :k])
        np.testing.assert_array_equal(scores, all_scores[:, :k])


def test_ties_go_to_the_lowest_row_also_at_the_cut():
    # 40 equal passages with better ones among them: which of the equal ones are cut must not be chance.
    texts = ["red apple" if row in (7, 23) else "red stone" if row % 2 else "green leaf" for row in range(80)]
    index = Bm25Index.build(_corpus(*texts), stemmer=None)
    tied = [row for row in range(80) if row % 2 and row not in (7, 23)]
    for k in (1, 2, 3, 10, 40, 41, 45, 80):
        scores, rows = index.search(["red apple"], k)
        expected = ([7, 23, *tied] + [row for row in range(80) if not row % 2])[:k]
        assert rows[0].tolist() == expected
        assert (scores[0][40:] == 0).all()


def test_the_order_of_the_words_changes_nothing():
    corpus = read_corpus(PASSAGES)
    index = Bm25Index.build(corpus)
    question = " ".join(corpus.texts[0].split()[:40])
    shuffled = " ".join(np.random.default_rng(0).permutation(question.split()))
    assert shuffled != question
    for one, other in zip(index.search([question], 32), index.search([shuffled], 32), strict=True):
        np.testing.assert_array_equal(one, other)


def test_questions_without_a_known_word_give_the_first_rows():
    index = Bm25Index.build(_corpus("one", "two", ""))
    scores, rows = index.search(["", " ?! ", "unknown", "two unknown"], 2)
    assert rows.tolist() == [[0, 1], [0, 1], [0, 1], [1, 0]]
    assert (scores[:3] == 0).all() and scores[3, 0] > 0 == scores[3, 1]
    scores, rows = index.search([], 5)
    assert scores.shape == rows.shape == (0, 3)


def test_titles_and_words_of_one_character_are_indexed():
    corpus = Corpus(["a", "b"], ["C", "U.S."], ["a language", "a country"])
    _, rows = Bm25Index.build(corpus).search(["U", "s", "C", "LANGUAGE"], 1)
    assert rows[:, 0].tolist() == [1, 1, 0, 0]


def test_stemming_joins_words():
    corpus = _corpus("nothing here", "she was running")
    stemmed, _ = Bm25Index.build(corpus).search(["runs"], 2)
    plain, _ = Bm25Index.build(corpus, stemmer=None).search(["runs"], 2)
    assert stemmed[0, 0] > 0 == plain[0, 0]


@pytest.mark.parametrize("method", ["lucene", "robertson", "atire", "bm25l", "bm25+"])
def test_every_method_ranks_the_matching_passage_first(method):
    index = Bm25Index.build(_corpus("a stone", "red", "red red apple", ""), method=method, stemmer=None)
    scores, rows = index.search(["apple", ""], 4)
    assert rows[0].tolist() == [2, 0, 1, 3] and rows[1].tolist() == [0, 1, 2, 3]
    assert scores[0, 0] > scores[0, 1]


def test_wrong_use():
    corpus = _corpus("one", "two")
    for options, message in [
        ({"k1": -1}, "k1 must be at least 0"),
        ({"k1": float("nan")}, "k1 must be at least 0"),
        ({"b": 1.5}, "b must be between 0 and 1"),
        ({"method": "lucen"}, "did you mean 'lucene'"),
        ({"stemmer": "engish"}, "did you mean 'english'"),
    ]:
        with pytest.raises(UsageError, match=message):
            Bm25Index.build(corpus, **options)
    with pytest.raises(UserError, match="corpus is empty"):
        Bm25Index.build(_corpus())
    with pytest.raises(UserError, match="no word"):
        Bm25Index.build(_corpus("", "?!"))
    index = Bm25Index.build(corpus)
    with pytest.raises(UsageError, match="k must be"):
        index.search(["one"], 0)
    with pytest.raises(UsageError, match="threads must be"):
        index.search(["one"], 1, threads=0)


def test_searching_does_not_start_jax():
    # It would claim the devices before a training run is set up.
    program = (
        "import sys; from types import SimpleNamespace as C; from jaxretr.search.bm25 import Bm25Index;"
        "i = Bm25Index.build(C(titles=['a'], texts=['b'])); i.search(['b'], 1);"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'jax'], 'jax was imported'"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
