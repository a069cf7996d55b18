"""Runs survive their files, in the order given, and no file is ever half-written."""

import errno
import json
import os
import stat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.run_reading import Hits, read_trec, strictly_decreasing, write_dpr_json, write_jsonl, write_trec
from jaxretr.evaluate.metrics import evaluate
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.files import atomic_write

CORPUS = Corpus(
    ["p1", "p2", "p3"],
    ["Paris", "NaN", ""],
    ["Paris is the capital of France.", "日本 — “quoted”\nline", "half a pair: \ud800"],
)
QUESTIONS = [Question("q1", "capital of France?", ("paris", "Lutetia")), Question("q2", "no answers known")]
HITS = [
    Hits("q2", ["p3"], np.array([0.1], np.float32)),
    Hits("q1", ["p2", "p1"], np.array([2.5, -1.25], np.float32)),
]


def test_trec_run_as_text(tmp_path):
    write_trec(tmp_path / "run", {"q1": {"d2": 2.5, "d1": -1.0}, "q0": {"d1": 0.0}}, tag="mine")
    assert (tmp_path / "run").read_text() == "q1 Q0 d2 1 2.5 mine\nq1 Q0 d1 2 -1 mine\nq0 Q0 d1 1 0 mine\n"
    assert read_trec(tmp_path / "run") == {"q1": {"d2": 2.5, "d1": -1.0}, "q0": {"d1": 0.0}}


@settings(max_examples=100, deadline=None)
@given(
    scores=st.lists(
        st.one_of(
            st.sampled_from([0.0, -0.0, 1.0, 1.0000001, 16777217.0, 1e-45, -1e-45, 3e38]),
            st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100)),
        ),
        max_size=8,
    )
)
def test_trec_eval_sees_the_order_given(scores, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.trec"
    scores = sorted(scores, reverse=True) if len(scores) % 2 else scores
    ids = [f"d{number}" for number in range(len(scores))]  # ascending: ties by id would turn the order round
    write_trec(path, [Hits("q", ids, np.array(scores, np.float32)), Hits("end", ["d"], np.ones(1, np.float32))])
    read = read_trec(path).get("q", {})
    singles = np.array(list(read.values()), np.float32)
    assert list(read) == ids
    assert (singles[1:] < singles[:-1]).all()
    for rank, passage_id in enumerate(ids, start=1):
        assert evaluate({"q": {passage_id: 1}}, {"q": read}, ["mrr"]) == {"mrr": 1 / rank}


@settings(max_examples=100, deadline=None)
@given(scores=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), unique=True, min_size=1, max_size=8))
def test_scores_that_decrease_come_back_bit_for_bit(scores, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.trec"
    expected = np.array(sorted(scores, reverse=True), np.float32)
    write_trec(path, [Hits("q", [f"d{number}" for number in range(len(scores))], expected)])
    np.testing.assert_array_equal(np.array(list(read_trec(path)["q"].values()), np.float32), expected)


def test_a_nudge_is_the_smallest_step():
    step = np.spacing(np.float32(1.0)) / 2  # below 1 the steps are half as wide
    lowered = strictly_decreasing(np.array([1, 1, 1, 5, 0.5, 0.5], np.float32))
    np.testing.assert_array_equal(
        lowered, np.array([1, 1 - step, 1 - 2 * step, 1 - 3 * step, 0.5, 0.5 - step / 2], np.float32)
    )
    tiny = strictly_decreasing(np.zeros(3, np.float32))
    assert tiny[0] == 0 > tiny[1] > tiny[2] > -1e-44


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"q 1": {"d": 1.0}}, "question id 'q 1' contains white space"),
        ({"q": {"d\u00a01": 1.0}}, "passage id"),
        ({"q": {"": 1.0}}, "passage id '' is empty"),
        ({"q": {"d": float("nan")}}, "passage 'd' for question 'q' is not a finite number"),
        ({"q": {"d": 1e300}}, "not a finite number"),
        ([Hits("q", ["d", "d"], np.zeros(2, np.float32))], "a passage twice"),
        ([Hits("q", ["d"], np.zeros(1, np.float32))] * 2, "'q' occurs twice"),
    ],
)
def test_what_a_trec_run_cannot_hold_leaves_the_old_file(run, message, tmp_path):
    path = tmp_path / "run.trec"
    path.write_text("old")
    with pytest.raises(UserError, match=message):
        write_trec(path, run)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["run.trec"]


def test_a_tag_with_white_space_is_refused(tmp_path):
    with pytest.raises(UserError, match="tag 'my system'"):
        write_trec(tmp_path / "run", {"q": {"d": 1.0}}, tag="my system")


def test_runs_of_other_programs_are_read(tmp_path):
    path = tmp_path / "run"
    path.write_bytes(b"\xef\xbb\xbfq1\tQ0\td\xc2\xa01\t1\t1e1\tt\r\n\n  q1 0  d2 1 -.5 t  \nq0 Q0 d2 9 inf t")
    assert read_trec(path) == {"q1": {"d\u00a01": 10.0, "d2": -0.5}, "q0": {"d2": float("inf")}}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (b"q Q0 d 1 2.0 t\nq Q0 d2 1 2.0\n", "run:2: expected 6 columns"),
        (b"q Q0 d 1 2.0 a tag\n", "run:1: expected 6 columns"),
        (b"\nq Q0 d 1 high t\n", "run:2: the score 'high' is not a number"),
        (b"q Q0 d 1 nan t\n", "run:1: the score 'nan' is not a number"),
        (b"q Q0 d 1 2 t\nq Q0 d 2 1 t\n", "run:2: passage 'd' occurs twice"),
        (b"q Q0 \xff 1 2 t\n", "run:1: an id is not UTF-8"),
        (b"\n \n", "the run is empty"),
    ],
)
def test_bad_lines_are_named(lines, message, tmp_path):
    (tmp_path / "run").write_bytes(lines)
    with pytest.raises(UserError, match=message) as error:
        read_trec(tmp_path / "run")
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


def test_a_missing_run_is_one_line(tmp_path):
    with pytest.raises(UserError, match="none: cannot be read"):
        read_trec(tmp_path / "none")
    with pytest.raises(UserError, match="cannot be read"):
        read_trec(tmp_path)


def test_dpr_json(tmp_path):
    write_dpr_json(tmp_path / "out.json", QUESTIONS, CORPUS, HITS)
    assert json.loads((tmp_path / "out.json").read_text()) == [
        {
            "id": "q2",
            "question": "no answers known",
            "answers": [],
            "ctxs": [
                {"id": "p3", "title": "", "text": "half a pair: \ud800", "score": "0.1", "has_answer": False},
            ],
        },
        {
            "id": "q1",
            "question": "capital of France?",
            "answers": ["paris", "Lutetia"],
            "ctxs": [
                {"id": "p2", "title": "NaN", "text": CORPUS.texts[1], "score": "2.5", "has_answer": False},
                {"id": "p1", "title": "Paris", "text": CORPUS.texts[0], "score": "-1.25", "has_answer": True},
            ],
        },
    ]
    write_dpr_json(tmp_path / "none.json", QUESTIONS, CORPUS, [])
    assert json.loads((tmp_path / "none.json").read_text()) == []
    write_dpr_json(tmp_path / "regex.json", [Question("q1", "?", ("^par.s",))], CORPUS, HITS[1:], match="regex")
    contexts = json.loads((tmp_path / "regex.json").read_text())[0]["ctxs"]
    assert [context["has_answer"] for context in contexts] == [False, True]


def test_jsonl(tmp_path):
    write_jsonl(tmp_path / "out.jsonl", QUESTIONS, CORPUS, HITS)
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"question_id": "q2", "question": "no answers known", "hits": [{"id": "p3", "title": "", "score": 0.1}]},
        {
            "question_id": "q1",
            "question": "capital of France?",
            "hits": [{"id": "p2", "title": "NaN", "score": 2.5}, {"id": "p1", "title": "Paris", "score": -1.25}],
        },
    ]


@pytest.mark.parametrize("write", [write_dpr_json, write_jsonl])
def test_hits_of_another_corpus_or_other_questions_are_refused(write, tmp_path):
    for hits, message in [
        (Hits("q3", ["p1"], np.zeros(1, np.float32)), "question 'q3' has hits but is not among the questions"),
        (Hits("q1", ["p9"], np.zeros(1, np.float32)), "passage 'p9', found for question 'q1', is not in the corpus"),
        (Hits("q1", ["p1"], np.full(1, np.inf, np.float32)), "not a finite number"),
    ]:
        with pytest.raises(UserError, match=message):
            write(tmp_path / "out", QUESTIONS, CORPUS, [HITS[0], hits])
    assert os.listdir(tmp_path) == []


def test_hits_need_a_score_each():
    with pytest.raises(ValueError, match="2 ids but 1 scores"):
        Hits("q", ["a", "b"], np.zeros(1, np.float32))


def test_atomic_write_makes_folders_and_keeps_the_umask(tmp_path):
    path = tmp_path / "new" / "folder" / "file"
    before = os.umask(0o027)
    try:
        with atomic_write(path) as file:
            file.write("é\n")
            assert not path.exists()
    finally:
        os.umask(before)
    assert path.read_bytes() == b"\xc3\xa9\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(path.parent) == ["file"]


def test_atomic_write_follows_links(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with atomic_write(tmp_path / "link", "wb") as file:
        file.write(b"x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"x"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), FileNotFoundError(errno.ENOENT, "gone", "input.tsv")])
def test_an_error_of_the_block_passes_and_the_old_file_stays(error, tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(type(error)) as raised, atomic_write(tmp_path / "file") as file:
        file.write("new")
        raise error
    assert raised.value is error
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"run.trec: cannot be written \(No space left on device\); free some space"):
        write_trec(tmp_path / "run.trec", {"q": {"d": 1.0}})
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_devices_are_written_to_and_not_replaced():
    with pytest.raises(UserError, match="/dev/full: cannot be written"):
        write_trec("/dev/full", {"q": {"d": 1.0}})
    write_trec("/dev/null", {"q": {"d": 1.0}})
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_unwritable_places_are_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"out: cannot be written .*choose another path"):
        write_trec(tmp_path / "file" / "out", {"q": {"d": 1.0}})
    with pytest.raises(UserError, match="it is a folder: name a file"):
        write_trec(tmp_path, {"q": {"d": 1.0}})
    with pytest.raises(UserError, match="choose a shorter name"):
        write_trec(tmp_path / ("n" * 300), {"q": {"d": 1.0}})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_one_line(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="choose a folder that you may write to"):
        write_trec(tmp_path / "out", {"q": {"d": 1.0}})
