"""BM25 over a streamed corpus: the same ranks whatever the shards, ties by id, and nothing done twice."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxretr.data.corpus import Passage
from jaxretr.errors import UserError
from jaxretr.search import lexical_ranker
from jaxretr.search.bm25_words import Bm25Settings, split_words
from jaxretr.search.lexical_ranker import rank

WORDS = ["the", "of", "lamp", "river", "stone", "north", "music", "glass", "iron", "bread", "seven", "winter"]


def passages(count: int = 60, seed: int = 0) -> list[Passage]:
    """Short texts of few words, so that many have the same score; ids in no order, some of several bytes."""
    rng = np.random.default_rng(seed)
    chances = 1 / np.arange(1, len(WORDS) + 1)
    found = []
    for number in range(count):
        text = " ".join(rng.choice(WORDS, rng.integers(0, 6), p=chances / chances.sum()))
        found.append(Passage(f"{'é' * (number % 2)}p{(number * 37) % count}", "", text))
    return found


def queries(count: int = 40) -> list[str]:
    rng = np.random.default_rng(1)
    return [" ".join(rng.choice([*WORDS, "unknown"], rng.integers(1, 7))) for _ in range(count)] + ["nothing here", ""]


def ranked(corpus: list[Passage], asked: list[str], folder: Path, depth: int = 12, **changes: Any):
    settings = changes.pop("settings", Bm25Settings(stemmer=None))
    given: dict[str, Any] = {"depth": depth, "corpus_name": "corpus.tsv", **changes}
    return rank(
        lambda: enumerate(corpus, start=2),
        asked,
        folder,
        settings,
        corpus_fingerprint="c",
        queries_fingerprint="q",
        **given,
    )


def reference(corpus: list[Passage], asked: list[str], depth: int) -> list[list[tuple[float, int]]]:
    """Lucene's formula in float64; (score, row), equal scores by id."""
    counts = [Counter(split_words(f"{passage.title} {passage.text}")) for passage in corpus]
    holders = Counter(word for count in counts for word in count)
    mean = sum(count.total() for count in counts) / len(corpus)
    found = []
    for query in asked:
        scored = []
        for row, count in enumerate(counts):
            score = 0.0
            for word in split_words(query):
                if count[word]:
                    idf = math.log(1 + (len(corpus) - holders[word] + 0.5) / (holders[word] + 0.5))
                    score += idf * count[word] / (count[word] + 0.9 * (1 - 0.4 + 0.4 * count.total() / mean))
            if score > 0:
                scored.append((round(score, 5), row))
        found.append(sorted(scored, key=lambda hit: (-hit[0], corpus[hit[1]].id))[:depth])
    return found


def test_ranks_and_ties_are_those_of_the_formula(tmp_path: Path) -> None:
    corpus, asked = passages(), queries()
    found = ranked(corpus, asked, tmp_path / "a")
    assert found.num_passages == 60 and found.rows.dtype == np.int32 and found.scores.dtype == np.float32
    ties = 0
    for rows, scores, expected in zip(found.rows.tolist(), found.scores, reference(corpus, asked, 12), strict=True):
        assert [row for row in rows if row >= 0] == [row for _, row in expected]
        np.testing.assert_allclose(scores, [*(score for score, _ in expected), *[0] * (12 - len(expected))], atol=2e-5)
        ties += len(expected) - len({score for score, _ in expected})
    assert ties > 50, "the corpus is made to have ties"
    assert (found.rows[-2:] == -1).all(), "no shared word, no hit"


@pytest.mark.parametrize("changes", [{"shard_passages": 7}, {"shard_passages": 1, "query_block": 5}, {"threads": 3}])
@pytest.mark.parametrize("settings", [Bm25Settings(), Bm25Settings(k1=1.2, b=0.75, quantise_lengths=True)])
def test_shards_blocks_and_threads_change_no_bit(
    tmp_path: Path, changes: dict[str, int], settings: Bm25Settings
) -> None:
    corpus, asked = passages(200, 3), queries(100)
    whole = ranked(corpus, asked, tmp_path / "whole", settings=settings)
    parts = ranked(corpus, asked, tmp_path / "parts", settings=settings, **changes)
    np.testing.assert_array_equal(whole.rows, parts.rows)
    np.testing.assert_array_equal(whole.scores, parts.scores)


class Killed(Exception):
    """Stands for a kill."""


def test_a_killed_ranking_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, asked = passages(50), queries(30)
    whole = ranked(corpus, asked, tmp_path / "whole")
    shape = {"shard_passages": 10, "query_block": 8}
    read: list[int] = []

    def breaking(at: int) -> Iterator[tuple[int, Passage]]:
        for number, passage in enumerate(corpus):
            if number == at:
                raise Killed
            read.append(number)
            yield number + 2, passage

    arguments = {"depth": 12, "corpus_name": "c", "corpus_fingerprint": "c", "queries_fingerprint": "q", **shape}
    folder, settings = tmp_path / "killed", Bm25Settings(stemmer=None)
    with pytest.raises(Killed):
        rank(lambda: breaking(35), asked, folder, settings, **arguments)
    assert len([*folder.glob("words-*.npy")]) == 3

    searched: list[int] = []
    original = lexical_ranker.write_array

    def counting(path: Path, *rest: Any) -> None:
        if path.name.startswith("best-"):
            if len(searched) == 13:
                raise Killed
            searched.append(1)
        original(path, *rest)

    monkeypatch.setattr(lexical_ranker, "write_array", counting)
    with pytest.raises(Killed):
        rank(lambda: enumerate(corpus, start=2), asked, folder, settings, **arguments)
    assert len(searched) == 13
    searched.clear()
    monkeypatch.setattr(lexical_ranker, "write_array", lambda path, *rest: searched.append(1) or original(path, *rest))
    found = rank(lambda: breaking(0), asked, folder, settings, **arguments)
    assert len(searched) == 5 * 4 - 13 + 2, "what was finished is not searched again; then rows and scores"
    np.testing.assert_array_equal(found.rows, whole.rows)
    np.testing.assert_array_equal(found.scores, whole.scores)
    assert rank(lambda: breaking(0), asked, folder, settings, **arguments).rows.shape == whole.rows.shape


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    corpus, asked = passages(20), queries(3)
    twice = [*corpus, Passage(corpus[3].id, "", "again")]
    for shards in (1000, 6):
        with pytest.raises(UserError, match=rf"corpus\.tsv:22: duplicate id '{corpus[3].id}' \(first on line 5\)"):
            ranked(twice, asked, tmp_path / f"twice{shards}", shard_passages=shards)
    with pytest.raises(UserError, match="the corpus is empty"):
        ranked([], asked, tmp_path / "empty")
    with pytest.raises(UserError, match="has no word"):
        ranked([Passage("1", "", "..."), Passage("2", "", "")], asked, tmp_path / "words")
    with pytest.raises(UserError, match="no queries"):
        ranked(corpus, [], tmp_path / "queries")
    ranked(corpus, asked, tmp_path / "made")
    with pytest.raises(UserError, match="another depth"):
        ranked(corpus, asked, tmp_path / "made", depth=3)
    with pytest.raises(UserError, match="another settings"):
        ranked(corpus, asked, tmp_path / "made", settings=Bm25Settings(k1=2.0, stemmer=None))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"something else than a ranking \(notes\.txt\)"):
        ranked(corpus, asked, tmp_path / "other")


def test_long_ids_and_chinese(tmp_path: Path) -> None:
    texts = ["东京是日本的首都", "京都在日本", "Tokyo is large", "东方的京城"]
    corpus = [Passage("x" * 80 + str(9 - number), "", text) for number, text in enumerate(texts)]
    found = ranked(corpus, ["东京在哪里", "日本"], tmp_path / "a")
    assert found.rows[0, 0] == 0 and 3 not in found.rows[0], "pairs of characters, not single ones"
    assert set(found.rows[1][found.rows[1] >= 0]) == {0, 1}
