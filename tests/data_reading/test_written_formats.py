"""What we write, we and the formats' own readers read back equal, whatever the texts and ids are; or it is refused."""

import csv
import gzip
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxretr import cli
from jaxretr.data.corpus import Corpus, Passage
from jaxretr.data.csv_tables import csv_line, csv_rows, tsv_rows
from jaxretr.data.formats.examples import Candidate, Example
from jaxretr.data.formats.reading import read_examples
from jaxretr.data.formats.writing import write_examples
from jaxretr.data.pairs import read_pair_rows, write_pair_rows
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_beir, read_corpus, read_qrels, read_questions
from jaxretr.data.run_reading import Hits, read_run
from jaxretr.data.runs import SearchRun
from jaxretr.data.typos import Typo
from jaxretr.data.typos.writing import write_draw
from jaxretr.runtime.errors import UserError

HOSTILE = (
    *(
        "\t",
        "\n",
        "\r",
        "\r\n",
        '"',
        '""',
        "'",
        ",",
        "\\",
        "\0",
        " ",
        "\xa0",
        "\ufeff",
        "é",
        "😀",
        "word",
        "['x']",
        "{",
        "[",
    ),
    *("\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "NaN", "null", "007", "1.0", "long" * 40_000),
)
TEXTS = st.lists(st.sampled_from(HOSTILE), max_size=6).map("".join)
# An id has something in it, and no two are equal.
IDS = st.builds("{}7{}".format, TEXTS, TEXTS)
SCORES = st.floats(-100, 100, width=32).filter(lambda score: score == score)
GZ = st.sampled_from(["", ".gz"])
quick = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def candidates(draw, least: int, most: int) -> tuple[Candidate, ...]:
    texts = draw(st.lists(st.tuples(TEXTS, TEXTS, SCORES), min_size=least, max_size=most))
    return tuple(Candidate("", title, text, score) for title, text, score in texts)


@st.composite
def examples(draw, negatives: int = 2) -> list[Example]:
    """Examples with scores for all passages; ids and contents differ by a number at their end."""
    found = []
    for n in range(draw(st.integers(1, 3))):
        right, wrong = draw(candidates(1, 2)), draw(candidates(negatives, negatives))
        right, wrong = (
            tuple(
                replace(each, id=f"{draw(IDS)}{n}{kind}{m}", text=f"{each.text}{n}{kind}{m}")
                for m, each in enumerate(of_kind)
            )
            for kind, of_kind in (("p", right), ("n", wrong))
        )
        answers = tuple(draw(st.lists(TEXTS, max_size=2)))
        found.append(Example(f"{draw(IDS)}q{n}", f"{draw(TEXTS)}{n}", answers, right, wrong))
    return found


def without_lines(found: list[Example]) -> list[Example]:
    return [replace(each, line=0) for each in found]


def changed(found: list[Example], change: Callable[[Candidate], Candidate], **of_example: Any) -> list[Example]:
    """The examples with other candidates, as a format that holds less has them."""
    return [
        replace(
            each,
            positives=tuple(map(change, each.positives)),
            negatives=tuple(map(change, each.negatives)),
            **of_example,
        )
        for each in found
    ]


def content(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()


def python_csv(path: Path, delimiter: str) -> list[list[str]]:
    """As the csv module's documentation has it, with its limit lifted for fields over 128 KiB."""
    return list(csv.reader(io.StringIO(content(path), newline=""), delimiter=delimiter))


def bare(candidate: Candidate) -> str:
    return f"{candidate.title} {candidate.text}" if candidate.title else candidate.text or ""


def fits_a_table(id: str) -> bool:
    return id == id.strip() and not set(id) & set("\t\r\n") and id[0] != "\ufeff"


# ---- tables ----------------------------------------------------------------------------------------------------------


@quick
@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=4),
    suffix=st.sampled_from([".csv", ".tsv"]),
    gz=GZ,
)
def test_any_table_reads_back_here_and_in_python(tmp_path_factory, rows, suffix, gz):
    path = tmp_path_factory.mktemp("table") / f"x{suffix}{gz}"
    delimiter = {".csv": ",", ".tsv": "\t"}[suffix]
    found = [["a", "b", "c"], *([*row[:2], f"{row[2]}."] for row in rows)]
    packed = "".join(csv_line(row, delimiter) for row in found).encode()
    path.write_bytes(gzip.compress(packed) if gz else packed)
    read = csv_rows(path) if suffix == ".csv" else tsv_rows(path, 3)
    # Nothing that begins with a byte order mark begins the file: the header does.
    assert [fields for _, fields in read] == found
    assert python_csv(path, delimiter) == found


@pytest.mark.parametrize("name", ["x.tsv", "x.csv"])
def test_rows_begin_on_the_line_that_is_named(tmp_path, name):
    path = tmp_path / name
    delimiter = "," if name == "x.csv" else "\t"
    rows = [["query", "passage"], ["a", "1\n2\r\n3"], ["b", f"t{delimiter}u\nv{delimiter}w"], ["c", "x"]]
    path.write_text("".join(csv_line(row, delimiter) for row in rows) + '"d\nbroken\n', newline="")
    found = list(csv_rows(path) if name == "x.csv" else tsv_rows(path, 2))
    assert [line for line, _ in found] == [1, 2, 5, 7, 8, 9]
    assert [fields for _, fields in found][:4] == rows, "what an open quote hides is read again"


def test_once_a_quote_was_text_no_later_one_swallows_a_row(tmp_path):
    path = tmp_path / "corpus.tsv"
    path.write_text('id\ttext\n1\t"so" he said\n2\t"left open\n3\tclosed here"\n4\tx\n')
    assert read_corpus(path).texts == ['"so" he said', '"left open', 'closed here"', "x"]
    path.write_text('id\ttext\n2\t"left open\n3\tclosed here"\n4\tx\n')
    assert read_corpus(path).texts == ["left open\n3\tclosed here", "x"], "as csv reads it"


def test_msmarco_s_tables_have_no_quoting(tmp_path):
    rows = '1\t"all quoted"\n2\t"begins" so\n3\t"open\n4\tclosed"\n'
    texts = ['"all quoted"', '"begins" so', '"open', 'closed"']
    path = tmp_path / "x.tsv"
    path.write_text(rows)
    assert read_corpus(path).texts == [one.text for one in read_questions(path)] == texts
    path.write_text("qid\tquery\n" + rows.splitlines()[0] + '\n5\t"over\ntwo\tlines"\n')
    assert [one.text for one in read_questions(path)] == ["all quoted", "over\ntwo\tlines"]
    path.write_text('1\t0\t"d"\t1\n')
    assert read_qrels(path) == {"1": {'"d"': 1}}
    path.write_text('query-id\tcorpus-id\tscore\n1\t"a ""d"""\t2\n1\ta "b"\t-1\n')
    assert read_qrels(path) == {"1": {'a "d"': 2, 'a "b"': -1}}


@quick
@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS, TEXTS, SCORES), min_size=1, max_size=3),
    suffix=st.sampled_from([".csv", ".tsv", ".jsonl"]),
    gz=GZ,
)
def test_pairs_with_scores(tmp_path_factory, rows, suffix, gz):
    path = tmp_path_factory.mktemp("pairs") / f"scores{suffix}{gz}"
    found = [{"query": q, "passage": p, "title": t, "score": s} for q, p, t, s in rows]
    assert write_pair_rows(path, found) == len(found)
    again = list(read_pair_rows(path))
    assert [tuple(pair) for _, pair in again] == [(q, t, p) for q, p, t, _ in rows]
    assert [float(row["score"]) for row, _ in again] == [score for *_, score in rows]
    if suffix == ".jsonl":
        return
    with pytest.raises(UserError, match="row 2 has the field 'note'"):
        write_pair_rows(path, [found[0], found[0] | {"note": "x"}])


# ---- training files --------------------------------------------------------------------------------------------------


@quick
@given(found=examples(), to=st.sampled_from(["dpr", "dpr-scale", "tevatron", "tevatron2"]), gz=GZ)
def test_training_files_with_ids(tmp_path_factory, found, to, gz):
    path = tmp_path_factory.mktemp("train") / f"x{'.json' if to == 'dpr' else '.jsonl'}{gz}"
    write_examples(path, found, to)
    again = without_lines(list(read_examples(path)))
    if to == "tevatron2":
        found = changed(found, lambda each: replace(each, title="", text=None), answers=())
    assert again == found
    # Their readers: json.load, and datasets' JSON lines, which end at \n alone.
    rows = json.loads(content(path)) if to == "dpr" else [json.loads(line) for line in content(path).split("\n")[:-1]]
    if to.startswith("dpr"):
        assert [row["question"] for row in rows] == [each.question for each in found]
        texts = [[(c["title"], c["text"]) for c in row["hard_negative_ctxs"]] for row in rows]
    else:
        assert [row["query_id"] for row in rows] == [each.id for each in found]
        if to == "tevatron2":
            assert [row["negative_document_ids"] for row in rows] == [[c.id for c in each.negatives] for each in found]
            return
        texts = [[(c["title"], c["text"]) for c in row["negative_passages"]] for row in rows]
    assert texts == [[(c.title, c.text) for c in each.negatives] for each in found]


@quick
@given(found=examples(), suffix=st.sampled_from([".csv", ".tsv", ".jsonl"]), gz=GZ)
def test_columns_of_sentence_transformers(tmp_path_factory, found, suffix, gz):
    path = tmp_path_factory.mktemp("columns") / f"x{suffix}{gz}"
    write_examples(path, found, "sentence-transformers")
    rows = [
        (each.question, bare(right), *map(bare, each.negatives), [c.score for c in (right, *each.negatives)])
        for each in found
        for right in each.positives
    ]
    again = [
        (
            each.question,
            *(c.text for c in (*each.positives, *each.negatives)),
            [c.score for c in each.positives + each.negatives],
        )
        for each in read_examples(path)
    ]
    assert again == rows
    if suffix != ".jsonl":
        delimiter = {".csv": ",", ".tsv": "\t"}[suffix]
        table = python_csv(path, delimiter)
        assert table[0] == ["anchor", "positive", "negative_1", "negative_2", "scores"]
        assert [(*row[:4], json.loads(row[4])) for row in table[1:]] == rows


@quick
@given(found=examples(), gz=GZ)
def test_flag_embedding(tmp_path_factory, found, gz):
    path = tmp_path_factory.mktemp("flag") / f"x.jsonl{gz}"
    write_examples(path, found, "flag")
    expected = changed(found, lambda each: Candidate(None, "", bare(each), each.score), answers=())
    assert without_lines(list(read_examples(path))) == [replace(each, id=str(n)) for n, each in enumerate(expected)]


@quick
@given(found=examples(), gz=GZ)
def test_triples_hold_one_line(tmp_path_factory, found, gz):
    path = tmp_path_factory.mktemp("triples") / f"x.tsv{gz}"
    write_examples(path, found, "triples")

    def line(text: str) -> str:
        text = text.replace("\t", " ").replace("\r", " ").replace("\n", " ")
        return " " + text[1:] if text.startswith("\ufeff") else text

    wanted = [(line(each.question), {line(bare(c)) for c in each.positives + each.negatives}) for each in found]
    rows = [row.split("\t") for row in content(path).split("\n")[:-1]]  # as MS MARCO's readers do
    for read in (
        rows,
        [(e.question, e.positives[0].text, e.negatives[0].text) for e in read_examples(path, format="triples")],
    ):
        again: dict[str, set[str | None]] = {}
        for question, *texts in read:
            again.setdefault(question, set()).update(texts)
        assert list(again.items()) == wanted


@quick
@given(found=examples(negatives=1), to=st.sampled_from(["triples-ids", "distillation"]), gz=GZ)
def test_training_files_of_ids(tmp_path_factory, found, to, gz):
    folder = tmp_path_factory.mktemp("ids")
    path = folder / f"x.{'tsv' if to == 'triples-ids' else 'jsonl'}{gz}"
    found = [replace(each, positives=each.positives[:1]) for each in found]
    ids = [id for each in found for id in (each.id, *(c.id for c in each.positives + each.negatives))]
    if to == "triples-ids" and not all(fits_a_table(id or "") for id in ids):
        with pytest.raises(UserError, match="cannot be written in a table; rename it"):
            write_examples(path, found, to)
        assert not list(folder.iterdir())
        return
    write_examples(path, found, to)
    write_questions(folder / "queries.jsonl", [Question(each.id, each.question) for each in found])
    again = without_lines(list(read_examples(path, format=to, queries=folder / "queries.jsonl")))
    if to == "triples-ids":
        assert again == changed(found, lambda each: Candidate(each.id, "", None), answers=())
    else:
        scores = [{c.id: c.score for c in each.positives + each.negatives} for each in found]
        assert [{c.id: c.score for c in each.positives + each.negatives} for each in again] == scores


# ---- BEIR ------------------------------------------------------------------------------------------------------------


def write_questions(path: Path, questions: list[Question]) -> None:
    write_draw(path, questions, [Typo(question.text, ()) for question in questions])


def beir_loader(folder: Path, split: str) -> tuple[dict, dict, dict]:
    """beir.datasets.data_loader.GenericDataLoader, as it opens and reads the three files."""
    with open(folder / "corpus.jsonl", encoding="utf8") as file:
        rows = [json.loads(line) for line in file]
    with open(folder / "queries.jsonl", encoding="utf8") as file:
        queries = {row["_id"]: row["text"] for row in map(json.loads, file)}
    qrels: dict[str, dict[str, int]] = {}
    with open(folder / "qrels" / f"{split}.tsv", encoding="utf-8") as file:
        reader = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_MINIMAL)
        next(reader)
        for row in reader:
            qrels.setdefault(row[0], {})[row[1]] = int(row[2])
    return {row["_id"]: (row["title"], row["text"]) for row in rows}, queries, qrels


@quick
@given(found=examples(), grades=st.lists(st.sampled_from([3, 2, 1, None, 0, -1]), min_size=12, max_size=12), gz=GZ)
def test_beir_folders_and_judgements(tmp_path_factory, found, grades, gz):
    folder = tmp_path_factory.mktemp("beir")
    left = iter(grades)
    found = changed(found, lambda each: replace(each, grade=next(left, None)))
    wanted = {
        each.id: {
            c.id: judged if c.grade is None else c.grade
            for judged, of_kind in ((1, each.positives), (0, each.negatives))
            for c in of_kind
        }
        for each in found
    }
    ids = [id for query, of_query in wanted.items() for id in (query, *of_query)]
    if not all(fits_a_table(id or "") for id in ids):
        for path, to in ((folder / "set", "beir"), (folder / f"x.tsv{gz}", "qrels")):
            with pytest.raises(UserError, match="cannot be written in a table; rename it"):
                write_examples(path, found, to, split="dev")
        assert not [path for path in folder.rglob("*") if path.is_file()]
        return
    write_examples(folder / "set", found, "beir", split="dev")
    corpus, queries, qrels = beir_loader(folder / "set", "dev")
    assert qrels == wanted == read_beir(folder / "set", "dev").qrels
    passages = {c.id: (c.title, c.text) for each in found for c in each.positives + each.negatives}
    assert corpus == passages == {p.id: (p.title, p.text) for p in read_corpus(folder / "set")}
    assert queries == {each.id: each.question for each in found}
    questions = [Question(each.id, each.question, each.answers) for each in found]
    assert read_questions(folder / "set") == questions
    write_examples(folder / f"x.tsv{gz}", found, "qrels")
    assert read_qrels(folder / f"x.tsv{gz}") == wanted


@quick
@given(texts=st.lists(st.tuples(IDS, TEXTS, st.lists(TEXTS, max_size=2)), min_size=1, max_size=3), gz=GZ)
def test_questions(tmp_path_factory, texts, gz):
    path = tmp_path_factory.mktemp("questions") / f"queries.jsonl{gz}"
    questions = [Question(f"{id}{n}", text, tuple(answers)) for n, (id, text, answers) in enumerate(texts)]
    write_questions(path, questions)
    assert read_questions(path) == questions


# ---- runs ------------------------------------------------------------------------------------------------------------


@quick
@given(
    ids=st.lists(IDS, min_size=1, max_size=3),
    passages=st.lists(st.tuples(IDS, TEXTS, TEXTS), min_size=1, max_size=3),
    scores=st.lists(SCORES, min_size=3, max_size=3),
    format=st.sampled_from(["trec", "dpr", "jsonl"]),
    gz=GZ,
)
def test_runs(tmp_path_factory, ids, passages, scores, format, gz):
    folder = tmp_path_factory.mktemp("run")
    path = folder / f"run{gz}"
    questions = [Question(f"{id}{n}", f"{id} {n}", ("x",)) for n, id in enumerate(ids)]
    corpus = Corpus.from_passages(Passage(f"{id}{n}", title, text) for n, (id, title, text) in enumerate(passages))
    best_first = np.array(sorted(scores, reverse=True)[: len(corpus)], np.float32)
    found = SearchRun([Hits(question.id, list(corpus.ids), best_first) for question in questions], questions)
    all_ids = [*(question.id for question in questions), *corpus.ids]
    if format == "trec" and any(id.split() != [id] or "\0" in id or id[0] == "\ufeff" for id in all_ids):
        with pytest.raises(UserError, match="a TREC run cannot hold it"):
            found.save(path, format=format, corpus=corpus)
        assert not list(folder.iterdir())
        return
    found.save(path, format=format, corpus=corpus)
    wanted = {id: {p: np.float32(s) for p, s in hits.items()} for id, hits in found.items()}
    again = read_run(path)
    assert {id: {p: np.float32(s) for p, s in hits.items()} for id, hits in again.items()} == wanted
    assert [list(hits) for hits in again.values()] == [corpus.ids] * len(questions)
    if format == "trec":
        of_peer = pytrec_eval.parse_run(io.StringIO(content(path)))
        assert {id: {p: np.float32(s) for p, s in hits.items()} for id, hits in of_peer.items()} == wanted
    elif format == "dpr":  # its reader's loader of results
        rows = json.loads(content(path))
        assert [row["question"] for row in rows] == [question.text for question in questions]
        assert [[c["text"] for c in row["ctxs"]] for row in rows] == [corpus.texts] * len(questions)


# ---- commands --------------------------------------------------------------------------------------------------------


def test_every_command_s_compressed_file_is_read_by_the_next(tmp_path, capsys):
    def run(words: str) -> None:
        assert cli.main([str(tmp_path / word[2:]) if word.startswith("./") else word for word in words.split()]) == 0

    names = ["apples are red", "boats come home", "coal is black"]
    for name, numbers in (("corpus", "pqr"), ("queries", "123")):
        rows = [{"_id": id, "title": "", "text": text} for id, text in zip(numbers, names, strict=True)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n1\tp\t2\n2\tq\t1\n3\tr\t1\n")
    for format in ("trec", "jsonl", "dpr"):
        run(f"bm25 --corpus ./corpus.jsonl --queries ./queries.jsonl --format {format} --out ./{format}.gz")
    run("fuse ./trec.gz ./dpr.gz --weight 1 --out ./fused.trec.gz")
    run(
        "evaluate --run ./fused.trec.gz --baseline ./jsonl.gz --qrels ./qrels.tsv --metrics mrr@10 --per-query ./each.tsv.gz"
    )
    assert [row[1:] for row in python_csv(tmp_path / "each.tsv.gz", "\t")[1:]] == [["1", "1"]] * 3
    run("data convert ./qrels.tsv ./train.jsonl.gz --to tevatron2 --queries ./queries.jsonl")
    assert "grades were left out in 1 examples" in capsys.readouterr().err
    run(
        "mine --corpus ./corpus.jsonl --train ./train.jsonl.gz --run ./trec.gz --out ./mined.jsonl.gz --report ./report.json.gz"
    )
    assert len(list(read_examples(tmp_path / "mined.jsonl.gz"))) == 3
    assert json.loads(content(tmp_path / "report.json.gz"))["questions"] == 3
    run("data validate ./mined.jsonl.gz --corpus ./corpus.jsonl")
    assert all(path.read_bytes()[:2] == b"\x1f\x8b" for path in tmp_path.glob("*.gz"))
