"""`jaxretr data`: conversions that the other side can read, what a file is, and every problem of it by line."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_errors import the_error

import jaxretr
from jaxretr import cli
from jaxretr.data.description import Spread
from jaxretr.data.duplicate_groups import duplicate_groups
from jaxretr.data.formats.kinds import FORMATS
from jaxretr.data.formats.reading import read_examples
from jaxretr.data.readers import read_beir, read_corpus
from jaxretr.data.training_set import load_training_set

DATA = Path(__file__).parents[1] / "data"
WIKI = DATA / "wiki_qa"
GOLDEN = DATA / "formats"
CORPUS = WIKI / "corpus.jsonl"
QUERIES = WIKI / "queries.jsonl"


def run(*words: object) -> int:
    return cli.main(["data", *map(str, words)])


# ---- what can be typed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["", "convert", "inspect", "validate"])
def test_help_has_examples_that_parse(action, capsys):
    assert run(*action.split(), "--help") == 0
    printed = capsys.readouterr().out
    for example in printed.split("example:\n")[1].splitlines():
        words = example.split()
        assert words[:2] == ["jaxretr", "data"] and (not action or words[2] == action)
        assert cli.parse(words[1:]).command == "data"
    parser = cli.build_parser()[1][f"data {action}".strip()]
    assert all(name in printed for name in parser._option_string_actions)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: ACTION; see: jaxretr data --help"),
        ("convrt a b", "convrt: no such action of data; did you mean 'convert'?"),
        ("convert a b --too dpr", "--too: no such option of data convert; did you mean '--to'?"),
        ("convert a b", "the following arguments are required: --to; see: jaxretr data convert --help"),
        ("convert a b --to tevatorn", "argument --to: invalid choice: 'tevatorn'"),
        ("convert a b --to dpr --negatives -1", "argument --negatives: '-1' is not a whole number from 0"),
        ("validate a --max-problems 0", "argument --max-problems: '0' is not a whole number from 1"),
        ("inspect a b", "b: not expected here; see: jaxretr data inspect --help"),
    ],
)
def test_wrong_use_is_one_line(words, message, capsys):
    assert run(*words.split()) == 2
    assert the_error(capsys).startswith(message)


# ---- convert ---------------------------------------------------------------------------------------------------------


def test_convert_there_and_back(tmp_path, capsys):
    """From DPR's JSON through every format that holds passages or their ids: the same training set in the end."""
    corpus = read_corpus(WIKI)
    wanted = load_training_set(GOLDEN / "tevatron.jsonl", corpus)
    for to in FORMATS:
        source = "distillation.jsonl" if to == "distillation" else "dpr_scale.jsonl"
        queries = ["--queries", QUERIES] if source.startswith("distillation") else []
        out = tmp_path / to
        assert run("convert", GOLDEN / source, out, "--to", to, "--corpus", CORPUS, *queries) == 0
        assert f"{out}: 2 questions as {to}, from " in capsys.readouterr().out
        back = tmp_path / "back.jsonl"
        questions = tmp_path / "queries.jsonl"
        ids = ("0", "1") if not queries else [question.id for question in wanted.questions]
        rows = [{"_id": id, "text": question.text} for id, question in zip(ids, wanted.questions, strict=True)]
        questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
        queries = ["--queries", questions] if to in ("distillation", "triples-ids", "qrels") else []
        words = ["convert", out, back, "--to", "tevatron", *queries]
        assert run(*words, *([] if to == "beir" else ["--corpus", CORPUS])) == 0
        found = load_training_set(back, corpus)
        assert [question.text for question in found.questions] == [question.text for question in wanted.questions]
        if to not in ("sentence-transformers", "flag", "triples"):  # they hold "title text", another passage
            np.testing.assert_array_equal(found.positives.values, wanted.positives.values)
            np.testing.assert_array_equal(found.negatives.values, wanted.negatives.values)
            np.testing.assert_array_equal(found.negatives.offsets, wanted.negatives.offsets)


def test_convert_a_beir_folder_with_its_own_corpus(tmp_path, capsys):
    assert run("convert", WIKI, tmp_path / "train.json", "--to", "dpr", "--split", "tydi") == 0
    capsys.readouterr()
    beir = read_beir(WIKI, "tydi")
    rows = json.loads((tmp_path / "train.json").read_text())
    assert [row["question"] for row in rows] == [question.text for question in beir.questions]
    first = beir.corpus[beir.corpus.row(rows[0]["positive_ctxs"][0]["passage_id"])]
    assert rows[0]["positive_ctxs"] == [{"passage_id": first.id, "title": first.title, "text": first.text}]


def test_rows_of_one_question_become_one(tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    assert run("convert", GOLDEN / "triples.tsv", out, "--to", "flag") == 0
    assert [len(json.loads(line)["neg"]) for line in out.read_text().splitlines()] == [2, 2]
    # A format that spreads them itself gets the rows as they are.
    assert run("convert", GOLDEN / "triples.tsv", out, "--to", "sentence-transformers") == 0
    assert len(out.read_text().splitlines()) == 4
    assert run("convert", GOLDEN / "columns.jsonl", out, "--to", "sentence-transformers", "--negatives", 1) == 0
    assert [list(json.loads(line)) for line in out.read_text().splitlines()] == [
        ["anchor", "positive", "negative_1", "scores"]
    ] * 2


def test_convert_stops_at_a_bad_row_or_skips_it(tmp_path, capsys):
    path, out = tmp_path / "train.jsonl", tmp_path / "out"
    path.write_text((GOLDEN / "tevatron.jsonl").read_text() + '{"query": 1}\n')
    out.write_text("old")
    assert run("convert", path, out, "--to", "dpr") == 1
    assert the_error(capsys) == f'{path}:3: field "query" is a number, not a string; make it one'
    assert out.read_text() == "old"
    assert run("convert", path, out, "--to", "dpr", "--skip-bad") == 0
    captured = capsys.readouterr()
    assert f"{path}: skipped 1 bad rows, kept 2; the first: {path}:3:" in captured.err
    assert "2 questions as dpr, from tevatron" in captured.out
    assert len(list(read_examples(out))) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([GOLDEN / "qrels.tsv", "OUT", "--to", "dpr"], "qrels.tsv: has only the ids of its questions (qrels); give"),
        ([GOLDEN / "tevatron2.jsonl", "OUT", "--to", "dpr"], "tevatron2.jsonl:1: passage 'nq:p1' has no text, and no"),
        ([GOLDEN / "dpr_scale.jsonl", "OUT", "--to", "dpr"], "dpr_scale.jsonl:1: docidx 1 is a row of a corpus; give"),
        ([GOLDEN / "flag.jsonl", "OUT", "--to", "flag", "--from", "dpr"], "flag.jsonl:1: "),
        ([CORPUS, "OUT", "--to", "dpr"], "corpus.jsonl: looks like corpus, not a training set; give it as the corpus"),
        ([GOLDEN / "gone", "OUT", "--to", "dpr"], "gone: no such file"),
        ([GOLDEN / "flag.jsonl", GOLDEN, "--to", "dpr"], "is a folder; name a file"),
        ([GOLDEN / "flag.jsonl", CORPUS, "--to", "beir"], "is a file, but a BEIR folder is to be written; name a fold"),
    ],
)
def test_what_cannot_be_converted(words, message, tmp_path, capsys):
    words = [tmp_path / "out" if word == "OUT" else word for word in words]
    assert run("convert", *words) in (1, 2)
    error = the_error(capsys)
    assert message in error and ";" in error
    assert not (tmp_path / "out").exists()


# ---- inspect ---------------------------------------------------------------------------------------------------------


def figures(printed: str) -> dict[str, str]:
    """The numbers of a description by their names; the first of each name."""
    found: dict[str, str] = {}
    for line in printed.splitlines():
        if line[28:].strip() and not line.startswith("/"):
            found.setdefault(line[:28].strip(), " ".join(line[28:].split()))
    return found


def test_inspect_a_training_set(capsys):
    assert run("inspect", GOLDEN / "dpr.json") == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{GOLDEN / 'dpr.json'}: DPR training set")
    found = figures(printed)
    assert found["questions"] == found["with answers"] == "2"
    assert found["hard negatives a row"] == "2.0 from 2 to 2, half up to 2, 95% up to 2"
    assert found["other negatives a row"] == "0.5 from 0 to 1, half up to 0, 95% up to 1"
    assert found["passages"] == found["with an id"] == found["with a text"] == found["with a score"] == "7"
    assert found["words a question"] == "7.5 from 7 to 8, half up to 7, 95% up to 8"
    assert "  question '0': what is the medical term for webbed toes" in printed
    assert "  + [nq:p1] score 1000 Webbed toes: Webbed toes is the common name" in printed
    assert "  - [tydidev:end0] score 3.5 " in printed and "  (-) [nq:p0] score 0 " in printed


def test_inspect_counts_bad_rows_and_needs_no_questions(tmp_path, capsys):
    path = tmp_path / "triples.tsv"
    path.write_text((GOLDEN / "triples_ids.tsv").read_text() + "1\t2\n")
    assert run("inspect", path) == 0
    printed = capsys.readouterr().out
    found = figures(printed)
    assert (found["rows"], found["questions"], found["bad rows"]) == ("4", "2", "1")
    assert f"  the first: {path}:5: not question-id<TAB>positive-id<TAB>negative-id" in printed


@pytest.mark.parametrize(
    ("path", "kind", "expected"),
    [
        (CORPUS, "corpus", {"passages": "20", "without a title": "0"}),
        (QUERIES, "questions", {"questions": "10", "with answers": "10"}),
        (WIKI / "questions.tsv", "questions", {"questions": "10", "with answers": "10"}),
        (WIKI / "qrels/tydi.tsv", "judgements (qrels)", {"judgements": "4", "of grade 1": "4", "questions": "4"}),
        (WIKI, "BEIR folder", {"passages": "20", "questions": "10", "judgements": "6"}),
        (GOLDEN / "dpr_results.json", "run (ranked passages)", {"questions": "2"}),
    ],
)
def test_inspect_other_files(path, kind, expected, capsys):
    assert run("inspect", path) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{path}: {kind}\n")
    assert expected.items() <= figures(printed).items()


def test_inspect_what_this_program_wrote(tmp_path, capsys):
    from jaxretr.data.token_store import TokenStore
    from jaxretr.data.tokenizer_training import train_tokenizer
    from jaxretr.data.tokens import Template, load_tokenizer
    from jaxretr.embeddings.embedding_store import EmbeddingStore, StoreMeta
    from jaxretr.indexes.exact import ExactIndex

    corpus = read_corpus(WIKI)
    train_tokenizer("bert", corpus.texts, 200, tmp_path / "tokenizer")
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    tokens = TokenStore.build(tmp_path, corpus, tokenizer, Template.PASSAGE_PAIR, 32)
    meta = StoreMeta(
        side="passage",
        model="the/model",
        model_fingerprint="m",
        texts_fingerprint="t",
        rows=3,
        dim=4,
        dtype="float32",
        compute="float32",
        shard_rows=2,
    )
    store = EmbeddingStore.begin(tmp_path / "store", meta, ["a", "b", "c"])
    for shard in store.missing():
        store.write(shard, np.ones((2 - shard, 4), np.float32), cut=shard)
    ExactIndex(np.eye(3, 4, dtype=np.float32), ids=["a", "b", "c"], metadata={"year": [1, 2, 2], "by": ["x"] * 3}).save(
        tmp_path / "index"
    )
    expected = {
        (tokens.folder, "token store"): {
            "rows": "20",
            "cut at the length limit": "20",
            "type": "uint16",
            "tokens a row": "32.0 from 32 to 32, half up to 32, 95% up to 32",
        },
        (tmp_path / "store", "embedding store"): {
            "passages": "3",
            "cut at the model's length": "1",
            "dimensions": "4",
            "shards": "2",
            "type": "float32",
            "matmuls": "float32",
            "on disk": "48 bytes",
            "model": "the/model",
            "address": meta.address[:12],
            "length of a vector": "2.0000 (of the first 3, from 2.0000 to 2.0000)",
        },
        (tmp_path / "index", "exact index"): {
            "rows": "3",
            "dimensions": "4",
            "type": "float32",
            "ids": "3",
            "metadata": "year, by",
        },
    }
    for (folder, kind), found in expected.items():
        assert run("inspect", folder) == 0
        printed = capsys.readouterr().out
        assert printed.startswith(f"{folder}: {kind}\n")
        assert figures(printed) == found


# ---- validate --------------------------------------------------------------------------------------------------------


def problems(capsys: pytest.CaptureFixture[str], path: Path) -> list[str]:
    """The problems that were printed, without the file's name."""
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(f"{path}:") for line in lines)
    return [line.removeprefix(f"{path}:") for line in lines]


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir() if path.name != "NOTICE"))
def test_golden_files_have_no_problem(name, capsys):
    words = [] if name == "dpr_results.json" else ["--corpus", CORPUS]
    if name in ("distillation.jsonl", "triples_ids.tsv", "qrels.tsv"):
        words += ["--queries", QUERIES]
    assert run("validate", GOLDEN / name, *words) == 0
    printed = capsys.readouterr().out
    assert f"{GOLDEN / name}: no problem in " in printed and "not looked up" not in printed


def test_what_was_not_looked_up_is_said(capsys):
    assert run("validate", GOLDEN / "triples_ids.tsv") == 0
    printed = capsys.readouterr().out
    assert "ids of passages were not looked up; give the corpus to check them" in printed
    assert "ids of questions were not looked up; give the questions to check them" in printed
    assert run("validate", GOLDEN / "dpr.json") == 0
    assert "not looked up" not in capsys.readouterr().out


def test_every_problem_of_a_training_set(tmp_path, capsys):
    known = read_corpus(WIKI)[1]
    right = {"docid": known.id, "title": known.title, "text": known.text}
    wrong = {"docid": "n", "title": "T", "text": "x"}
    rows = [
        {"query_id": "a", "query": "q1", "positive_passages": [right], "negative_passages": [wrong, wrong]},
        {"query_id": "a", "query": "q2", "positive_passages": [], "negative_passages": []},
        {"query_id": "b", "query": " ", "positive_passages": [right], "negative_passages": [{**right, "docid": "z"}]},
        {"query_id": "c", "query": "q1", "positive_passages": [{"docid": "gone"}], "negative_passages": []},
        {"query": "q5"},
        {"query_id": "e", "query": "q6", "positive_passages": [{"docid": "nq:p2", "title": "", "text": ""}]},
    ]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("validate", path, "--corpus", CORPUS) == 1
    captured = capsys.readouterr()
    found = [line.removeprefix(f"{path}:") for line in captured.out.splitlines()]
    expected = [
        "2: question 'a' has another text on line 1; ",
        "2: question 'a' has no positive passage; ",
        "3: the question is empty; ",
        "3: passage 'z' is a positive and a negative; ",
        "4: passage 'gone' is not in the corpus; ",
        '5: no field "positive_passages"; ',
        "6: passage 'nq:p2' has no text; ",
        "6: passage 'nq:p2' has another text in the corpus; ",
    ]
    assert len(found) == len(expected), found
    assert all(line.startswith(start) for line, start in zip(found, expected, strict=True)), found
    assert captured.err.splitlines() == [
        f"jaxretr: warning: passages that occur more than once: 1; the first: {path}:1: passage 'n' is twice a negative",
        f"jaxretr: warning: questions that occur more than once: 1; the first: {path}:4: the same question as on line 1",
        f"jaxretr: error: {path}: 8 problems in 6 rows; correct them, or use --skip-bad with the commands that have it",
    ]
    assert run("validate", path, "--corpus", CORPUS, "--max-problems", 3) == 1
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 3
    assert "8 problems in 6 rows (5 more than shown; see them with --max-problems)" in captured.err


def test_a_question_that_stands_twice_is_ordinary_data_to_validate_as_to_training(tmp_path, capsys):
    first, second = ({"docid": row.id, "title": row.title, "text": row.text} for row in list(read_corpus(WIKI))[:2])
    rows = [
        {"query_id": id, "query": "a claim", "positive_passages": [passage], "negative_passages": []}
        for id, passage in (("1", first), ("2", second), ("2", first))
    ]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(load_training_set(path)) == 2
    assert run("validate", path) == 0
    captured = capsys.readouterr()
    assert "no problem in 3 rows" in captured.out
    assert (
        f"questions that occur more than once: 2; the first: {path}:2: the same question as on line 1" in captured.err
    )


def test_a_passage_that_repeats_is_a_warning_to_validate_as_to_training(tmp_path, capsys, caplog):
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    texts = {"a": "x", "b": "y", "c": "x"}
    rows = [json.dumps({"_id": id, "title": "", "text": text}) + "\n" for id, text in texts.items()]
    (folder / "corpus.jsonl").write_text("".join(rows))
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "who"}\n')
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\nq\ta\t1\nq\tb\t1\n")
    twice = tmp_path / "train.jsonl"
    twice.write_text(json.dumps({"query": "who", "positive_document_ids": ["a", "a", "b"]}) + "\n")
    assert run("validate", folder) == run("validate", twice, "--corpus", folder) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[2:5] for line in said] == [
        ["passages that occur more than once", "1; the first", f"{folder / 'corpus.jsonl'}:3"],
        ["passages that occur more than once", "1; the first", f"{twice}:1"],
    ]
    corpus = read_corpus(folder)
    with caplog.at_level(logging.WARNING):
        assert load_training_set(twice, corpus).positives[0].tolist() == [0, 1]
        assert duplicate_groups(corpus).tolist() == [0, 1, 0]
    assert f"{twice}: a row names a passage twice, 1 times (the first on line 1)" in caplog.text
    assert "1 passages have the title and text of an earlier one (the first: 'c')" in caplog.text


def test_every_problem_of_a_corpus_and_of_questions(tmp_path, capsys):
    corpus = tmp_path / "corpus.jsonl"
    rows = [("a", "T", "x"), ("a", "U", "y"), ("b", "T", "x"), ("c", "T", " ")]
    lines = [json.dumps({"_id": id, "title": title, "text": text}) for id, title, text in rows]
    corpus.write_text("\n".join([*lines, "{"]) + "\n")
    assert run("validate", corpus) == 1
    found = problems(capsys, corpus)
    assert [line.split(";")[0].split(" (Exp")[0] for line in found] == [
        "2: duplicate id 'a' (first on line 1)",
        "4: passage 'c' has no text",
        "5: broken JSON",
    ]
    questions = tmp_path / "queries.tsv"
    questions.write_text("1\twho\n1\twhat\n2\twho\n3\t \nbad\n")
    assert run("validate", questions) == 1
    found = problems(capsys, questions)
    assert [int(line.split(":")[0]) for line in found] == [2, 4, 5]


def test_validate_a_beir_folder(tmp_path, capsys):
    shutil.copytree(WIKI, tmp_path / "set")
    assert run("validate", tmp_path / "set") == 0
    assert "no problem in 36 rows (BEIR folder)" in capsys.readouterr().out
    place = tmp_path / "set/qrels/train.tsv"
    place.write_text(place.read_text().replace("nq:p0\t", "nq:gone\t") + "?\tnq:p1\t1\n")
    assert run("validate", tmp_path / "set") == 1
    assert [line.split(";")[0] for line in problems(capsys, place)] == [
        "4: passage 'nq:gone' is not in the corpus",
        "8: question '?' is not in the queries file",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q Q0 d 1 2.5 tag\nq Q0 d 2 1.5 tag\n", ":2: passage 'd' occurs twice for question 'q'"),
        ("what is this", ": not recognised; state its format, one of dpr, "),
    ],
)
def test_files_that_end_at_their_first_problem(content, message, tmp_path, capsys):
    (tmp_path / "file").write_text(content)
    assert run("validate", tmp_path / "file") == 1
    assert f"{tmp_path / 'file'}{message}" in the_error(capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["validate", CORPUS, "--corpus", CORPUS], "--corpus and --queries are for training sets"),
        (["validate", GOLDEN / "dpr.json", "--queries", QUERIES], "contains its questions (dpr); leave"),
        (["validate", GOLDEN / "dpr.json", "--split", "test"], "--split test: is for BEIR folders, not for dpr; leave"),
        (["inspect", GOLDEN / "dpr.json", "--queries", QUERIES], "--queries is for triples-ids and distillation"),
        (
            ["convert", GOLDEN / "flag.jsonl", "out", "--to", "dpr", "--split", "x"],
            "not for flag and dpr; leave it out",
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(words, message, capsys):
    assert run(*words) == 2
    assert message in the_error(capsys)


# ---- from Python -----------------------------------------------------------------------------------------------------


def test_python_has_the_same_as_typed_results(tmp_path, capsys):
    description = jaxretr.inspect_data(GOLDEN / "dpr.json")
    assert run("inspect", GOLDEN / "dpr.json") == 0
    assert capsys.readouterr().out == f"{description}\n"
    assert description.facts["questions"] == 2 and description.facts["words a question"] == Spread(7.5, 7, 7, 8, 8)
    assert json.loads(description.to_json())["facts"]["words a question"]["mean"] == 7.5
    assert [part.path for part in jaxretr.inspect_data(WIKI).parts][:2] == ["corpus.jsonl", "queries.jsonl"]

    written = jaxretr.convert_data(GOLDEN / "dpr.json", tmp_path / "out.jsonl", to="tevatron")
    assert (written.source, written.format, written.questions) == ("dpr", "tevatron", 2)
    assert jaxretr.validate_data(written.path, corpus=CORPUS).ok
    with open(written.path, "a") as file:
        file.write("{\n[]\n")
    seen = []
    found = jaxretr.validate_data(written.path, max_problems=1, on_problem=seen.append)
    assert (found.ok, found.rows, found.count) == (False, 4, 2) and found.problems == seen
    assert seen[0].line == 3 and str(seen[0]).startswith(f"{written.path}:3: broken JSON")
    assert "2 problems in 4 rows (1 more than shown" in str(found) and json.loads(found.to_json())["count"] == 2
