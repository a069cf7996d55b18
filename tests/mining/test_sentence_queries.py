"""Sentence queries: as many of each passage as the formula says, the same ones however the corpus is read."""

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from jaxretr.data.corpus import read_corpus
from jaxretr.data.corpus_stream import CorpusStream
from jaxretr.data.mapped_texts import QueryStore
from jaxretr.data.sentences import split_sentences
from jaxretr.mining.sentence_queries import (
    COUNTS,
    SOURCES,
    Documents,
    Sampling,
    SentenceCounts,
    drawn,
    sampled_sentences,
    write_sentence_queries,
)
from jaxretr.runtime.errors import UsageError, UserError

DATA = Path(__file__).parents[1] / "data" / "wiki_qa"


def write_corpus(path: Path, rows: list[tuple[str, str, str]], **fields: list) -> Path:
    """A corpus of (id, title, text), and further fields."""
    lines = []
    for number, (id, title, text) in enumerate(rows):
        more = {name: values[number] for name, values in fields.items()}
        lines.append(json.dumps({"_id": id, "title": title, "text": text, **more}) + "\n")
    path.write_text("".join(lines))
    return path


def text_of(sentences: int, name: str = "x") -> str:
    """A text of so many different sentences."""
    return " ".join(f"Sentence {name} number {number} stands here." for number in range(sentences))


def _articles(path: Path, lengths: list[list[int]]) -> Path:
    rows = []
    for article, passages in enumerate(lengths):
        for position, sentences in enumerate(passages):
            name = f"{article}-{position}"
            rows.append((f"d{name}", f"Title {article}", text_of(sentences, name)))
    return write_corpus(path, rows)


def _sampled(path: Path | list[Path], rule: str = "title", **settings) -> tuple[list[list[str]], SentenceCounts]:
    """The sentences drawn of each row."""
    counts = SentenceCounts()
    corpus = CorpusStream(path if isinstance(path, list) else [path])
    found = list(sampled_sentences(corpus, Documents(rule), Sampling(**settings), counts))
    assert [row for row, _ in found] == list(range(corpus.num_rows))
    return [sentences for _, sentences in found], counts


def _formula(sentences: int, position: int, base: Fraction = Fraction(6, 5)) -> int:
    """max(1, round(s / (base (i + 1)))), halves to the even number, in exact arithmetic."""
    value = Fraction(sentences) / (base * (position + 1))
    whole, rest = divmod(value, 1)
    up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2)
    return min(max(1, int(whole) + int(up)), sentences)


# ---- how many --------------------------------------------------------------------------------------------------------


def test_counts_are_the_formulas():
    # 1.2 is no binary fraction: where the exact quotient ends in a half, float64 may round either way.
    for position in range(40):
        for sentences in range(1, 60):
            exact = Fraction(sentences) / (Fraction(6, 5) * (position + 1))
            if exact % 1 != Fraction(1, 2):
                assert Sampling().count(sentences, position) == _formula(sentences, position), (sentences, position)
            # A base of 2 is exact, so all halves are.
            assert Sampling(base=2.0).count(sentences, position) == _formula(sentences, position, Fraction(2))
    assert [Sampling().count(5, position) for position in range(6)] == [4, 2, 1, 1, 1, 1], "the paper's example"
    assert [Sampling(base=2.0).count(sentences, 0) for sentences in (1, 3, 5, 7)] == [1, 2, 2, 4], "halves go to even"
    assert Sampling(base=0.1).count(3, 0) == 3, "never more than there are"
    assert [Sampling("uniform", per_passage=2).count(sentences, 9) for sentences in (0, 1, 2, 5)] == [0, 1, 2, 2]
    assert Sampling("all").count(7, 3) == 7
    assert all(Sampling(kind).count(0, 2) == 0 for kind in ("position", "uniform", "all"))


def test_articles_give_as_many_queries_as_the_formula_says(tmp_path: Path):
    seed = 3
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(0, 12, rng.integers(1, 9)).tolist() for _ in range(40)]
    path = _articles(tmp_path / "corpus.jsonl", lengths)
    found, counts = _sampled(path)
    sampling = Sampling()
    expected = [sampling.count(sentences, position) for of in lengths for position, sentences in enumerate(of)]
    assert [len(sentences) for sentences in found] == expected, f"seed {seed}"
    flat = [sentences for of in lengths for sentences in of]
    assert counts.passages == len(flat) and counts.passages_without == flat.count(0) > 0
    assert counts.documents == len(lengths) and counts.sentences == sum(flat) and counts.sampled == sum(expected)


def test_real_passages():
    corpus = read_corpus(DATA)
    positions: Counter[str] = Counter()
    expected = []
    for row, title in enumerate(corpus.titles):
        before = corpus.titles[row - 1] if row else None
        positions[title] = positions[title] + 1 if title == before else 0
        expected.append(_formula(len(split_sentences(corpus.texts[row])), positions[title]))
    found, _ = _sampled(DATA / "corpus.jsonl")
    assert [len(sentences) for sentences in found] == expected
    for text, sentences in zip(corpus.texts, found, strict=True):
        places = [text.index(sentence) for sentence in sentences]
        assert places == sorted(places), "in the order of the passage"


# ---- which -----------------------------------------------------------------------------------------------------------


def test_every_sentence_is_as_likely_as_the_others_and_none_is_drawn_twice():
    sampling = Sampling("uniform", per_passage=4, seed=1)
    drawn_of = Counter(number for row in range(4000) for number in sampling.choose(10, 0, row))
    assert sum(drawn_of.values()) == 16_000
    # A count of 4000 draws at .4 has a standard deviation of 31.
    assert all(abs(drawn_of[number] - 1600) < 5 * 31 for number in range(10)), drawn_of
    pairs = Counter(tuple(Sampling("uniform", per_passage=2, seed=1).choose(4, 0, row)) for row in range(6000))
    # All 6 pairs, each 1000 times, give or take 29.
    assert len(pairs) == 6 and all(abs(count - 1000) < 5 * 29 for count in pairs.values()), pairs


def test_the_draw_is_a_function_of_seed_and_row():
    chosen = {seed: [Sampling(seed=seed).choose(12, 1, row) for row in range(50)] for seed in (0, 1)}
    assert chosen[0] == [Sampling(seed=0).choose(12, 1, row) for row in range(50)]
    assert sum(a == b for a, b in zip(chosen[0], chosen[1], strict=True)) < 10
    assert len({tuple(rows) for rows in chosen[0]}) > 25


def test_the_queries_do_not_depend_on_how_the_corpus_is_split_into_files(tmp_path: Path):
    rng = np.random.default_rng(0)
    lengths = [rng.integers(1, 12, rng.integers(1, 6)).tolist() for _ in range(12)]
    path = _articles(tmp_path / "corpus.jsonl", lengths)
    lines = path.read_text().splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_text("".join(lines[:11]))  # within an article
    (tmp_path / "b.jsonl").write_text("".join(lines[11:]))
    whole, _ = _sampled(path, seed=4)
    assert _sampled([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], seed=4)[0] == whole
    # What stands behind a passage does not change its queries either.
    assert _sampled(tmp_path / "a.jsonl", seed=4)[0] == whole[:11]


# ---- documents -------------------------------------------------------------------------------------------------------


def _positions(path: Path, rule: str) -> list[int]:
    return [position for _, position in Documents(rule).positions(CorpusStream([path]))]


def test_documents_by_title(tmp_path: Path):
    titles = ["A", "A", "B", "A", "", "", "NaN", "NaN", "null", "a"]
    rows = [(f"p{row}", title, "t") for row, title in enumerate(titles)]
    assert _positions(write_corpus(tmp_path / "c.jsonl", rows), "title") == [0, 1, 0, 0, 0, 0, 0, 1, 0, 0]


def test_documents_by_id_and_by_field_need_no_neighbours(tmp_path: Path):
    ids = ["a-1-0", "a-2-0", "a-1-1", "b-0", "a-1-7", "a-2-1"]
    rows = [(id, "T", "t") for id in ids]
    fields = [7, "8", "7", "x", 7, 8]
    path = write_corpus(tmp_path / "c.jsonl", rows, doc=fields)
    assert _positions(path, r"id:(.+)-\d+") == [0, 0, 1, 0, 2, 1]
    assert _positions(path, "field:doc") == [0, 0, 1, 0, 2, 1]


@pytest.mark.parametrize("rule", ["titles", "id:", "field:", "", "id:(", "id:[", r"id:.+-\d+", "doc:x"])
def test_bad_rules_are_refused(rule: str):
    with pytest.raises(UsageError, match=r"does not name a rule|regular expression|has no group"):
        Documents(rule)


def test_rows_without_a_document_are_named(tmp_path: Path):
    path = write_corpus(tmp_path / "c.jsonl", [("a-0", "T", "t"), ("b", "T", "t")], doc=["x", None])
    with pytest.raises(UserError, match=r"c.jsonl:2: the expression .* does not match the id 'b'"):
        _positions(path, r"id:(.+)-\d+")
    with pytest.raises(UserError, match=r"c.jsonl:2: has no field 'doc'"):
        _positions(path, "field:doc")
    path = write_corpus(tmp_path / "d.jsonl", [("a", "T", "t")], doc=[["x"]])
    with pytest.raises(UserError, match=r"d.jsonl:1: field 'doc' is neither text"):
        _positions(path, "field:doc")
    (tmp_path / "c.tsv").write_text("id\ttext\ttitle\n1\tx\ty\n")
    with pytest.raises(UserError, match=r"c.tsv:2: not a JSON object"):
        _positions(tmp_path / "c.tsv", "field:doc")


# ---- written ---------------------------------------------------------------------------------------------------------


def _written(folder: Path, path: Path, limit: int | None = None, **settings) -> tuple[list[str], list[int]]:
    counts = write_sentence_queries(folder, CorpusStream([path]), Documents("title"), Sampling(**settings), limit=limit)
    queries, sources = QueryStore(folder), np.load(folder / SOURCES)
    assert json.loads((folder / COUNTS).read_text())["queries"] == counts.queries == len(queries) == len(sources)
    return list(queries), sources.tolist()


def test_the_order_is_that_of_the_passages_and_a_limit_thins_evenly(tmp_path: Path):
    path = _articles(tmp_path / "corpus.jsonl", [[6, 0, 4, 3]] * 50)
    queries, sources = _written(tmp_path / "all", path, kind="all")
    assert len(queries) == 650 and sources == sorted(sources)
    assert queries == [sentence for text in read_corpus(path).texts for sentence in split_sentences(text)]
    thinned, thinned_sources = _written(tmp_path / "few", path, limit=130, kind="all")
    everything = list(zip(sources, queries, strict=True))
    places = [everything.index(pair) for pair in zip(thinned_sources, thinned, strict=True)]
    assert len(places) == 130 and places == sorted(set(places))
    # A quarter of the corpus has 32.5 of them, give or take 4.4.
    assert all(10 <= count <= 55 for count in np.histogram(places, 4, (0, 650))[0])
    assert _written(tmp_path / "again", path, limit=130, kind="all") == (thinned, thinned_sources)
    assert _written(tmp_path / "more", path, limit=10_000, kind="all")[0] == queries


def test_a_corpus_without_sentences_is_an_error(tmp_path: Path):
    path = write_corpus(tmp_path / "c.jsonl", [("a", "T", ""), ("b", "T", " ")])
    with pytest.raises(UserError, match="none of the 2 passages has a sentence"):
        _written(tmp_path / "out", path)
    assert not (tmp_path / "out" / COUNTS).exists()


def test_draws():
    numbers = drawn(1000, 100, 3, "dev")
    assert len(set(numbers.tolist())) == 100 and numbers.tolist() == sorted(numbers.tolist()) and numbers.max() < 1000
    assert drawn(1000, 100, 3, "limit").tolist() != numbers.tolist() == drawn(1000, 100, 3, "dev").tolist()
    assert drawn(5, 5, 0, "dev").tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base": 0.0}, "base"),
        ({"base": float("nan")}, "base"),
        ({"per_passage": 0}, "per_passage=0: must be at least 1"),
    ],
)
def test_bad_settings_are_refused(settings: dict, message: str):
    with pytest.raises(UsageError, match=message):
        Sampling(**settings)


# ---- the corpus as a stream ------------------------------------------------------------------------------------------


def test_a_streams_fingerprint_is_that_of_the_corpus_in_memory(tmp_path: Path):
    corpus = read_corpus(DATA)
    assert CorpusStream([DATA]).fingerprint == corpus.fingerprint()
    other = write_corpus(tmp_path / "more.jsonl", [("né", "NaN", "t\u2028x"), ("x", "", "")])
    both = CorpusStream([DATA, other])
    assert both.num_rows == len(corpus) + 2
    assert both.fingerprint == corpus.followed_by(read_corpus(other), other).fingerprint()


def test_repeated_ids_and_bad_rows(tmp_path: Path, caplog):
    first = write_corpus(tmp_path / "a.jsonl", [("x", "T", "one"), ("y", "T", "two")])
    second = write_corpus(tmp_path / "b.jsonl", [("z", "T", "three"), ("y", "T", "four"), ("w", "T", "five")])
    with pytest.raises(UserError, match=r"b.jsonl:2: duplicate id 'y' \(first at .*a.jsonl:2\)"):
        CorpusStream([first, second])
    with second.open("a") as file:
        file.write("{broken\n")
    with pytest.raises(UserError, match=r"b.jsonl:4: broken JSON"):
        CorpusStream([first, second])
    stream = CorpusStream([first, second], skip_bad=True)
    assert [passage.id for _, passage in stream.passages()] == ["x", "y", "z", "w"] and stream.num_rows == 4
    assert "skipped 2 bad rows, kept 2" in caplog.text
    assert CorpusStream([second], skip_bad=True).fingerprint == read_corpus(second, skip_bad=True).fingerprint()
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UserError, match="no passages"):
        CorpusStream([tmp_path / "empty.jsonl"])
