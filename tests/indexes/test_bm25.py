"""BM25 equals Lucene's formula computed in plain Python, with ties to the lowest row."""

# ruff: noqa: RUF001
import math
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxretr
from jaxretr.data.corpus import Corpus, read_corpus
from jaxretr.indexes.bm25 import Bm25Index
from jaxretr.indexes.bm25 import postings as bm25_postings
from jaxretr.indexes.bm25 import words as bm25_words
from jaxretr.indexes.bm25.postings import quantised_lengths
from jaxretr.indexes.bm25.words import questions_as_words, split_words
from jaxretr.runtime.errors import UsageError, UserError

PASSAGES = Path(__file__).parents[1] / "data" / "trec" / "corpus.jsonl"
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
        found = rows[number][rows[number] >= 0]
        assert sorted(found) == np.flatnonzero(expected).tolist()
        # Sums of a dozen float32 values against doubles.
        np.testing.assert_allclose(scores[number][: len(found)], expected[found], rtol=2e-6, atol=1e-6)
        assert (np.diff(scores[number][: len(found)]) <= 0).all() and (scores[number][len(found) :] == -np.inf).all()
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
        assert rows[0].tolist() == ([7, 23, *tied] + [-1] * 40)[:k]
        assert (scores[0][:40] > 0).all() and (scores[0][40:] == -np.inf).all()


def test_the_order_of_the_words_changes_nothing():
    corpus = read_corpus(PASSAGES)
    index = Bm25Index.build(corpus)
    question = " ".join(corpus.texts[0].split()[:40])
    shuffled = " ".join(np.random.default_rng(0).permutation(question.split()))
    assert shuffled != question
    for one, other in zip(index.search([question], 32), index.search([shuffled], 32), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("method", ["lucene", "robertson", "atire", "bm25l", "bm25+"])
def test_a_passage_without_a_word_of_the_question_is_not_found(method):
    index = Bm25Index.build(_corpus("one", "two", "", "three", "four"), method=method)
    scores, rows = index.search(["", " ?! ", "unknown", "two unknown"], 2)
    assert rows.tolist() == [[-1, -1], [-1, -1], [-1, -1], [1, -1]]
    assert np.isfinite(scores).tolist() == (rows >= 0).tolist() and (scores[rows < 0] == -np.inf).all()
    scores, rows = index.search([], 5)
    assert scores.shape == rows.shape == (0, 5)


def test_titles_and_words_of_one_character_are_indexed():
    corpus = Corpus(["a", "b"], ["C", "U.S."], ["a language", "a country"])
    _, rows = Bm25Index.build(corpus).search(["U", "s", "C", "LANGUAGE"], 1)
    assert rows[:, 0].tolist() == [1, 1, 0, 0]


def test_stemming_joins_words():
    corpus = _corpus("nothing here", "she was running")
    stemmed, _ = Bm25Index.build(corpus).search(["runs"], 2)
    plain, _ = Bm25Index.build(corpus, stemmer=None).search(["runs"], 2)
    assert stemmed[0, 0] > 0 and plain[0, 0] == -np.inf


@pytest.mark.parametrize("method", ["lucene", "robertson", "atire", "bm25l", "bm25+"])
def test_every_method_ranks_the_passage_with_more_words_first(method):
    index = Bm25Index.build(_corpus("stone", "red", "red red apple", "", "leaf"), method=method, stemmer=None)
    scores, rows = index.search(["red apple", ""], 4)
    assert rows.tolist() == [[2, 1, -1, -1], [-1] * 4]
    assert scores[0, 0] > scores[0, 1] > 0


def test_what_adds_nothing_is_no_word():
    corpus = _corpus("the red", "the stone", "the leaf")
    for method, found in (("lucene", [0, 1, 2]), ("atire", [-1] * 3), ("robertson", [-1] * 3)):
        _, rows = Bm25Index.build(corpus, method=method, stemmer=None).search(["the"], 3)
        assert rows[0].tolist() == found, method


# ---- the pruned search -----------------------------------------------------------------------------------------------


def _exhaustive(index: Bm25Index, question: str, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Adds every posting of every word to every passage, from the rarest word to the most common one."""
    lists = index._postings._lists
    words, _ = questions_as_words(index._vocabulary, index._order, [question])
    scores = np.zeros(index.num_passages, np.float32)
    shares = np.zeros(index.num_passages, bool)
    for word in words:
        postings = slice(lists.starts[word], lists.starts[word + 1])
        scores[lists.rows[postings]] += lists.scores[postings]
        shares[lists.rows[postings]] = True
    if index._postings._absent is not None:
        scores += index._postings._absent[words].sum()
    rows = [row for row in np.lexsort((np.arange(len(scores)), -scores)) if shares[row]][:k]
    behind = min(k, len(scores)) - len(rows)
    return np.append(scores[rows], np.full(behind, -np.inf, np.float32)), np.array(rows + [-1] * behind)


# A few words, some in nearly all passages, so that many passages tie.
_WORDS = st.sampled_from(["the"] * 6 + ["of"] * 4 + ["and", "and", "red", "red", "blue", "nile", "x", "y", "z", "3"])
_TEXT = st.lists(_WORDS, max_size=12).map(" ".join)


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(_TEXT, min_size=1, max_size=150).filter(any),
    questions=st.lists(_TEXT, min_size=1, max_size=5),
    k=st.integers(1, 40),
    share=st.sampled_from([1, 3, 32]),
    method=st.sampled_from(["lucene", "lucene", "lucene", "robertson", "atire", "bm25l", "bm25+"]),
)
def test_pruned_search_is_the_exhaustive_one_to_the_bit(texts, questions, k, share, method):
    with patch.object(bm25_postings, "_COMMON_SHARE", share):
        index = Bm25Index.build(_corpus(*texts), stemmer=None, method=method)
    scores, rows = index.search(questions, k, threads=2)
    of_all, _, of_rows = index.search_and_score(questions, len(texts), [range(len(texts))] * len(questions))
    for number, question in enumerate(questions):
        expected_scores, expected_rows = _exhaustive(index, question, k)
        np.testing.assert_array_equal(rows[number], expected_rows)
        np.testing.assert_array_equal(scores[number], expected_scores)
        hits = np.count_nonzero(of_all[number] > -np.inf)
        np.testing.assert_array_equal(of_all[number][:hits], np.sort(of_rows[number])[::-1][:hits])


@pytest.fixture(scope="module")
def many() -> tuple[Corpus, list[str]]:
    """20,000 passages with words as frequent as in English, and sentences of them: enough for every step of pruning."""
    rng = np.random.default_rng(7)
    vocabulary = np.array([f"w{number}" for number in range(5_000)])
    share = 1 / np.arange(2, len(vocabulary) + 2)
    share /= share.sum()
    texts = [" ".join(rng.choice(vocabulary, rng.integers(10, 80), p=share)) for _ in range(20_000)]
    texts[500:540] = [texts[400]] * 40  # copies: ties among the best
    cuts = [texts[row].split() for row in (400, 400, *rng.integers(len(texts), size=60))]
    questions = [" ".join(words[: rng.integers(1, 40)]) for words in cuts]
    return _corpus(*texts), [*questions, questions[0] + " w3 w3 w3", "w0 w1 w2", "w4999 w0 w0", ""]


@pytest.mark.parametrize("share", [4, 32, 500])
def test_pruned_search_is_the_exhaustive_one_in_a_large_corpus(many, share):
    corpus, questions = many
    with patch.object(bm25_postings, "_COMMON_SHARE", share):
        index = Bm25Index.build(corpus, stemmer=None)
    for k in (1, 7, 50, 300):
        scores, rows = index.search(questions, k, threads=3)
        for number, question in enumerate(questions):
            expected_scores, expected_rows = _exhaustive(index, question, k)
            np.testing.assert_array_equal(rows[number], expected_rows)
            np.testing.assert_array_equal(scores[number], expected_scores)


def test_a_bound_that_is_known_drops_nothing_from_it_on(many):
    corpus, questions = many
    index = Bm25Index.build(corpus, stemmer=None)
    words, ends = questions_as_words(index._vocabulary, index._order, questions)
    scores, rows = index._postings.search(words, ends, 20, threads=1)
    for rank in (0, 5, 19):
        some, rows_of_some = index._postings.search(words, ends, 20, threads=1, least=scores[:, rank].copy())
        reach = scores >= scores[:, rank : rank + 1]
        np.testing.assert_array_equal(rows_of_some[reach], rows[reach])
        np.testing.assert_array_equal(some[reach], scores[reach])


@pytest.mark.parametrize("method", ["lucene", "robertson", "atire", "bm25l", "bm25+"])
def test_scores_are_those_of_bm25s_to_the_bit(method, many):
    import bm25s

    corpus, questions = Corpus(*(column[:400] for column in (many[0].ids, many[0].titles, many[0].texts))), many[1]
    index = Bm25Index.build(corpus, stemmer=None, k1=1.3, b=0.6, method=method)
    rows = [[int(word[1:]) for word in text.split()] for text in corpus.texts]
    peer = bm25s.BM25(k1=1.3, b=0.6, method=method)
    ids = {f"w{word}": number for number, word in enumerate(sorted({word for row in rows for word in row}))}
    peer.index(
        ([[ids[f"w{word}"] for word in row] for row in rows], ids), create_empty_token=False, show_progress=False
    )
    names = {number: word for word, number in index._vocabulary.ids.items()}
    id_of = np.argsort(index._order)
    for question in questions:
        words, _ = questions_as_words(index._vocabulary, index._order, [question])
        if len(words):
            [scores], [found] = index.search([question], 400)
            expected = peer.get_scores_from_ids([ids[names[id]] for id in id_of[words].tolist()])
            hits = found >= 0
            np.testing.assert_array_equal(scores[hits], expected[found[hits]])
            assert (np.delete(expected, found[hits]) <= index._postings._base(words)).all()


# ---- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The U.S. 5-year_plan naïve Straße", ["the", "u", "s", "5", "year_plan", "naïve", "strasse"]),
        ("北京大学は", ["北京", "京大", "大学", "学は"]),
        ("東", ["東"]),
        ("iPhone15を買う、今日", ["iphone15", "を買", "買う", "今日"]),
        ("カタカナー・ｶﾞｷﾞ", ["カタ", "タカ", "カナ", "ナー", "ガギ"]),
        ("한국어 text", ["한국", "국어", "text"]),
        ("𠮷野家 é", ["𠮷野", "野家", "é"]),
        ("x\u3000\uff39。", ["x", "y"]),
        ("か\u3099き", ["がき"]),
        ("葛\U000e0100飾区", ["葛飾", "飾区"]),  # a variant of the character
        ("5½ m² H₂O Windows™ ①㈠ Ⅷ", ["5", "1", "2", "m2", "h2o", "windows", "1", "一", "viii"]),
        ("हिन्दी में, مُحَمَّد", ["हिन्दी", "में", "مُحَمَّد"]),
        ("co\u00adoperate می\u200cخواهم", ["cooperate", "میخواهم"]),
        ("👍🏽 👨\u200d👩\u200d👧x 🇩🇪🇫🇷 ❤\ufe0f1\ufe0f\u20e3 ©→★", ["👍", "👨", "👩", "👧", "x", "🇩🇪", "🇫🇷", "❤", "1"]),
    ],
)
def test_words(text, words):
    assert split_words(text) == words


def test_chinese_and_japanese_find_parts_of_clauses():
    index = Bm25Index.build(_corpus("上海是中国最大的城市", "北京大学位于北京市", "東京大学の図書館", "plain words"))
    _, rows = index.search(["北京大学在哪里", "図書館", "中国", "大学"], 1)
    assert rows[:, 0].tolist() == [1, 2, 0, 2]  # of both with the last one the shorter


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(max_codepoint=0x7F)))
def test_text_in_ascii_has_the_words_of_the_regular_expression(text):
    assert split_words(text) == re.findall(r"\b\w+\b", text.lower())


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=8), st.sampled_from([" ", "a", "à"]))
def test_composed_and_combining_accents_and_lower_case_give_the_same_words(text, beside):
    text = f"{beside}{text}{beside}"
    words = split_words(text)
    for form in ("NFC", "NFD"):
        assert split_words(unicodedata.normalize(form, text)) == words, ascii(text)
    assert [again for word in words for again in split_words(word)] == words or "\ufe0f" in text, ascii(text)


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("ﬁnd the ﬂuﬀy ﬁle", "find the fluffy file"),
        ("in １２３ ＡＢＣ", "in 123 abc"),
        ("İstanbul", "istanbul"),
        ("i\u0307stanbul", "ISTANBUL"),  # as Python lower-cases İ
        ("STRASSE", "straße"),
        ("ΟΔΟΣ", "οδοσ"),
        ("cafe\u0301", "Café"),
        ("ｶﾞｷﾞ", "ガギ"),
        ("한국어", unicodedata.normalize("NFD", "한국어")),
        ("hurra 🎉", "🎉"),
    ],
)
def test_another_spelling_of_the_same_word_finds_the_passage_with_the_same_score(written, asked):
    index = Bm25Index.build(_corpus("nothing here", written, "or here"), stemmer=None)
    scores, rows = index.search([asked, written], 2)
    assert rows.tolist() == [[1, -1], [1, -1]]
    if len(split_words(asked)) == len(split_words(written)):
        assert scores[0, 0] == scores[1, 0]


def test_accents_and_thai_clauses_are_kept():
    assert split_words("cafe") != split_words("café")
    assert len(split_words("การเดินทางที่")) > 1, "one word of a whole clause would find nothing"


def test_forgetting_spellings_changes_no_id(monkeypatch):
    texts = ["runs running run", "walks walked", "runs walks", "running stones stone"]
    index = Bm25Index.build(_corpus(*texts))
    monkeypatch.setattr(bm25_words, "_MOST_SPELLINGS", 1)
    forgetful = Bm25Index.build(_corpus(*texts))
    assert forgetful._vocabulary.ids == index._vocabulary.ids and len(index._vocabulary) == 3
    for one, other in zip(index.search(texts, 4), forgetful.search(texts, 4), strict=True):
        np.testing.assert_array_equal(one, other)


# ---- Lucene's lengths ------------------------------------------------------------------------------------------------


def _lucene_byte(length: int) -> int:
    """SmallFloat.intToByte4 as its documentation describes it: 24 values as they are, then 3 bits after the first."""
    if length < 24:
        return length
    rest = length - 24
    if rest < 8:
        return 24 + rest
    shift = rest.bit_length() - 4
    return 24 + ((rest >> shift) & 7 | (shift + 1) << 3)


def _length_of_byte(byte: int) -> int:
    if byte < 24:
        return byte
    low, shift = (byte - 24) & 7, ((byte - 24) >> 3) - 1
    return 24 + (low if shift < 0 else (low | 8) << shift)


def test_lengths_are_rounded_as_lucene_does():
    lengths = np.concatenate([np.arange(5_000), 2 ** np.arange(13, 31), 2 ** np.arange(13, 31) - 1, [2**31 - 1]])
    expected = [_length_of_byte(_lucene_byte(length)) for length in lengths.tolist()]
    found = quantised_lengths(lengths.astype(np.int64))
    assert found.tolist() == expected
    assert found[:40].tolist() == list(range(40)) and found[40:44].tolist() == [40, 40, 42, 42]
    assert (found <= lengths).all() and (lengths - found <= lengths / 8).all()
    assert _lucene_byte(2**31 - 1) == 255
    table = np.array([_length_of_byte(byte) for byte in range(256)])
    assert (np.diff(table) > 0).all() and (quantised_lengths(table) == table).all()


def test_quantised_lengths_are_those_of_the_scores_but_not_of_the_average():
    texts = ["w " * 20 + "red", "w " * 99 + "red red", "w " * 45 + "red"]
    corpus = _corpus(*texts)
    [scores], [rows] = Bm25Index.build(corpus, stemmer=None, b=0.75, quantise_lengths=True).search(["red"], 3)
    lengths, average = {0: 21, 1: 96, 2: 46}, (21 + 101 + 46) / 3
    for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
        count = 2 if row == 1 else 1
        idf = math.log(1 + 0.5 / 3.5)
        assert score == pytest.approx(idf * count / (count + 0.9 * (0.25 + 0.75 * lengths[row] / average)), rel=1e-6)


# ---- use -------------------------------------------------------------------------------------------------------------


def test_wrong_use():
    corpus = _corpus("one", "two")
    for options, message in [
        ({"k1": -1}, "k1=-1: must be at least 0"),
        ({"k1": float("nan")}, "k1=nan: must be at least 0"),
        ({"b": 1.5}, "b=1.5: must be between 0 and 1"),
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
    with pytest.raises(UsageError, match="k=0: must be"):
        index.search(["one"], 0)
    with pytest.raises(UsageError, match="threads=0: must be"):
        index.search(["one"], 1, threads=0)
    for questions in ("one", {"one": 1}, [None], None):
        with pytest.raises(UsageError, match=r"questions.*give a list"):
            index.search(questions, 1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="corpus: a list is no corpus"):
        Bm25Index.build(["one"])  # pyright: ignore[reportArgumentType]
    scores, rows = index.search((text for text in ["two", "one"]), 1)
    assert rows.tolist() == [[1], [0]] and (scores > 0).all()


def test_searching_does_not_start_jax():
    # It would claim the devices before a training run is set up.
    program = (
        "import sys; from types import SimpleNamespace as C; from jaxretr.indexes.bm25 import Bm25Index;"
        "i = Bm25Index.build(C(titles=['a'], texts=['b'])); i.search(['b'], 1);"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'jax'], 'jax was imported'"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_and_import_do_not_load_the_compiler():
    program = (
        "import sys, jaxretr; from jaxretr import cli, Bm25Index; cli.build_parser();"
        "import jaxretr.indexes.bm25.lexical_ranker; assert not {'numba', 'llvmlite', 'jax'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_installation_that_cannot_be_written_to_searches(tmp_path: Path):
    # Numba looks for a folder for its cache beside the file, then in the user's home: here none can be made.
    package = tmp_path / "site"
    source = Path(jaxretr.__file__).parent
    shutil.copytree(source, package / "jaxretr", ignore=shutil.ignore_patterns("__pyc*"))
    cache = package / "jaxretr/runtime/parallel/__pycache__"
    cache.write_text("a file where the folder would be")
    program = (
        "from jaxretr.runtime.parallel import numba_loops as c; print(c.__file__, c.compiled()(lambda x: x + 1)(1))"
    )
    environment = {**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null", "NUMBA_CACHE_DIR": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == "2" and str(package) in done.stdout and cache.is_file()
