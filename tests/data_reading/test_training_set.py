"""What is trained on is what the file says: rows of the right passages, nothing lost in silence, nothing trained twice."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxretr.data import duplicate_groups as module
from jaxretr.data.corpus import Corpus, Passage
from jaxretr.data.duplicate_groups import duplicate_groups, rows_of_texts
from jaxretr.data.readers import read_corpus
from jaxretr.data.training_set import Ragged, load_training_set
from jaxretr.runtime.errors import UserError

WIKI = Path(__file__).parents[1] / "data" / "wiki_qa"
FORMATS = Path(__file__).parents[1] / "data" / "formats"


def dpr_row(question: str, positives: list, hard: list = (), other: list = (), **more) -> dict:
    """A row of DPR's JSON; a passage is a text, an id as {"id": ...}, or an object."""
    kinds = {"positive_ctxs": positives, "hard_negative_ctxs": hard, "negative_ctxs": other}
    objects = {
        name: [{"title": "", "text": each} if isinstance(each, str) else each for each in found]
        for name, found in kinds.items()
    }
    return {"question": question, "answers": ["a"], **objects, **more}


def write(path: Path, rows: list[dict]) -> Path:
    """One row a line, from line 2 on."""
    path.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    return path


def rows(ragged: Ragged) -> list[list[int]]:
    return [ragged[i].tolist() for i in range(len(ragged))]


def error_of(*args, **kwargs) -> str:
    with pytest.raises(UserError) as caught:
        load_training_set(*args, **kwargs)
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value), "no remedy"
    return str(caught.value)


# ---- Ragged ----------------------------------------------------------------------------------------------------------


def test_ragged_rows_are_views():
    ragged = Ragged.from_rows([[1, 2], [], [3]], np.int32)
    assert len(ragged) == 3 and ragged.lengths.tolist() == [2, 0, 1]
    assert ragged.values.dtype == np.int32 and ragged.offsets.dtype == np.int64
    assert rows(ragged) == [[1, 2], [], [3]] and ragged[-1].tolist() == [3]
    ragged[0][1] = 7
    assert ragged.values.tolist() == [1, 7, 3]
    with pytest.raises(IndexError):
        ragged[3]
    with pytest.raises(ValueError, match="offsets"):
        Ragged(np.array([0, 1]), np.arange(2))


# ---- copies ----------------------------------------------------------------------------------------------------------

SHORT = st.tuples(st.sampled_from("ab"), st.sampled_from("xy"))


@settings(max_examples=60, deadline=None)
@given(content=st.lists(SHORT, max_size=9), wanted=st.lists(SHORT, max_size=4), collide=st.booleans())
def test_copies_are_found_by_content_even_where_keys_collide(content, wanted, collide):
    corpus = Corpus.from_passages(Passage(str(i), *each) for i, each in enumerate(content))
    titles, texts = [title for title, _ in wanted], [text for _, text in wanted]
    with pytest.MonkeyPatch.context() as patch:
        if collide:
            patch.setattr(module, "_content_keys", lambda titles, texts: np.zeros(len(titles), np.int64))
        first, found = duplicate_groups(corpus), rows_of_texts(corpus, titles, texts)
    assert first.dtype == np.int32
    assert first.tolist() == [content.index(each) for each in content]
    assert found.tolist() == [content.index(each) if each in content else -1 for each in wanted]


# ---- what becomes of candidates --------------------------------------------------------------------------------------


def test_a_file_without_a_corpus_brings_its_own_passages(tmp_path, caplog):
    path = write(
        tmp_path / "train.json",
        [
            dpr_row("q0", ["p", {"title": "T", "text": "p"}], ["n", "m"], ["o", "n"]),
            dpr_row("q1", ["n"], [{"title": "", "text": "p", "passage_id": "x"}]),
        ],
    )
    with caplog.at_level(logging.WARNING):
        training = load_training_set(path)
    assert not caplog.records
    assert [(each.id, each.text, each.answers) for each in training.questions] == [
        ("0", "q0", ("a",)),
        ("1", "q1", ("a",)),
    ]
    assert training.corpus_rows == 0 and len(training) == 2
    assert list(zip(training.passages.titles, training.passages.texts, strict=True)) == [
        *(("", "p"), ("T", "p"), ("", "n"), ("", "m"), ("", "o")),
    ]
    assert len(set(training.passages.ids)) == 5
    assert rows(training.positives) == [[0, 1], [2]]
    assert rows(training.negatives) == [[2, 3], [0]]
    assert rows(training.other_negatives) == [[4, 2], []]
    assert training.positives.values.dtype == np.int32
    assert training.positive_scores is None and training.negative_scores is None


def test_candidates_are_found_in_the_corpus_by_id_and_by_content(tmp_path, caplog):
    corpus = read_corpus(WIKI)
    known = {"title": corpus.titles[5], "text": corpus.texts[5]}
    path = write(
        tmp_path / "train.json",
        [
            dpr_row(
                "q0", [{"passage_id": corpus.ids[3]}], [known, "new", {"psg_id": corpus.ids[2], "text": "changed"}]
            ),
            dpr_row("q1", [{**known, "id": "elsewhere"}], [{"id": "mine", "text": "new too"}, "new"]),
        ],
    )
    with caplog.at_level(logging.WARNING):
        training = load_training_set(path, corpus)
    assert training.corpus_rows == 20
    assert list(training.passages)[:20] == list(corpus)
    assert training.passages.texts[20:] == ["new", "new too"]
    assert training.passages.ids[21] == "mine"
    assert rows(training.positives) == [[3], [5]]
    assert rows(training.negatives) == [[5, 20, 2], [21, 20]]
    (record,) = caplog.records
    assert (
        "1 passages have another title or text in the corpus (the first: passage 'nq:p2' on line 2)" in record.message
    )


def test_two_texts_of_one_id_are_two_passages(tmp_path, caplog):
    negatives = [{"id": "x", "text": "one"}, {"id": "x", "text": "two"}, {"id": "text-2", "text": "three"}, "four"]
    with caplog.at_level(logging.WARNING):
        training = load_training_set(write(tmp_path / "train.json", [dpr_row("q", ["p"], negatives)]))
    assert training.passages.texts == ["p", "one", "two", "three", "four"]
    assert training.passages.ids[1] == "x" and len(set(training.passages.ids)) == 5
    assert "1 passages have the id of another text (the first: 'x')" in caplog.text


def test_an_id_that_the_corpus_lacks_stops_or_is_counted(tmp_path, caplog):
    corpus = read_corpus(WIKI)
    data = [
        dpr_row("q0", [{"id": "nq:p1"}], [{"id": "nq:p2"}]),
        dpr_row("q1", [{"id": "nq:p3"}], [{"id": "gone"}, {"id": "nq:p2"}]),
        dpr_row("q2", [{"id": "gone too"}]),
    ]
    path = write(tmp_path / "train.json", data)
    assert error_of(path, corpus).startswith(f"{path}:3: passage 'gone' is not in the corpus; give the corpus")
    assert error_of(path).startswith(f"{path}:2: passage 'nq:p1' is given only by its id; give the corpus")
    with caplog.at_level(logging.WARNING):
        training = load_training_set(path, corpus, skip_bad=True)
    assert [question.id for question in training.questions] == ["0", "1"]
    assert rows(training.negatives) == [[2], [2]]
    messages = [record.message for record in caplog.records]
    assert len(messages) == 2
    assert f"left out 2 candidates; the first: {path}:3: passage 'gone' is not in the corpus" in messages[0]
    assert "left out 1 of 3 questions, which have no positive passage; the first is on line 4" in messages[1]


def test_negatives_that_are_positives_are_left_out(tmp_path, caplog):
    # Row 2 of the corpus is a copy of row 0.
    corpus = Corpus(["a", "b", "c"], ["", "", ""], ["same", "other", "same"])
    ids = {name: {"id": name} for name in "abc"}
    path = write(tmp_path / "train.json", [dpr_row("q", [ids["c"]], [*ids.values()], ["same", ids["b"]])])
    with caplog.at_level(logging.WARNING):
        training = load_training_set(path, corpus)
    assert rows(training.positives) == [[2]]
    assert rows(training.negatives) == [[1]] and rows(training.other_negatives) == [[1]]
    assert "left out 3 negatives that are positives of their question" in caplog.text


def test_a_positive_of_a_row_with_the_same_question_is_no_negative(tmp_path):
    corpus = Corpus(["a", "b", "c"], ["", "", ""], ["one", "two", "three"])
    lines = [
        {"query_id": "7", "query": "Who is it", "positive_passages": [{"docid": "a"}], "negative_passages": []},
        {"query_id": "8", "query": "who  is it", "positive_passages": [{"docid": "b"}], "negative_passages": []},
    ]
    lines[0]["negative_passages"] = [{"docid": name} for name in ("b", "c")]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    training = load_training_set(path, corpus)
    assert rows(training.positives) == [[0], [1]] and rows(training.negatives) == [[2], []]


def test_rows_without_a_positive_are_left_out_and_counted(tmp_path, caplog):
    path = write(tmp_path / "train.json", [dpr_row("q0", []), dpr_row("q1", ["p"], ["n"]), dpr_row("q2", [], ["n"])])
    with caplog.at_level(logging.WARNING):
        training = load_training_set(path)
    assert [question.text for question in training.questions] == ["q1"]
    assert rows(training.negatives) == [[1]]
    (record,) = caplog.records
    assert "left out 2 of 3 questions, which have no positive passage; the first is on line 2" in record.message
    none = write(tmp_path / "none.json", [dpr_row("q0", [], ["n"])])
    assert error_of(none) == (
        f"{none}:2: no positive passage, nor does any other of the 1 questions have one; "
        "give every question a passage that answers it"
    )


def test_rows_of_one_question_are_joined(tmp_path, caplog):
    lines = ["q\tp\tn1", "other\tn1\tp", "q\tp\tn2", "q\tp2\tn1"]
    path = tmp_path / "triples.tsv"
    path.write_text("".join(f"a {line.replace(chr(9), chr(9) + 'a ')}\n" for line in lines))
    training = load_training_set(path)
    assert [(question.id, question.text) for question in training.questions] == [("0", "a q"), ("1", "a other")]
    texts = training.passages.texts
    assert [[texts[row] for row in found] for found in rows(training.positives)] == [["a p", "a p2"], ["a n1"]]
    assert [[texts[row] for row in found] for found in rows(training.negatives)] == [["a n1", "a n2"], ["a p"]]


def test_one_id_with_two_questions_is_an_error(tmp_path, caplog):
    data = [dpr_row("q", ["p"], id="x"), dpr_row("q", ["p2"], id="x"), dpr_row("r", ["p"], id="x")]
    path = write(tmp_path / "train.json", data)
    assert error_of(path).startswith(f"{path}:4: question 'x' has another text on line 2; give every question an id")
    with caplog.at_level(logging.WARNING):
        training = load_training_set(path, skip_bad=True)
    assert rows(training.positives) == [[0, 1]]
    assert "skipped 1 bad rows" in caplog.text


def test_scores_stand_beside_their_passages(tmp_path):
    def scored(text, score):
        return {"text": text, "score": score}

    # The repeated passage and the negative that is a positive take their scores with them.
    negatives = [scored("n", 1.5), scored("n", 9), scored("p", 8), scored("m", None), scored("k", "-0.5")]
    data = [dpr_row("q0", [], ["x"]), dpr_row("q1", [scored("p", "7.25")], negatives), dpr_row("q2", ["y"])]
    training = load_training_set(write(tmp_path / "train.json", data))
    assert training.positive_scores is not None and training.negative_scores is not None
    assert training.positive_scores.values.dtype == np.float32
    np.testing.assert_array_equal(training.positive_scores.values, np.array([7.25, np.nan], np.float32))
    np.testing.assert_array_equal(training.negative_scores[0], np.array([1.5, np.nan, -0.5], np.float32))
    np.testing.assert_array_equal(training.negative_scores.offsets, training.negatives.offsets)
    assert [training.passages.texts[row] for row in training.negatives[0]] == ["n", "m", "k"]


# ---- whole files -----------------------------------------------------------------------------------------------------


def test_a_beir_folder_brings_its_corpus_and_grades(tmp_path):
    training = load_training_set(WIKI)
    assert training.corpus_rows == len(training.passages) == 20
    assert len(training) == 6 and training.negatives.lengths.sum() == 0
    assert training.questions[0].answers == ("October 1973", "October", "1973")
    assert [training.passages.ids[row] for row in training.positives.values[:2]] == ["squad:0-0", "nq:p3"]
    assert len(load_training_set(WIKI, split="tydi")) == 4
    assert "no split 'trian', it has train, tydi; did you mean 'train'?" in error_of(WIKI, split="trian")
    # Grade 0 was judged wrong: a hard negative.
    again = load_training_set(FORMATS / "qrels.tsv", read_corpus(WIKI), queries=WIKI / "queries.jsonl")
    assert again.positives.lengths.tolist() == [1, 1] and again.negatives.lengths.tolist() == [2, 2]


def test_a_judged_passage_that_the_corpus_lacks(tmp_path, caplog):
    (tmp_path / "qrels").mkdir()
    for name in ("corpus.jsonl", "queries.jsonl"):
        (tmp_path / name).write_bytes((WIKI / name).read_bytes())
    judged = (WIKI / "qrels/train.tsv").read_text().replace("nq:p0\t", "nq:gone\t")
    (tmp_path / "qrels/train.tsv").write_text(judged)
    place = tmp_path / "qrels/train.tsv"
    assert error_of(tmp_path).startswith(f"{place}:4: passage 'nq:gone' is not in the corpus; give the corpus that was")
    with caplog.at_level(logging.WARNING):
        assert len(load_training_set(tmp_path, skip_bad=True)) == 5
    assert f"skipped 1 bad rows, kept 5; the first: {place}:4:" in caplog.text


@pytest.mark.parametrize(
    "content, message",
    [
        ("[]", "an empty array; give a file with at least one row"),
        ("", "is empty; give a file with at least one row"),
        (
            '[{"question": "q", "positive_ctxs": [{"text": 3}]}]',
            ':1: field "text" is a number, not a string; make it one',
        ),
    ],
)
def test_files_with_nothing_to_train_on(tmp_path, content, message):
    path = tmp_path / "train.json"
    path.write_text(content)
    assert message in error_of(path)


def test_a_large_file_takes_little_more_than_its_numbers(tmp_path):
    """3,000 questions x 31 candidates that are ids of the corpus: the parsed rows must not pile up."""
    import tracemalloc

    corpus = Corpus([f"p{i}" for i in range(1000)], [""] * 1000, [f"text {i}" for i in range(1000)])
    path = tmp_path / "train.jsonl"
    with open(path, "w") as file:
        for i in range(3000):
            negatives = [f"p{(i * 7 + j) % 999 + 1}" for j in range(30)]
            row = {"query_id": f"q{i}", "query_text": "q", "positive_document_ids": ["p0"]}
            file.write(json.dumps(row | {"negative_document_ids": negatives}) + "\n")
    load_training_set(path, corpus)  # imports and the corpus's table of ids are not counted
    tracemalloc.start()
    training = load_training_set(path, corpus)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert training.negatives.lengths.tolist() == [30] * 3000
    # 93,000 pairs of 12 bytes and some sorted copies of them, 8 MB; with all Candidate objects at once it is 20 MB.
    assert peak < 12e6, peak
