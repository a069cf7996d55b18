"""Every format of training data reads to the same examples, survives being written, and names its bad rows by line."""

import csv
import gzip
import json
import logging
from pathlib import Path

import pytest

from jaxretr.data.formats.examples import Candidate, Example, joined
from jaxretr.data.formats.kinds import FORMATS, file_kind
from jaxretr.data.formats.reading import read_examples
from jaxretr.data.formats.writing import write_examples
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.runtime.errors import UsageError, UserError

DATA = Path(__file__).parents[1] / "data"
WIKI = DATA / "wiki_qa"
QUERIES = WIKI / "queries.jsonl"
CORPUS = read_corpus(WIKI)
GOLDEN = {
    "dpr": "dpr.json",
    "dpr-scale": "dpr_scale.jsonl",
    "tevatron": "tevatron.jsonl",
    "tevatron2": "tevatron2.jsonl",
    "sentence-transformers": "columns.jsonl",
    "distillation": "distillation.jsonl",
    "flag": "flag.jsonl",
    "triples": "triples.tsv",
    "triples-ids": "triples_ids.tsv",
    "qrels": "qrels.tsv",
}
NEED_QUERIES = ("distillation", "triples-ids", "qrels")

# What all golden files say: question, answers, positives, hard negatives, other negatives, as ids of the corpus.
QUESTION_IDS = ("nq:t9174646170831578919", "squad:5725b33f6a3fe71400b8952d")
TEXTS = ("what is the medical term for webbed toes", "When did the 1973 oil crisis begin?")
ANSWERS = (("syndactyly affecting the feet",), ("October 1973", "October", "1973"))
POSITIVES = (["nq:p1"], ["squad:0-0"])
NEGATIVES = (["tydidev:end0", "nq:p3"], ["nq:p3", "tydidev:end0"])
OTHERS = (["nq:p0"], [])
SCORES = {"nq:p1": 9.5, "squad:0-0": 8.25, "tydidev:end0": 3.5, "nq:p3": -1.25}


def golden(format: str) -> Path:
    return DATA / "formats" / GOLDEN[format]


def read(path: Path, format: str | None = None, **options) -> list[Example]:
    kind = format or file_kind(path)
    queries = QUERIES if kind in NEED_QUERIES else None
    return list(joined(read_examples(path, format=format, corpus=CORPUS, queries=queries, **options)))


def corpus_id(candidate: Candidate) -> str:
    """Which passage of the corpus it is, by its id or by its text alone."""
    if candidate.id is not None:
        row = CORPUS.row(candidate.id)
        assert candidate.text in (None, CORPUS.texts[row]) and candidate.title in ("", CORPUS.titles[row])
        return candidate.id
    texts = {CORPUS.texts[i] for i in range(20)}
    assert candidate.title == "" and candidate.text in texts
    return CORPUS.ids[CORPUS.texts.index(candidate.text)]


def ids(candidates) -> list[str]:
    return [corpus_id(candidate) for candidate in candidates]


def message(read, *args, **kwargs) -> str:
    with pytest.raises(UserError) as caught:
        read(*args, **kwargs)
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value), "no remedy"
    return str(caught.value)


# ---- the golden files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", GOLDEN)
def test_a_golden_file_is_recognised_and_read(format):
    assert file_kind(golden(format)) == format
    examples = read(golden(format))
    assert [each.question for each in examples] == list(TEXTS)
    assert [ids(each.positives) for each in examples] == list(POSITIVES)
    assert [ids(each.negatives) for each in examples] == list(NEGATIVES)
    has_others = format in ("dpr", "dpr-scale")
    assert [ids(each.other_negatives) for each in examples] == (list(OTHERS) if has_others else [[], []])
    if format in ("dpr", "dpr-scale", "tevatron", *NEED_QUERIES):
        assert tuple(each.answers for each in examples) == ANSWERS
    if format.startswith("tevatron") or format in NEED_QUERIES:
        assert tuple(each.id for each in examples) == QUESTION_IDS
    else:
        assert [each.id for each in examples] == ["0", "2" if format == "triples" else "1"]
    if format in ("dpr-scale", "sentence-transformers", "distillation", "flag"):
        for each in examples:
            assert [c.score for c in each.positives + each.negatives] == [
                SCORES[id] for id in ids(each.positives + each.negatives)
            ]
    if format == "dpr":
        assert [c.score for c in examples[0].positives + examples[0].negatives] == [1000, 3.5, -1.25]
        assert examples[0].positives[0].title == "Webbed toes"
        assert [each.line for each in examples] == [2, 43]


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("source", ["dpr-scale", "distillation"])
def test_what_is_written_reads_the_same(source, to, tmp_path):
    examples = read(golden(source))
    if to == "distillation":
        # The format of teachers' scores has no place for a passage that was not scored.
        examples = [Example(e.id, e.question, e.answers, e.positives, e.negatives) for e in examples]
    path = tmp_path / "out"
    assert write_examples(path, examples, to, CORPUS) == 2
    if to == "beir":
        found = list(read_examples(path, corpus=read_corpus(path)))
        assert list(read_corpus(path)) == list(CORPUS)
    else:
        assert file_kind(path) == to
        known = {each.id: each for each in read_questions(QUERIES)} | {each.id: each for each in examples}
        queries = tmp_path / "queries.jsonl"
        queries.write_text(
            "".join(
                json.dumps({"_id": id, "text": each.question if isinstance(each, Example) else each.text}) + "\n"
                for id, each in known.items()
            )
        )
        options = {"queries": queries} if to in NEED_QUERIES else {}
        found = list(joined(read_examples(path, corpus=CORPUS, **options)))
    assert [each.question for each in found] == list(TEXTS)
    bare = to in ("sentence-transformers", "flag", "triples")

    def content(candidates) -> list[str]:
        """Bare texts begin with the title."""
        if not bare:
            return ids(candidates)
        joined_texts = {f"{p.title} {p.text}": p.id for p in CORPUS}
        return [joined_texts[candidate.text] for candidate in candidates]

    assert [content(each.positives) for each in found] == list(POSITIVES)
    assert [content(each.negatives) for each in found] == list(NEGATIVES)
    if source == "dpr-scale" and to in ("dpr", "dpr-scale"):
        assert [ids(each.other_negatives) for each in found] == list(OTHERS)
    if to in ("dpr", "dpr-scale", "tevatron", "beir"):
        assert tuple(each.answers for each in found) == ANSWERS
    if to in ("dpr", "dpr-scale", "tevatron", "sentence-transformers", "flag", "distillation"):
        scores = [[c.score for c in e.positives + e.negatives] for e in found]
        assert scores == [[SCORES[id] for id in content(e.positives + e.negatives)] for e in found]


@pytest.mark.parametrize("format", [format for format in GOLDEN if format not in ("sentence-transformers", "triples")])
def test_writing_what_was_written_changes_no_byte(format, tmp_path):
    examples = read(golden(format))
    write_examples(tmp_path / "a", examples, format, CORPUS)
    queries = QUERIES if format in NEED_QUERIES else None
    again = list(joined(read_examples(tmp_path / "a", corpus=CORPUS, queries=queries)))
    write_examples(tmp_path / "b", again, format, CORPUS)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_gzip_and_the_stated_format(tmp_path):
    packed = tmp_path / "train.gz"
    packed.write_bytes(gzip.compress(golden("tevatron").read_bytes()))
    assert read(packed) == read(golden("tevatron"))
    assert read(golden("tevatron"), format="tevatron") == read(golden("tevatron"))
    assert "no format 'tevatorn'; did you mean 'tevatron'?" in message(read, packed, format="tevatorn")


# ---- bad rows --------------------------------------------------------------------------------------------------------

BAD_ROWS = {
    "dpr": [
        ('{"answers": [], "positive_ctxs": []}', 'no field "question"'),
        ('{"question": "q", "positive_ctx": []}', "no field \"positive_ctxs\"; did you mean 'positive_ctx'?"),
        ('{"question": "q", "positive_ctxs": {"text": "x"}}', 'field "positive_ctxs" is not a list of passages'),
        ('{"question": "q", "positive_ctxs": [{"title": "x"}]}', 'passage in "positive_ctxs" has neither a text nor'),
        (
            '{"question": "q", "positive_ctxs": [{"text": "x", "score": 1e39}]}',
            "field \"score\" is '1e+39', too large for float32",
        ),
        (
            '{"question": "q", "positive_ctxs": [{"text": "x", "score": "high"}]}',
            "field \"score\" is 'high', not a num",
        ),
        ('{"question": "q", "positive_ctxs": [], "answers": [1]}', "the answers are not a list of strings"),
        ("7", "a number instead of a JSON object"),
    ],
    "dpr-scale": [
        ('{"question": "q", "positive_ctxs": [{"docidx": 20}]}', "docidx 20 in a corpus of 20 rows"),
        ('{"question": "q", "positive_ctxs": [{"docidx": -1}]}', "docidx -1 in a corpus of 20 rows"),
        ('{"question": "q", "positive_ctxs": [{"docidx": "1"}]}', "field \"docidx\" is '1', not a row of the corpus"),
        ('{"question": "q", "positive_ctxs": [{"docidx": 1, "id": "nq:p2"}]}', "docidx 1 is passage 'nq:p1' in the"),
        ('{"question": "q",', "broken JSON"),
    ],
    "tevatron": [('{"query": "q", "positive_passages": ["x"]}', 'field "positive_passages" is not a list of passages')],
    "tevatron2": [
        (
            '{"query_id": "1", "query_image": "x.png", "positive_document_ids": []}',
            "a query_image without a query_text",
        ),
        ('{"query_id": "1", "query_text": "q", "positive_document_ids": [[1]]}', "is not a list of ids"),
        (
            '{"query_id": "1", "query_text": "q", "positive_document_ids": ["p"], "positive_scores": [1, 2]}',
            'field "positive_scores" is not a list of 1 numbers; give every document a score',
        ),
    ],
    "sentence-transformers": [
        ('{"query": "q", "answer_passage": null, "negative_1": "n"}', 'field "answer_passage" is null'),
        ('{"query": "q", "answer_passage": "p", "negative_1": "n", "scores": 1}', "one score for 3 passages"),
        ('{"query": "q", "answer_passage": "p", "negative_1": "n", "scores": [1]}', "1 scores for 3 passages"),
        ('{"query": "q"}', 'no field "answer_passage"'),
    ],
    "distillation": [
        (
            f'{{"query_id": "{QUESTION_IDS[0]}", "document_ids": ["a", "b"], "scores": [1]}}',
            "is not a list of 2 numbers",
        ),
        (f'{{"query_id": "{QUESTION_IDS[0]}", "document_ids": ["a"], "scores": [null]}}', "is null or not finite"),
        ('{"query_id": "?", "document_ids": ["a"], "scores": [1]}', "question '?' is not in the queries file"),
    ],
    "flag": [
        ('{"query": "q", "pos": "p", "neg": []}', 'field "pos" is not a list of texts'),
        ('{"query": "q", "pos": ["p"], "neg": [], "pos_scores": [1, 2]}', "has 2 scores for 1 texts"),
        ('{"pos": ["p"], "neg": []}', 'no field "query"'),
    ],
    "triples": [("only two\tcolumns here", "2 columns instead of query<TAB>positive<TAB>negative")],
    "triples-ids": [
        ("1\t2", "not question-id<TAB>positive-id<TAB>negative-id"),
        ("1\t2\t3", "question '1' is not in the queries file"),
    ],
    "qrels": [
        (f"{QUESTION_IDS[0]} 0 nq:p999 1", "passage 'nq:p999' is not in the corpus"),
        (f"{QUESTION_IDS[0]} 0 nq:p1 0", "have another grade on an earlier line"),
        (f"{QUESTION_IDS[0]} 0 nq:p1 high", "the grade 'high' is not a whole number"),
        ("1 0 nq:p1 1", "question '1' is not in the queries file"),
    ],
}


@pytest.mark.parametrize(
    ("format", "row", "problem"), [(format, *each) for format, found in BAD_ROWS.items() for each in found]
)
def test_a_bad_row_is_named_by_line_or_skipped_and_counted(format, row, problem, tmp_path, caplog):
    path = tmp_path / GOLDEN[format]
    if format == "dpr":
        content = golden(format).read_text()
        path.write_text(f"{content.rstrip().removesuffix(']')},\n{row}\n]\n")
    else:
        path.write_text(f"{golden(format).read_text()}{row}\n")
    line = path.read_text().split("\n").index(row) + 1
    assert message(read, path).startswith(f"{path}:{line}: ")
    assert problem in message(read, path)
    with caplog.at_level(logging.WARNING):
        kept = read(path, skip_bad=True)
    assert [each.question for each in kept] == list(TEXTS)
    assert f"{path}: skipped 1 bad rows, kept " in caplog.text and f"the first: {path}:{line}: " in caplog.text


def test_ids_alone_need_their_questions():
    for format in NEED_QUERIES:
        problem = message(lambda path: list(read_examples(path)), golden(format))
        assert "has only the ids of its questions" in problem and "give the queries file" in problem
    with pytest.raises(UsageError, match="contains its questions"):
        list(read_examples(golden("flag"), queries=QUERIES))
    assert "docidx 1 is a row of a corpus" in message(lambda p: list(read_examples(p)), golden("dpr-scale"))


# ---- what the content tells ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("corpus.jsonl", '{"_id": "1", "title": "", "text": "x"}', "corpus"),
        ("x.jsonl", '{"_id": "1", "text": "a short one"}', "questions"),
        ("x.jsonl", json.dumps({"_id": "1", "text": "word " * 50}), "corpus"),
        ("x.jsonl", '{"question": "q", "answer": ["a"]}', "questions"),
        ("x.json", '[{"question": "q", "answers": ["a"]}]', "questions"),
        ("x.json", '[{"question": "q", "answers": ["a"], "ctxs": []}]', "run"),
        ("x.jsonl", '{"question_id": "q", "hits": []}', "run"),
        ("x.tsv", "id\ttext\ttitle\n1\tx\tt", "corpus"),
        ("collection.tsv", "1\tx", "corpus"),
        ("queries.tsv", "1\tx", "questions"),
        ("x.tsv", "who?\t['me']", "questions"),
        ("x.txt", "who are you", "questions"),
        ("x.trec", "q Q0 d 1 2.5 tag", "run"),
        ("x.tsv", "q\td1\t1\nq\td2\t2\n", "run"),
        ("x.tsv", "q\td1\t1.5\nq\td2\t0.5\n", "run"),
        ("x.tsv", "q\t7\t70\nq\t7\t19\n", "triples-ids"),
        ("x.tsv", "query-id\tcorpus-id\tscore\nq\td\t1\n", "qrels"),
        ("x.tsv", "q\td\t1\nr\td\t0\n", "qrels"),
        ("x.csv", "question,positive\nq,p\n", "sentence-transformers"),
        ("x.jsonl", '{"sentence1": "a", "sentence2": "b", "label": 1}', "sentence-transformers"),
    ],
)
def test_kinds_are_told_from_the_content(name, content, kind, tmp_path):
    (tmp_path / name).write_text(content)
    assert file_kind(tmp_path / name) == kind


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("x.jsonl", '{"query": "q", "answer": "a"}', "not recognised; state its format, one of dpr, dpr-scale, "),
        ("x.jsonl", '{"a": 1}', "not recognised"),
        ("x.csv", "a,b\n1,2", "not recognised"),
        ("x.tsv", "a\tb\tc\td\te", "not recognised"),
        ("x.jsonl", "{broken", ":1: broken JSON"),
        ("corpus.jsonl", '{"_id": "1", "title": "", "text": "x"}', "looks like corpus, not a training set; give it as"),
        ("x.trec", "q Q0 d 1 2.5 tag", "looks like run (ranked passages), not a training set; mine hard negatives"),
    ],
)
def test_what_is_no_training_set_is_refused(name, content, problem, tmp_path):
    (tmp_path / name).write_text(content)
    assert problem in message(lambda path: list(read_examples(path)), tmp_path / name)


def test_a_folder_that_is_none(tmp_path):
    assert "is not a BEIR folder" in message(lambda path: list(read_examples(path)), tmp_path)


# ---- sentence-transformers' columns ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["columns.csv", "columns.tsv"])
def test_columns_of_tables(name, tmp_path):
    examples = read(DATA / "formats" / name)
    assert [ids(each.positives) for each in examples] == list(POSITIVES)
    assert [ids(each.negatives) for each in examples] == [found[:1] for found in NEGATIVES]
    awkward = Candidate(None, "", 'a "quoted",\ttext\nof two lines')
    write_examples(tmp_path / name, [Example("0", "q", (), (awkward,), ())] * 2, "sentence-transformers")
    (found,) = joined(read_examples(tmp_path / name))
    assert found.positives == (awkward,) and found.id == "0"


def columns(tmp_path: Path, *rows: dict) -> list[Example]:
    path = tmp_path / "columns.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_examples(path, format="sentence-transformers"))


def test_the_order_of_columns_counts_and_not_their_names(tmp_path):
    # As sentence-transformers takes them: the first is the anchor, whatever it is called.
    (found, second) = columns(
        tmp_path,
        {"positive": "q", "score": None, "anchor": "p", "x": None, "y": "n"},
        {"y": "n2", "anchor": "p2", "x": "m", "positive": "q2"},
    )
    assert (found.question, [c.text for c in found.positives], [c.text for c in found.negatives]) == ("q", ["p"], ["n"])
    assert (second.question, second.positives[0].text) == ("q2", "p2")
    assert [c.text for c in second.negatives] == ["m", "n2"]


def test_labels_and_scores_of_columns(tmp_path):
    def scores(row: dict) -> tuple[list, list]:
        (found,) = columns(tmp_path, {"anchor": "q", **row})
        return [(c.text, c.score) for c in found.positives], [(c.text, c.score) for c in found.negatives]

    assert scores({"a": "p", "label": 1}) == ([("p", 1)], [])
    assert scores({"a": "p", "label": 0}) == ([], [("p", 0)])
    assert scores({"a": "p", "score": 7.5}) == ([("p", 7.5)], [])
    # MarginMSELoss: how far the positive is above the negative. Only differences matter to it.
    assert scores({"a": "p", "b": "n", "label": 2.5}) == ([("p", 0)], [("n", -2.5)])
    assert scores({"a": "p", "b": "n", "c": "m", "labels": [2.5, 3]}) == ([("p", 0)], [("n", -2.5), ("m", -3)])
    assert scores({"a": "p", "b": "n", "c": "m", "scores": [5, 1, 2]}) == ([("p", 5)], [("n", 1), ("m", 2)])
    problem = message(columns, tmp_path, {"anchor": "q", "a": "p", "label": 2})
    assert problem.endswith(":1: label 2 of a pair is a class; pairs have the labels 0 and 1, or a score like 2.5")


def test_a_broken_csv_row_costs_one_row(tmp_path, caplog):
    path = tmp_path / "x.csv"
    path.write_text('anchor,positive\nq,"two\nlines"\nr,"bad" quote\ns,t,u\nv,w\n')
    assert message(lambda p: list(read_examples(p)), path).startswith(f"{path}:4: broken csv")
    with caplog.at_level(logging.WARNING):
        found = list(read_examples(path, skip_bad=True))
    assert [(each.line, each.question, each.positives[0].text) for each in found] == [
        (2, "q", "two\nlines"),
        (6, "v", "w"),
    ]
    assert "skipped 2 bad rows" in caplog.text


def test_a_golden_csv_is_what_the_csv_module_reads():
    """The golden table was made by another program: it must stay plain csv."""
    with open(DATA / "formats" / "columns.csv", newline="") as file:
        assert [row[0] for row in csv.reader(file)] == ["anchor", *TEXTS]
