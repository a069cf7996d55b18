"""The ranking of many questions equals the definition, whatever the shards, the blocks, the threads and the kills."""

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxretr.data.corpus import Corpus, Passage, iter_passages, read_corpus
from jaxretr.data.lexical_set import Ranking
from jaxretr.indexes.bm25 import Bm25Index, lexical_ranker
from jaxretr.indexes.bm25.lexical_ranker import rank
from jaxretr.indexes.bm25.words import Bm25Settings
from jaxretr.runtime.errors import UsageError, UserError

PASSAGES = Path(__file__).parents[1] / "data" / "trec" / "corpus.jsonl"
PLAIN = Bm25Settings(stemmer=None)


class _Killed(BaseException):
    pass


def _rank(passages: list[Passage], queries: list[str], folder: Path, given: Bm25Settings = PLAIN, **options) -> Ranking:
    options = {"depth": 10, "corpus_name": "c.jsonl", "corpus_fingerprint": "c", "queries_fingerprint": "q"} | options
    return rank(lambda: enumerate(passages, start=1), queries, folder, given, **options)


def _random_set(seed: int, num: int) -> tuple[list[Passage], list[str]]:
    rng = np.random.default_rng(seed)
    words = np.array([f"w{number}" for number in range(60)])
    share = 1 / np.arange(1, 61)
    texts = [" ".join(rng.choice(words, rng.integers(0, 9), p=share / share.sum())) for _ in range(num)]
    texts[: num // 3] = texts[num // 3 : 2 * (num // 3)]  # every third passage has a copy: ties
    ids = [f"{id}" for id in rng.permutation(10 * num)[:num]]  # "10" comes before "9"
    passages = [
        Passage(id, "w0" if row % 5 == 0 else "", text) for row, (id, text) in enumerate(zip(ids, texts, strict=True))
    ]
    questions = [" ".join(rng.choice(words, rng.integers(1, 12), p=share / share.sum())) for _ in range(40)]
    return passages, [*questions, "unknown", "", "w1 w1 w1 w59"]


def _defined(passages: list[Passage], question: str, depth: int) -> list[tuple[int, float]]:
    """Lucene's formula in float64: (row, score) of the best passages, those with equal words by id."""
    words = [re.findall(r"\w+", f"{passage.title} {passage.text}".lower()) for passage in passages]
    average = sum(map(len, words)) / len(words)
    holders = Counter(word for of_one in words for word in set(of_one))
    scores = {}
    for row, of_one in enumerate(words):
        counts, score = Counter(of_one), 0.0
        for word in sorted(re.findall(r"\w+", question.lower())):
            if counts[word]:
                idf = math.log(1 + (len(words) - holders[word] + 0.5) / (holders[word] + 0.5))
                score += idf * counts[word] / (counts[word] + 0.9 * (0.6 + 0.4 * len(of_one) / average))
        if score:
            scores[row] = score
    return sorted(scores.items(), key=lambda hit: (-round(hit[1], 5), passages[hit[0]].id))[:depth]


def test_equals_lucenes_formula_with_ties_by_id(tmp_path: Path):
    passages, questions = _random_set(1, 150)
    found = _rank(passages, questions, tmp_path / "r", depth=30, shard_passages=40, query_block=7, threads=2)
    assert found.rows.shape == found.scores.shape == (len(questions), 30)
    assert found.rows.dtype == np.int32 and found.scores.dtype == np.float32
    ties = 0
    for number, question in enumerate(questions):
        expected = _defined(passages, question, 30)
        assert found.rows[number].tolist() == [row for row, _ in expected] + [-1] * (30 - len(expected)), question
        # Sums of a dozen float32 values against doubles.
        np.testing.assert_allclose(found.scores[number][: len(expected)], [s for _, s in expected], rtol=2e-6)
        assert (found.scores[number][len(expected) :] == 0).all()
        ties += len(expected) - len(np.unique(found.scores[number][: len(expected)]))
    assert ties > 200 and (found.rows[questions.index("")] == -1).all()


def test_is_the_search_of_the_index_where_ids_are_in_order(tmp_path: Path):
    corpus = read_corpus(PASSAGES)
    corpus = Corpus([f"{row:04d}" for row in range(len(corpus))], corpus.titles, corpus.texts)
    questions = [*corpus.texts[:20], "who is Dorothy Gale's uncle", "where does the White Nile lose its water"]
    for given_, options in [
        (Bm25Settings(), {}),
        (Bm25Settings(k1=1.2, b=0.9, stemmer=None, quantise_lengths=True), {"shard_passages": 9}),
    ]:
        found = _rank(list(corpus), questions, tmp_path / str(given_.k1), given_, depth=8, **options)
        index = Bm25Index.build(
            corpus, k1=given_.k1, b=given_.b, stemmer=given_.stemmer, quantise_lengths=given_.quantise_lengths
        )
        scores, rows = index.search(questions, 8)
        np.testing.assert_array_equal(found.scores, np.where(rows >= 0, scores, 0))
        np.testing.assert_array_equal(found.rows, rows)


@settings(max_examples=12, deadline=None)  # every file is synced to the disk
@given(
    seed=st.integers(0, 10_000),
    shard=st.integers(9, 90),
    block=st.integers(9, 50),
    depth=st.integers(1, 25),
    method=st.sampled_from(["lucene", "lucene", "robertson", "bm25+"]),
)
def test_shards_and_blocks_change_no_bit(tmp_path_factory, seed, shard, block, depth, method):
    passages, questions = _random_set(seed, 80)
    folder = tmp_path_factory.mktemp("r")
    chosen = Bm25Settings(stemmer=None, method=method)
    whole = _rank(passages, questions, folder / "whole", chosen, depth=depth)
    parts = _rank(
        *(passages, questions, folder / "parts", chosen),
        **{"depth": depth, "shard_passages": shard, "query_block": block, "threads": 2},
    )
    np.testing.assert_array_equal(parts.rows, whole.rows)
    np.testing.assert_array_equal(parts.scores, whole.scores)


# ---- kills -----------------------------------------------------------------------------------------------------------


def _count_calls(monkeypatch, module, name: str, kill_at: int) -> list[int]:
    calls = [0]
    original = getattr(module, name)

    def counted(*args, **options):
        calls[0] += 1
        if calls[0] == kill_at:
            raise _Killed
        return original(*args, **options)

    monkeypatch.setattr(module, name, counted)
    return calls


@pytest.mark.parametrize(
    ("name", "kill_at"),
    [("_write_shard", 3), ("write_array", 2), ("write_array", 7), ("write_array", 12), ("of_words", 3)],
)
def test_a_killed_ranking_goes_on(tmp_path: Path, monkeypatch, name, kill_at):
    passages, questions = _random_set(2, 100)
    options: dict[str, Any] = {"shard_passages": 23, "query_block": 11, "depth": 12}
    whole = _rank(passages, questions, tmp_path / "whole", **options)
    with monkeypatch.context() as patched, pytest.raises(_Killed):
        module = lexical_ranker.Postings if name == "of_words" else lexical_ranker
        _count_calls(patched, module, name, kill_at)
        _rank(passages, questions, tmp_path / "killed", **options)
    with monkeypatch.context() as patched:
        written = _count_calls(patched, lexical_ranker, "_write_shard", -1)
        built = _count_calls(patched, lexical_ranker.Postings, "of_words", -1)
        searched = _count_calls(patched, lexical_ranker, "hits_to_keys", -1)
        again = _rank(passages, questions, tmp_path / "killed", **options)
    np.testing.assert_array_equal(again.rows, whole.rows)
    np.testing.assert_array_equal(again.scores, whole.scores)
    # 5 shards and 4 blocks; files: 5 places and the counts of words first, then the best of every block and shard.
    assert written[0] == (3 if name == "_write_shard" else 0)
    done = {("write_array", 7): 0, ("write_array", 12): 5, ("of_words", 3): 8}.get((name, kill_at), 0)
    assert searched[0] == 20 - done and built[0] == 5 - done // 4
    assert not (tmp_path / "killed" / "work").exists()


def test_what_is_finished_is_not_read_again(tmp_path: Path):
    passages, questions = _random_set(3, 30)
    first = _rank(passages, questions, tmp_path / "r")

    def fail():
        raise AssertionError("the corpus was read again")

    again = rank(
        *(fail, questions, tmp_path / "r", PLAIN),
        **{"depth": 10, "corpus_name": "c", "corpus_fingerprint": "c", "queries_fingerprint": "q"},
    )
    np.testing.assert_array_equal(again.rows, first.rows)
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == [
        *("finished.json", "meta.json", "rows.npy", "scores.npy")
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corpus_fingerprint": "d"}, "another corpus"),
        ({"queries_fingerprint": "p"}, "another questions"),
        ({"depth": 11}, "another depth \\(10 there, 11 here\\)"),
        ({"given": Bm25Settings(k1=1.2, stemmer=None)}, "another settings"),
        ({"shard_passages": 7}, "another shard size"),
    ],
)
def test_a_folder_of_another_ranking_is_refused(tmp_path: Path, change, message):
    passages, questions = _random_set(3, 30)
    _rank(passages, questions, tmp_path / "r")
    with pytest.raises(UserError, match=f"{message}.*another folder"):
        _rank(passages, questions, tmp_path / "r", **change)


def test_a_ranking_whose_words_were_split_otherwise_is_not_gone_on_with(tmp_path: Path, monkeypatch):
    passages, questions = _random_set(3, 30)
    monkeypatch.setattr(lexical_ranker, "FORMAT_VERSION", 1)  # before Unicode's forms and cases were joined
    _rank(passages, questions, tmp_path / "r")
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"another format \(1 there, 2 here\)"):
        _rank(passages, questions, tmp_path / "r")


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_bad_input(tmp_path: Path):
    passages = [Passage("a", "", "one"), Passage("b", "", "two"), Passage("c", "", "x"), Passage("a", "", "one")]
    for shard in (1, 2, 100):
        with pytest.raises(
            UserError, match=r"c\.jsonl:4: duplicate id 'a' \(the first is .*c\.jsonl:1\); give every passage"
        ):
            _rank(passages, ["one"], tmp_path / f"r{shard}", shard_passages=shard)
    with pytest.raises(UserError, match=r"c\.jsonl: no passages"):
        _rank([], ["one"], tmp_path / "empty")
    with pytest.raises(UserError, match=r"c\.jsonl: has no word"):
        _rank([Passage("a", "", "?!"), Passage("b", "", "")], ["one"], tmp_path / "no-word")
    with pytest.raises(UserError, match="no questions"):
        _rank(passages, [], tmp_path / "no-questions")
    with pytest.raises(UsageError, match=r"depth=0: must be at least 1"):
        _rank(passages, ["one"], tmp_path / "depth", depth=0)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(UserError, match="something else than a ranking"):
        _rank(passages, ["one"], tmp_path / "mine")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "meta.json").write_text("{")
    with pytest.raises(UserError, match=r"meta\.json: cannot be read"):
        _rank(passages, ["one"], tmp_path / "half")


def test_ids_and_words_of_any_characters(tmp_path: Path):
    ids = ["é", "z", "", "a\nb", "a", "北", "\U0001f600", "\ud800", "￿"]
    passages = [Passage(id, "", "北京大学 same") for id in ids]
    found = _rank(passages, ["same", "京大 nothing", "北京大"], tmp_path / "r", depth=20, shard_passages=4)
    by_id = sorted(range(len(ids)), key=ids.__getitem__)
    assert found.rows.tolist() == [by_id + [-1] * 11] * 3


def test_progress_counts_every_search_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    passages, questions = _random_set(4, 50)
    noted = []

    class Shown:
        def __init__(self, total: int, unit: str, done: str):
            noted.append((total, done))

        def skip(self, count: int) -> None:
            noted.append(count)

        def advance(self, count: int) -> None:
            noted.append(count)

        def __enter__(self) -> "Shown":
            return self

        def __exit__(self, kind, error, trace) -> None:
            pass

    monkeypatch.setattr(lexical_ranker, "Progress", Shown)
    _rank(passages, questions, tmp_path / "r", shard_passages=20, query_block=30)
    assert noted == [(43, "looked up"), 0, 30, 13, (3 * 43, "ranked"), 0, 30, 13, 30, 13, 30, 13]


def test_reads_a_corpus_file(tmp_path: Path):
    questions = [passage.text for _, passage in iter_passages(PASSAGES)]
    found = rank(
        *(lambda: iter_passages(PASSAGES), questions, tmp_path / "r", Bm25Settings()),
        **{"depth": 3, "corpus_name": str(PASSAGES), "corpus_fingerprint": "a", "queries_fingerprint": "b"},
    )
    assert found.rows[:, 0].tolist() == list(range(len(questions)))
    assert json.loads((tmp_path / "r" / "finished.json").read_text()) == {"passages": len(questions)}
