"""Writing training sets: what a format cannot hold is said, and what cannot be written leaves the old file."""

import json
import logging
from pathlib import Path

import pytest

from jaxretr.data.formats.examples import Candidate, Example
from jaxretr.data.formats.reading import read_examples
from jaxretr.data.formats.writing import write_examples
from jaxretr.data.readers import read_beir, read_corpus
from jaxretr.runtime.errors import UsageError, UserError

DATA = Path(__file__).parents[1] / "data"
CORPUS = read_corpus(DATA / "wiki_qa")


def golden(name: str) -> list[Example]:
    return list(read_examples(DATA / "formats" / name))


def message(read, *args, **kwargs) -> str:
    with pytest.raises(UserError) as caught:
        read(*args, **kwargs)
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value), "no remedy"
    return str(caught.value)


def test_columns_need_one_number_of_negatives(tmp_path, caplog):
    candidates = [Candidate(None, "", text) for text in "pabc"]
    uneven = [
        Example(str(n), f"q{n}", (), (candidates[0],), tuple(candidates[1 : 1 + count]), line=n + 1)
        for n, count in enumerate((2, 3, 1))
    ]
    path = tmp_path / "out.jsonl"
    problem = message(write_examples, path, uneven, "sentence-transformers", source="in.json")
    assert problem.startswith("in.json:2: 3 negatives where the first question has 2")
    assert not path.exists()
    with caplog.at_level(logging.WARNING):
        assert write_examples(path, uneven, "sentence-transformers", negatives=2) == 2
    assert [list(row) for row in map(json.loads, path.read_text().splitlines())] == [
        ["anchor", "positive", "negative_1", "negative_2"]
    ] * 2
    assert "more than 2 negatives were left out in 1 examples" in caplog.text
    assert "with fewer than 2 negatives, left out, in 1 examples" in caplog.text
    assert write_examples(path, uneven, "sentence-transformers", negatives=0) == 3
    with pytest.raises(UsageError, match="takes any number"):
        write_examples(path, uneven, "flag", negatives=1)


def test_what_is_lost_is_said(tmp_path, caplog):
    examples = golden("dpr.json")
    with caplog.at_level(logging.WARNING):
        write_examples(tmp_path / "out", examples, "tevatron2")
    assert "answers were left out in 2 examples" in caplog.text
    assert "other negatives than the hard ones were left out in 1 examples" in caplog.text
    again = list(read_examples(tmp_path / "out"))
    for kind in ("positives", "negatives"):
        scores = [[each.score for each in getattr(example, kind)] for example in examples]
        kept = [[each.score for each in getattr(example, kind)] for example in again]
        assert kept[0] == scores[0] and any(kept[0]), "scores stand next to the ids"
    with caplog.at_level(logging.WARNING):
        write_examples(tmp_path / "out", examples, "triples")
    assert "scores were left out in 2 examples" in caplog.text
    caplog.clear()
    # As DPR trains: the other negatives stand in where there is no hard one.
    easy = Example("7", "q", (), examples[0].positives, (), examples[0].other_negatives)
    write_examples(tmp_path / "out", [easy], "tevatron")
    assert [each.id for each in next(read_examples(tmp_path / "out")).negatives] == ["nq:p0"]
    assert not caplog.records


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "out"
    path.write_text("old")
    of_ids = golden("tevatron2.jsonl")
    bare = [Example("0", "q", (), (Candidate(None, "", "p"),), (), line=3)]
    none = [Example("0", "q", (), (), (), line=3)]
    tab = [Example("a\tb", "q", (), of_ids[0].positives, (), line=3)]
    for format, examples, corpus, problem in [
        ("dpr", of_ids, None, "in:1: passage 'nq:p1' has no text, and no corpus is given; give the corpus"),
        (
            "dpr",
            of_ids,
            CORPUS.from_passages([]),
            "in:1: passage 'nq:p1' has no text, and it is not in the corpus; give",
        ),
        ("tevatron2", bare, None, "in:3: a passage has no id, which is all that this format stores; convert"),
        ("distillation", of_ids, None, "in:1: a passage has no score; this format"),
        ("qrels", none, None, "no example of in can be written; without a positive, left out, in 1 examples; give"),
        ("triples", bare, None, "no example of in can be written; without a negative, left out, in 1 examples; give"),
        ("qrels", tab, None, r"in:3: the id 'a\tb' cannot be written in a table; rename it"),
    ]:
        assert problem in message(write_examples, path, examples, format, corpus, source="in"), format
        assert path.read_text() == "old"
        assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_a_beir_folder_from_texts(tmp_path):
    candidates = [Candidate(None, "", text) for text in ("p", "n", "p")] + [Candidate("n1", "T", "x")]
    known = Candidate(None, CORPUS.titles[4], CORPUS.texts[4])
    examples = [
        Example("a", "q a", ("yes",), (candidates[0],), (candidates[1], candidates[2])),
        Example("b", "q b", (), (candidates[3], known), (candidates[0],)),
    ]
    assert write_examples(tmp_path / "set", examples, "beir", CORPUS, split="dev") == 2
    beir = read_beir(tmp_path / "set", "dev")
    assert list(beir.corpus)[:20] == list(CORPUS)
    assert beir.corpus.texts[20:] == ["p", "n", "x"]
    p, n, x = beir.corpus.ids[20:]
    assert x == "n1"
    # "p" is right for the first question, though it stands among its negatives too.
    assert beir.qrels == {"a": {p: 1, n: 0}, "b": {"n1": 1, CORPUS.ids[4]: 1, p: 0}}
    assert [question.answers for question in beir.questions] == [("yes",), ()]
    twice = [examples[0], examples[0]]
    assert "question 'a' occurs twice" in message(write_examples, tmp_path / "set", twice, "beir")
    assert read_beir(tmp_path / "set", "dev").qrels == beir.qrels


def test_triples_hold_no_tabs(tmp_path):
    texts = [Candidate(None, "", text) for text in ("a\tb", "c\nd", "e")]
    write_examples(tmp_path / "out", [Example("0", "q\tr", (), tuple(texts[:1]), tuple(texts[1:]))], "triples")
    assert (tmp_path / "out").read_text() == "q r\ta b\tc d\nq r\ta b\te\n"
