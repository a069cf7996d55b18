"""`jaxretr score`: every kind of file gets the scores of the model, interrupted or not, from one process or two."""

import csv
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import processes
import pytest
import tiny
from command_errors import the_error

import jaxretr
from jaxretr import cli
from jaxretr.data.formats.reading import read_examples
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.data.run_reading import read_run
from jaxretr.embeddings.kept_chunks import KeptChunks
from jaxretr.models.pair_scorer import CrossEncoder
from jaxretr.runtime.errors import UserError

FORMATS = Path(__file__).parents[1] / "data/formats"
CORPUS, QUERIES = tiny.DATA / "corpus.jsonl", tiny.DATA / "queries.jsonl"
SEED = 20261125

# Of scores of the order of 1, when other pairs share the batch.
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def model(tiny_cross_encoder: Path) -> Path:
    return tiny_cross_encoder


@pytest.fixture(scope="module")
def scorer(model: Path) -> CrossEncoder:
    return CrossEncoder.from_pretrained(model)


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All 20 passages for each of the 10 questions, in the order of the corpus."""
    path = tmp_path_factory.mktemp("runs") / "run.trec"
    ids = [passage.id for passage in read_corpus(CORPUS)]
    lines = [
        f"{question.id} Q0 {id} {rank} {100 - rank} x\n"
        for question in read_questions(QUERIES)
        for rank, id in enumerate(ids, start=1)
    ]
    path.write_text("".join(lines))
    return path


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def pair_rows(count: int) -> list[dict]:
    passages = list(read_corpus(CORPUS))
    questions = read_questions(QUERIES)
    pairs = [(questions[n % 10], passages[n % 20]) for n in range(count)]
    return [{"query": q.text, "passage": p.text, "title": p.title, "number": n} for n, (q, p) in enumerate(pairs)]


def test_rows_of_pairs_keep_their_fields_and_get_raw_scores(scorer: CrossEncoder, tmp_path: Path):
    rows = pair_rows(7)
    pairs = write_rows(tmp_path / "pairs.jsonl", rows)
    assert jaxretr.score(scorer, pairs, tmp_path / "out.jsonl").pairs == 7
    found = rows_of(tmp_path / "out.jsonl")
    assert [{name: row[name] for name in rows[0]} for row in found] == rows
    texts = [{"title": row["title"], "text": row["passage"]} for row in rows]
    wanted = scorer.score([row["query"] for row in rows], texts)
    np.testing.assert_allclose([row["score"] for row in found], wanted, atol=ROUNDING)
    assert np.ptp(wanted) > 1000 * ROUNDING, "the pairs differ"
    assert min(wanted) < 0 or max(wanted) > 1, "no sigmoid"
    # A table, and other names of the columns.
    with open(tmp_path / "pairs.tsv", "w", newline="") as file:
        table = csv.writer(file, delimiter="\t")
        table.writerows([("question", "text"), *((row["query"], row["passage"]) for row in rows)])
    jaxretr.score(scorer, tmp_path / "pairs.tsv", tmp_path / "out.tsv")
    with open(tmp_path / "out.tsv", newline="") as file:
        table = list(csv.DictReader(file, delimiter="\t"))
    assert [row["question"] for row in table] == [row["query"] for row in rows]
    wanted = scorer.score([row["query"] for row in rows], [{"text": row["passage"]} for row in rows])
    np.testing.assert_allclose([float(row["score"]) for row in table], wanted, atol=ROUNDING)


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("dpr.json", None),
        ("tevatron.jsonl", None),
        ("flag.jsonl", None),
        ("triples.tsv", "flag"),
        ("dpr.json", "dpr-scale"),
    ],
)
def test_every_passage_of_a_training_set_gets_its_score(
    name: str, format: str | None, scorer: CrossEncoder, tmp_path: Path
):
    out = tmp_path / f"out{Path(name).suffix}"
    scored = jaxretr.score(scorer, FORMATS / name, out, format=format)
    questions, passages, found = [], [], []
    for example in read_examples(out):
        for candidate in (*example.positives, *example.negatives, *example.other_negatives):
            questions.append(example.question)
            passages.append({"title": candidate.title, "text": candidate.text})
            found.append(candidate.score)
    assert len(found) == scored.pairs > 2
    # Formats of bare texts join title and text, which the model reads apart.
    np.testing.assert_allclose(found, scorer.score(questions, passages), atol=ROUNDING)


def test_judgements_become_a_file_to_distil_from(scorer: CrossEncoder, tmp_path: Path):
    """The texts of ids are the corpus's; the scores are what `distillation` trains with."""
    out = tmp_path / "teacher.jsonl"
    jaxretr.score(scorer, tiny.DATA, out, split="train", format="distillation")
    row = rows_of(out)[0]
    corpus, questions = read_corpus(CORPUS), {question.id: question.text for question in read_questions(QUERIES)}
    passages = [corpus[corpus.row(id)] for id in row["document_ids"]]
    texts = [{"title": passage.title, "text": passage.text} for passage in passages]
    wanted = scorer.score([questions[row["query_id"]]] * len(texts), texts)
    np.testing.assert_allclose(row["scores"], wanted, atol=ROUNDING)


@pytest.mark.parametrize("format", ["trec", "jsonl", "dpr"])
def test_a_run_is_written_in_the_new_order(format: str, run_file: Path, scorer: CrossEncoder, tmp_path: Path):
    out = tmp_path / "out"
    jaxretr.score(scorer, run_file, out, queries=QUERIES, corpus=CORPUS, format=format)
    found, corpus, questions = list(read_run(out).items()), read_corpus(CORPUS), read_questions(QUERIES)
    assert len(found) == 10
    for question, (id, hits) in zip(questions, found, strict=True):
        assert id == question.id or format == "dpr"
        texts = [{"title": p.title, "text": p.text} for p in (corpus[corpus.row(id)] for id in hits)]
        assert len(texts) == 20
        np.testing.assert_allclose(list(hits.values()), scorer.score([question.text] * 20, texts), atol=ROUNDING)
        assert list(hits.values()) == sorted(hits.values(), reverse=True)


class Killed(BaseException):
    pass


def test_a_run_becomes_examples_to_distil_from(run_file: Path, scorer: CrossEncoder, tmp_path: Path):
    files = {"queries": QUERIES, "corpus": CORPUS}
    jaxretr.score(scorer, run_file, tmp_path / "new.trec", **files)
    jaxretr.score(scorer, run_file, tmp_path / "new.jsonl", format="tevatron2", **files)
    run = read_run(tmp_path / "new.trec")
    examples = list(read_examples(tmp_path / "new.jsonl"))
    assert [example.id for example in examples] == list(run)
    for example in examples:
        found = [*example.positives, *example.negatives]
        assert len(example.positives) == 1, "the best one"
        assert {passage.id: passage.score for passage in found} == pytest.approx(run[example.id])
        assert found == sorted(found, key=lambda passage: -(passage.score or 0))


def test_killed_at_ten_points_and_resumed_the_bytes_are_the_same(
    scorer: CrossEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """And no chunk that was finished is scored again."""
    pairs = write_rows(tmp_path / "pairs.jsonl", pair_rows(38))
    jaxretr.score(scorer, pairs, tmp_path / "whole.jsonl", chunk=4)
    out, write, scored = tmp_path / "out.jsonl", KeptChunks.write, []

    for kill in range(10):

        def killed(kept: KeptChunks, number: int, scores: np.ndarray, kill: int = kill) -> None:
            if kill % 2:  # Before its scores are kept, or after.
                raise Killed
            write(kept, number, scores)
            scored.append(number)
            raise Killed

        monkeypatch.setattr(KeptChunks, "write", killed)
        with pytest.raises(Killed):
            jaxretr.score(scorer, pairs, out, chunk=4)
        assert not out.exists()
    assert scored == [0, 1, 2, 3, 4]

    def counted(kept: KeptChunks, number: int, scores: np.ndarray) -> None:
        scored.append(number)
        write(kept, number, scores)

    monkeypatch.setattr(KeptChunks, "write", counted)
    jaxretr.score(scorer, pairs, out, chunk=4)
    assert scored == list(range(10))
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not list(tmp_path.glob("*.scores-*")), "nothing is left behind"


def test_scores_of_another_model_or_of_other_pairs_never_mix(
    scorer: CrossEncoder, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows, out = pair_rows(12), tmp_path / "out.jsonl"
    pairs = write_rows(tmp_path / "pairs.jsonl", rows)
    write = KeptChunks.write

    def interrupted(kept: KeptChunks, number: int, scores: np.ndarray) -> None:
        write(kept, number, scores)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(KeptChunks, "write", interrupted)
        jaxretr.score(scorer, pairs, out, chunk=4)
    shorter = CrossEncoder.from_pretrained(model, max_length=20)
    jaxretr.score(shorter, pairs, out, chunk=4)
    jaxretr.score(shorter, pairs, tmp_path / "whole.jsonl", chunk=4)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    write_rows(pairs, [{**rows[0], "passage": "another one"}, *rows[1:]])
    jaxretr.score(scorer, pairs, out, chunk=4)
    jaxretr.score(scorer, pairs, tmp_path / "whole.jsonl", chunk=4)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert len(list(tmp_path.glob("out.jsonl.scores-*"))) == 1, "those of the interrupted call"


def test_a_damaged_chunk_is_scored_again(scorer: CrossEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pairs, out = write_rows(tmp_path / "pairs.jsonl", pair_rows(12)), tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(KeptChunks, "remove", lambda kept: None)
        jaxretr.score(scorer, pairs, out, chunk=4)
    whole = out.read_bytes()
    chunks = sorted(tmp_path.glob("*.scores-*/chunk-*.npy"))
    chunks[0].write_bytes(chunks[0].read_bytes()[:-3])
    chunks[1].write_bytes(b"")
    jaxretr.score(scorer, pairs, out, chunk=4)
    assert out.read_bytes() == whole


# ---- as a command ----------------------------------------------------------------------------------------------------


def test_two_processes_score_one_file(model: Path, run_file: Path, tmp_path: Path):
    words = ["-m", "jaxretr", "score", str(model), "--pairs", str(run_file), "--queries", str(QUERIES)]
    words += ["--corpus", str(CORPUS), "--chunk", "30", "--compute", "float32", "--out"]
    processes.finish(processes.start([*words, str(tmp_path / "one")], 1, 1))
    outputs = processes.finish(processes.start([*words, str(tmp_path / "two")], 2, 1))
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()
    assert ["raw scores of 200 pairs" in stdout for stdout, _ in outputs] == [True, False]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["one", "two"]


@pytest.mark.slow
def test_processes_killed_at_ten_random_moments_leave_the_same_bytes(model: Path, run_file: Path, tmp_path: Path):
    command = [
        sys.executable,
        "-m",
        "jaxretr",
        "score",
        str(model),
        "--pairs",
        str(run_file),
        "--queries",
        str(QUERIES),
    ]
    command += ["--corpus", str(CORPUS), "--chunk", "3", "--compute", "float32", "--out"]
    began = time.monotonic()
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    seconds = time.monotonic() - began
    moments, finished = random.Random(SEED), set()
    for kill in range(10):
        process = subprocess.Popen([*command, str(tmp_path / "out")], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        before = set(tmp_path.glob("out.scores-*/chunk-*"))
        if kill % 2:
            time.sleep(moments.uniform(0, seconds))
        else:
            while process.poll() is None and not set(tmp_path.glob("out.scores-*/chunk-*")) - before:
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        finished.add(len(set(tmp_path.glob("out.scores-*/chunk-*"))))
    print(f"seed {SEED}: chunks finished after the kills: {sorted(finished)}")
    assert len(finished) > 1, "no kill came while chunks were written"
    subprocess.run([*command, str(tmp_path / "out")], check=True, capture_output=True)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pairs", "RUN"], "a run has ids alone; give --queries and --corpus"),
        (["--pairs", "RUN", "--queries", QUERIES], "a run has ids alone; give --corpus"),
        (["--pairs", "BAD"], 'bad.jsonl:2: field "passage" is null; give it a value'),
        (["--pairs", FORMATS / "tevatron2.jsonl"], "tevatron2.jsonl:1: passage 'nq:p1' has no text, and no corpus is"),
        (["--pairs", FORMATS / "triples.tsv"], "triples has no place for scores; give --format, one of dpr, dpr-scale"),
        (["--pairs", FORMATS / "dpr.json", "--format", "triples"], "--format triples; formats with scores are dpr, "),
        (
            ["--pairs", FORMATS / "distillation.jsonl"],
            "has only the ids of its questions (distillation); give --queries",
        ),
        (["--pairs", "BAD", "--out", "gs://bucket/out"], "gs://bucket/out: scores are kept next to the output"),
        (["--pairs", CORPUS], "corpus.jsonl: has no pairs of question and passage; give a training set"),
        (["--pairs", "BAD", "--corpus", CORPUS], "has the texts of its pairs; leave --corpus out"),
    ],
)
def test_what_is_wrong_is_said_before_the_model_is_loaded(
    words: list, message: str, run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    bad = write_rows(tmp_path / "bad.jsonl", [{"query": "a", "passage": "b"}, {"query": "a", "passage": None}])
    places = {"RUN": run_file, "BAD": bad}
    given = [str(places.get(word, word)) if isinstance(word, str) else str(word) for word in words]
    out = [] if "--out" in given else ["--out", str(tmp_path / "out")]
    assert cli.main(["score", str(tmp_path / "no model"), *out, *given]) > 0
    assert message in the_error(capsys)


def test_a_score_that_is_not_finite_names_its_pair(
    scorer: CrossEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pairs = write_rows(tmp_path / "pairs.jsonl", pair_rows(6))
    real = CrossEncoder.score

    def broken(self: CrossEncoder, questions: list, passages: list, **options: object) -> np.ndarray:
        scores = real(self, questions, passages, **options)  # pyright: ignore[reportArgumentType]
        scores[1] = np.nan
        return scores

    monkeypatch.setattr(CrossEncoder, "score", broken)
    with pytest.raises(UserError, match=r"pair 2 \('.*'\) has the score nan; check the model"):
        jaxretr.score(scorer, pairs, tmp_path / "out.jsonl", chunk=4)
