"""Bad input through the commands: one line that names the file, the line and the remedy; nothing half-written."""

import json
import logging
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tiny
from command_errors import the_error
from test_cli import (
    CORPUS,
    QUERIES,
    REPOSITORY,
    run,
    train_once,
    write_config,
)

from jaxretr.cli.process import set_up
from jaxretr.runtime.parallel.numba_loops import compiled
from jaxretr.training.metrics_log import MetricsLog, read_metrics

GOOD = '{"_id": "p1", "title": "Rome", "text": "the capital of Italy"}\n'
QUESTION = '{"_id": "q1", "text": "what is the capital of Italy"}\n'


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_once(tmp_path_factory.getbasetemp())


# ---- corpora and questions -------------------------------------------------------------------------------------------

CORPORA = {
    "broken line": (GOOD + '{"_id": "p2", "text": "no end\n', r"corpus\.jsonl:2: .*JSON"),
    "duplicate id": (
        GOOD + GOOD.replace("Rome", "Roma"),
        r"corpus\.jsonl:2: duplicate id 'p1' \(first (on line |at .*:)1\); give every passage an id of its own",
    ),
    "no id": (GOOD + '{"title": "x", "text": "y"}\n', r"corpus\.jsonl:2: .*_id"),
    "no UTF-8": (GOOD.encode() + b'{"_id": "p2", "text": "\xff"}\n', r"corpus\.jsonl:2: not valid UTF-8 .*; convert"),
    "empty": ("", r"corpus\.jsonl: no passages; give a corpus with at least one row"),
    "blank": ("\n \n", r"corpus\.jsonl: no passages; give a corpus with at least one row"),
}
QUESTIONS = {
    "none": ("", r"questions\.jsonl: no questions; give a file with at least one question"),
    "broken line": (QUESTION + "{\n", r"questions\.jsonl:2: .*JSON"),
    "duplicate id": (QUESTION + QUESTION, r"questions\.jsonl:2: duplicate id 'q1' \(first on line 1\); give every"),
}


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("kind", CORPORA)
@pytest.mark.parametrize("command", ["bm25", "encode", "train"])
def test_a_bad_corpus(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, kind: str):
    content, message = CORPORA[kind]
    corpus, out = write(tmp_path / "corpus.jsonl", content), tmp_path / "out"
    words: dict[str, list[object]] = {
        "bm25": ["--corpus", corpus, "--queries", QUERIES, "--out", out],
        "encode": [trained / "run", "--corpus", corpus, "--out", out],
        "train": [trained / "tiny_art.py", "--workdir", out, "--data.corpus", corpus],
    }
    assert run(command, *words[command]) == 1
    assert re.search(message, the_error(capsys))
    # The folder of the run is not bound to a config that never ran.
    assert not out.exists() or list(out.iterdir()) == []


@pytest.mark.parametrize("kind", QUESTIONS)
@pytest.mark.parametrize("command", ["bm25", "search", "evaluate"])
def test_bad_questions(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, kind: str):
    content, message = QUESTIONS[kind]
    questions, out = write(tmp_path / "questions.jsonl", content), tmp_path / "out"
    a_run = write(tmp_path / "run.trec", "q1 Q0 p1 1 2.0 x\n")
    words: dict[str, list[object]] = {
        "bm25": ["--corpus", CORPUS, "--queries", questions, "--out", out],
        # Found before the model and the index, which are not even there.
        "search": [tmp_path / "model", "--index", tmp_path / "index", "--queries", questions, "--out", out],
        "evaluate": ["--run", a_run, "--answers", questions, "--corpus", CORPUS],
    }
    assert run(command, *words[command]) == 1
    assert re.search(message, the_error(capsys))
    assert not out.exists()


def test_training_questions_that_are_none(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    questions = write(tmp_path / "questions.jsonl", "")
    words = ["--workdir", tmp_path / "run", "--data.questions", questions]
    assert run("train", trained / "tiny_art.py", *words) == 1
    assert the_error(capsys) == f"{questions}: no questions; give a file with at least one question"
    # The mended file trains in the same folder, whose settings were never noted.
    assert not (tmp_path / "run/config.json").exists()


@pytest.mark.parametrize(
    "content, message",
    [
        ("q1 Q0 p1 1 2.0\n", r"run\.trec:1: expected 6 columns"),
        ("q1 Q0 p1 1 2.0 x\nq1 Q0 p2 2 nan x\n", r"run\.trec:2: the score 'nan' is not a number; correct the line"),
        ("", r"run\.trec: the run is empty"),
        (
            "q9 Q0 p1 1 2.0 x\n",
            r"no question in common, for instance 'q9' and 'squad:.*; give the judgements of the run",
        ),
    ],
)
def test_a_bad_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str):
    path = write(tmp_path / "run.trec", content)
    assert run("evaluate", "--run", path, "--qrels", tiny.DATA / "qrels/train.tsv") == 1
    assert re.search(message, the_error(capsys))


def test_a_file_that_is_missing_or_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "corpus.jsonl").write_text(GOOD)
    out = ["--queries", QUERIES, "--out", tmp_path / "out"]
    assert run("bm25", "--corpus", tmp_path / "corpsu.jsonl", *out) == 1
    assert the_error(capsys) == f"{tmp_path / 'corpsu.jsonl'}: no such file; did you mean 'corpus.jsonl'?"
    (tmp_path / "folder").mkdir()
    assert run("bm25", "--corpus", tmp_path / "folder", *out) == 1
    assert "contains neither corpus.jsonl nor corpus.jsonl.gz; give a file or a BEIR folder" in the_error(capsys)
    assert run("evaluate", "--run", tmp_path, "--qrels", CORPUS) == 1
    assert "check the path and its rights" in the_error(capsys)
    assert run("bm25", "--corpus", CORPUS, "--queries", QUERIES, "--out", tmp_path / "folder") == 1
    assert the_error(capsys) == f"{tmp_path / 'folder'}: is a folder; name a file"


# ---- settings --------------------------------------------------------------------------------------------------------


def test_an_unknown_setting(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["train", trained / "tiny_art.py", "--workdir", tmp_path / "run"]
    assert run(*words, "--optimzer.learning-rate", "1") == 2
    hint = "did you mean '--optimizer.learning-rate'?"
    assert the_error(capsys) == f"--optimzer.learning-rate: no such setting; {hint}"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "change, code, message",
    [
        ({"trian": {}}, 2, r"config\.json: unknown key 'trian'; did you mean 'train'\?"),
        ({"train": {"stps": 1}}, 2, r"config\.json\.train: unknown key 'stps'; did you mean 'steps'\?"),
        ('{"kind": "art",\n "name": }', 1, r"config\.json: .* line 2 .*; restore the file or use another --workdir"),
    ],
)
def test_an_unknown_key_in_a_runs_config(
    trained: Path, tmp_path: Path, capsys, change: str | dict, code: int, message: str
):
    values = json.loads((trained / "run/config.json").read_text())
    content = change if isinstance(change, str) else json.dumps(values | change)
    (tmp_path / "config.json").write_text(content)
    assert run("train", trained / "tiny_art.py", "--workdir", tmp_path) == code
    assert re.search(message, the_error(capsys))
    assert (tmp_path / "config.json").read_text() == content


def test_an_unknown_key_in_a_model(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    shutil.copytree(trained / "run/model", tmp_path / "model")
    path = tmp_path / "model/jaxretr.json"
    values = json.loads(path.read_text())
    values["config"]["poolin"] = values["config"].pop("pooling")
    path.write_text(json.dumps(values))
    assert run("encode", tmp_path / "model", "--corpus", CORPUS, "--out", tmp_path / "out") == 2
    assert the_error(capsys) == f"{path}: unknown key 'poolin'; did you mean 'pooling'?"
    assert not (tmp_path / "out").exists()


# ---- models and checkpoints ------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_shape(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    workdir = tmp_path / "run"
    shutil.copytree(trained / "run/checkpoints", workdir / "checkpoints")
    shutil.copy(trained / "run/config.json", workdir)
    words = ["train", trained / "tiny_art.py", "--workdir", workdir, "--encoder.shared"]
    assert run(*words) == 2
    assert re.search(
        r"config\.json: this folder was started with other settings \(encoder\.shared\); use the same",
        the_error(capsys),
    )
    # Without that note the checkpoint itself is looked at.
    (workdir / "config.json").unlink()
    assert run(*words) == 1
    error = the_error(capsys)
    assert error.startswith(f"{workdir}/checkpoints/2: the checkpoint does not fit this config: ")
    assert re.search(r"params\.\S+ is not in .*; use the config it was made with, or another --workdir$", error)
    assert not (workdir / "config.json").exists()
    # With the settings it was made with, it is as good as ever.
    assert run(*words[:-1]) == 0


def test_models_that_are_none(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["--corpus", CORPUS, "--out", tmp_path / "out"]
    assert run("encode", trained / "encodr", *words) == 1
    assert the_error(capsys) == f"{trained / 'encodr'}: no such model folder; did you mean 'encoder'?"
    (tmp_path / "begun/checkpoints").mkdir(parents=True)
    assert run("encode", tmp_path / "begun", *words) == 1
    assert the_error(capsys).endswith("begun: this run has written no model yet; finish it with `jaxretr train`")
    shutil.copytree(trained / "run/model", tmp_path / "cut")
    weights = (tmp_path / "cut/model.safetensors").read_bytes()
    (tmp_path / "cut/model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert run("encode", tmp_path / "cut", *words) == 1
    assert "cut/model.safetensors" in the_error(capsys)
    assert not (tmp_path / "out").exists()


# ---- disks -----------------------------------------------------------------------------------------------------------


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel lets no file of this process grow beyond `size` bytes: a disk that fills up, at an exact byte."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_store_on_a_disk_that_fills_up_goes_on_later(trained: Path, tmp_path: Path, capsys):
    out = tmp_path / "out"
    words = ["encode", trained / "run", "--corpus", CORPUS, "--shard-rows", 12, "--out"]
    # Once where there is space: JAX would otherwise write its cache of compiled programs under the limit.
    assert run(*words, tmp_path / "whole") == 0
    capsys.readouterr()
    # The list of ids and meta.json fit; a shard of 12 x 16 floats and the header of 128 bytes do not.
    with files_of_at_most(800):
        assert run(*words, out) == 1
    estimate, error = capsys.readouterr().err.splitlines()
    assert "20 passages of 16 dimensions: about " in estimate
    path = out / "embeddings-00000-of-00002.npy"
    assert error.startswith(f"jaxretr: error: {path}: cannot be written (File too large); ")
    assert sorted(entry.name for entry in out.iterdir()) == ["ids.json", "ids.jsonl", "meta.json"]
    search = ["search", trained / "run", "--index", out, "--queries", QUERIES, "--out", tmp_path / "r"]
    assert run(*search) == 1
    assert "2 of 2 shards are not finished; run the same `jaxretr encode` command again" in the_error(capsys)
    assert run(*words, out) == 0
    assert run(*search) == 0
    for file in (tmp_path / "whole").iterdir():
        assert (out / file.name).read_bytes() == file.read_bytes()


def test_a_run_on_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "old.trec"
    out.write_text("an older run\n")
    words = ["bm25", "--corpus", CORPUS, "--queries", QUERIES, "-k", 20, "--out"]
    with files_of_at_most(2000):
        assert run(*words, out) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"jaxretr: error: {out}: cannot be written (File too large); choose")
    assert [entry.name for entry in tmp_path.iterdir()] == ["old.trec"]
    assert out.read_text() == "an older run\n"
    # The kernel's own full device.
    assert run(*words, "/dev/full") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == (
        "jaxretr: error: /dev/full: cannot be written (No space left on device); "
        "free some space there or choose another place"
    )


def test_training_on_a_full_disk(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48k", "none", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a small disk ({mounted.stderr.decode().strip()})")
    try:
        assert run("train", trained / "tiny_art.py", "--workdir", disk / "run") == 1
        lines = capsys.readouterr().err.splitlines()
        errors = [line for line in lines if "error" in line or "Traceback" in line]
        assert errors == lines[-1:], lines
        assert re.match(r"jaxretr: error: .*/disk/run/.*No space left on device.*; free", lines[-1])
        # No model and no checkpoint that a later command could take for a whole one.
        assert not (disk / "run/model").exists()
        assert list((disk / "run/checkpoints").iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("command", ["train", "encode", "bm25"])
def test_a_place_that_cannot_be_written(trained: Path, tmp_path: Path, capsys, command: str):
    """A file where a folder should be: not even root can write below it."""
    file = write(tmp_path / "file", "precious")
    words: dict[str, list[object]] = {
        "train": [trained / "tiny_art.py", "--workdir", file / "run"],
        "encode": [trained / "run", "--corpus", CORPUS, "--out", file / "out"],
        "bm25": ["--corpus", CORPUS, "--queries", QUERIES, "--out", file / "run.trec"],
    }
    assert run(command, *words[command]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"jaxretr: error: {file}")
    assert re.search(r"(another|other|choose|pass|give|check)", error)
    assert file.read_text() == "precious"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "locked").mkdir(mode=0o555)
    assert run("train", trained / "tiny_art.py", "--workdir", tmp_path / "locked/run") == 1
    assert "Permission denied" in the_error(capsys)


# ---- as the shell sees it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, code, message",
    [
        (["bm25", "--corpus", "CORPUS", "--queries", str(QUERIES), "--out", "OUT"], 1, "corpus.jsonl:2: duplicate id"),
        (["train", "CONFIG", "--workdir", "OUT", "--optimzer.clip", "1"], 2, "--optimzer.clip: no such setting; did"),
        (["serch"], 2, "serch: no such command; did you mean 'search'?"),
    ],
    ids=["corpus", "setting", "command"],
)
def test_a_real_process_says_one_line_and_exits(tmp_path: Path, words: list[str], code: int, message: str):
    corpus = write(tmp_path / "corpus.jsonl", GOOD + GOOD)
    places = {"CORPUS": str(corpus), "OUT": str(tmp_path / "out"), "CONFIG": str(write_config(tmp_path))}
    command = [sys.executable, "-m", "jaxretr", *(places.get(word, word) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("jaxretr: error: ") and message in done.stderr
    assert not (tmp_path / "out").exists()


def test_loops_are_compiled_on_a_full_disk_too():
    """Numba keeps what it has compiled on disk; where that fails the search goes on."""

    @compiled()
    def doubled(number):
        return 2 * number

    with files_of_at_most(10):
        assert doubled(21) == 42
    assert not doubled._cache._cache_file._load_index()  # pyright: ignore[reportFunctionMemberAccess]


# ---- ids that a TREC run cannot hold ---------------------------------------------------------------------------------


def test_an_id_with_white_space_is_found_while_bm25_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spaced = GOOD + GOOD.replace('"p1"', '"p 2"')
    corpus, questions = write(tmp_path / "c.jsonl", spaced), write(tmp_path / "q.jsonl", QUESTION)
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("jaxretr.indexes.bm25.Bm25Index.build", None)
        assert run("bm25", "--corpus", corpus, "--queries", questions, "--out", out) == 1
    assert the_error(capsys) == (
        f"{corpus}:2: the id 'p 2' contains white space, which a TREC run cannot represent; rename it, or write --format jsonl"
    )
    assert run("bm25", "--corpus", corpus, "--queries", questions, "--out", out, "--format", "jsonl") == 0
    assert "p 2" in out.read_text()
    capsys.readouterr()
    write(questions, QUESTION.replace("q1", "q\\u00a01"))
    assert run("bm25", "--corpus", corpus, "--queries", questions, "--out", out) == 1
    assert the_error(capsys).startswith(
        f"{questions}:1: the id 'q\\xa01' contains white space, which a TREC run cannot"
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("q1 Q0 p1 1 2.0 x\n", "q1 Q0 p\u00a01 1 2.0 x\n"),
        ('{"question_id": "q1", "hits": [{"id": "p1"}]}\n', '{"question_id": "q2", "hits": [{"id": "p 1"}]}\n'),
        ("q1\tp1\t1\n", "q 2\tp1\t1\n"),
    ],
)
def test_an_id_with_white_space_is_found_while_fuse_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    monkeypatch.setattr("jaxretr.evaluate.run_fusion.reciprocal_rank", None)
    spaced, fine = write(tmp_path / "spaced", first + second), write(tmp_path / "fine", first)
    assert run("fuse", fine, spaced, "--method", "rrf", "--out", tmp_path / "out") == 1
    assert re.fullmatch(
        rf"{spaced}:2: the id '.*' contains white space, which a TREC run cannot represent; rename.*", the_error(capsys)
    )


# ---- streams ---------------------------------------------------------------------------------------------------------


def test_a_run_goes_through_a_pipe_and_nothing_else_does(tmp_path: Path) -> None:
    """`jaxretr bm25 --out /dev/stdout | jaxretr evaluate ...`: what is said goes to stderr."""
    corpus, questions = write(tmp_path / "c.jsonl", GOOD), write(tmp_path / "q.jsonl", QUESTION)
    words = ["bm25", "--corpus", corpus, "--queries", questions, "--out", "/dev/stdout"]
    done = subprocess.run([sys.executable, "-m", "jaxretr", *words], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"q1 Q0 p1 1 \S+ jaxretr\n", done.stdout)
    assert "jaxretr: /dev/stdout: 1 hits of 1 questions\n" in done.stderr


@pytest.mark.parametrize(("words", "code"), [(["evaluate", "--run", "RUN", "--qrels", "QRELS"], 0), (["nonsense"], 2)])
def test_closed_streams_change_no_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int
) -> None:
    """`jaxretr ... >&- 2>&-`"""
    files = {"RUN": write(tmp_path / "RUN", "q1 Q0 p1 1 2.0 x\n"), "QRELS": write(tmp_path / "QRELS", "q1\tp1\t1\n")}
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert run(*(files.get(word, word) for word in words)) == code


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_an_error_that_nobody_reads_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """`jaxretr ... 2>/dev/full`"""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert run("nonsense") == 2
        monkeypatch.undo()
        full.buffer.raw.close()  # What is left in its buffer cannot be written.


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_run_whose_stderr_cannot_be_written_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`jaxretr train ... 2> FILE` on a disk that is full, or of a session that has ended."""
    with open("/dev/full", "w") as full, MetricsLog(tmp_path, start=0, total=2, writes=True) as metrics:
        monkeypatch.setattr(sys, "stderr", full)
        set_up()
        metrics.write(1, {"loss": 0.5}, examples=4)
        logging.getLogger("jaxretr.some").info("encoded")
        monkeypatch.undo()
        full.buffer.raw.close()
    assert [(row["step"], row["loss"]) for row in read_metrics(tmp_path)] == [(1, 0.5)]


def test_what_a_damaged_disk_left_of_metrics_is_dropped_on_resuming(tmp_path: Path) -> None:
    whole = b'{"step": 1, "loss": 2.0}\n'
    (tmp_path / "metrics.jsonl").write_bytes(b'\xff\xfe\n[1]\n"x"\n\0\0\n' + whole + b'{"step": 2, "lo')
    with MetricsLog(tmp_path, start=2, total=4, writes=True):
        assert (tmp_path / "metrics.jsonl").read_bytes() == whole
    (tmp_path / "metrics.jsonl").write_bytes(whole + b'{"step": 2, "lo')
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 2.0}], "a report of a killed run leaves the cut line out"


# ---- an output that is an input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "bm25 --corpus corpus.jsonl --queries q.jsonl --out q.jsonl",
        "bm25 --corpus corpus.jsonl --queries q.jsonl --out link/corpus.jsonl",
        "fuse a.trec b.trec --method rrf --out b.trec",
        "fuse a.trec b.trec --tune qrels.tsv --out qrels.tsv",
        "analyse overlap a.trec b.trec --per-query a.trec",
        "evaluate --run a.trec --qrels qrels.tsv --per-query qrels.tsv",
        "evaluate --run a.trec --qrels qrels.tsv --baseline b.trec --per-query ./b.trec",
        "mine --corpus corpus.jsonl --train train.jsonl --out corpus.jsonl",
        "mine --corpus corpus.jsonl --train train.jsonl --out mined.jsonl --report train.jsonl",
        "data convert train.jsonl train.jsonl --to tevatron",
        "data convert train.jsonl corpus.jsonl --to tevatron --corpus corpus.jsonl",
        "score reranker --pairs train.jsonl --out train.jsonl",
        "generate model --corpus corpus.jsonl --out corpus.jsonl",
        "mine --corpus beir --train beir --out beir/corpus.jsonl",
        "bm25 --corpus beir --queries beir --out beir/queries.jsonl",
        "data convert beir beir/qrels/train.tsv --to qrels",
        "evaluate model --beir beir --split train --per-query beir/qrels/train.tsv",
        "evaluate model --suite . --split train --per-query beir/qrels/train.tsv",
        "bm25 --corpus files:notes[words=9] --queries q.jsonl --out notes/deep/a.TXT",
        "generate model --corpus files:t.csv[id=id,text=text] --out t.csv",
    ],
)
def test_no_command_writes_over_its_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"query": "capital", "positive_passages": [{"docid": "p1", "title": "Rome", "text": "x"}], "query_id": "q1"}
    contents = {
        "corpus.jsonl": GOOD,
        "q.jsonl": QUESTION,
        "a.trec": "q1 Q0 p1 1 3 t\n",
        "b.trec": "q1 Q0 p1 1 2 t\n",
        "qrels.tsv": "query-id\tcorpus-id\tscore\nq1\tp1\t1\n",
        "train.jsonl": json.dumps({**row, "negative_passages": []}) + "\n",
        "notes/deep/a.TXT": "a note",
        "t.csv": "id,text\np1,a row\n",
        "beir/corpus.jsonl": GOOD,
        "beir/queries.jsonl": QUESTION,
        "beir/qrels/train.tsv": "query-id\tcorpus-id\tscore\nq1\tp1\t1\n",
    }
    for folder in ("beir/qrels", "notes/deep"):
        (tmp_path / folder).mkdir(parents=True)
    for name, content in contents.items():
        write(tmp_path / name, content)
    (tmp_path / "link").symlink_to(tmp_path)
    assert run(*words.split()) == 2
    assert "is read as well, and would be replaced; write to another place" in the_error(capsys)
    assert {name: (tmp_path / name).read_text() for name in contents} == contents
