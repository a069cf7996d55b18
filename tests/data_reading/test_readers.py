"""Every public format reads to the same content, and a bad row is named by file and line and never lost."""

import csv
import gzip
import io
import json
import logging
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxretr.data import source, text_rows
from jaxretr.data.readers import (
    Corpus,
    Passage,
    Question,
    iter_passages,
    read_beir,
    read_corpus,
    read_qrels,
    read_questions,
)
from jaxretr.runtime.errors import UserError

WIKI = Path(__file__).parents[1] / "data" / "wiki_qa"

# Characters that other programs take for line ends, quotes, or nothing at all.
AWKWARD = st.text(st.sampled_from(list("ab\"'\\,\t\n\r\u2028\u2029\x85\x0b\ufeff\u00e9\u6f22\U0001f600 ")), max_size=12)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def message(read, *args, **kwargs) -> str:
    with pytest.raises(UserError) as caught:
        read(*args, **kwargs)
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value), "no remedy"
    return str(caught.value)


def test_beir_folder_and_dpr_tsv_of_the_same_passages_are_the_same_corpus(tmp_path):
    beir = read_corpus(WIKI)
    dpr = read_corpus(WIKI / "psgs_w100.tsv")
    assert len(beir) == 20
    assert beir[3].title == "The Great Gilly Hopkins (film)"
    assert beir[3].text.startswith("Sophie Nélisse as Gilly Hopkins")
    assert list(dpr) == list(beir)
    packed = write(tmp_path / "psgs.tsv.gz", gzip.compress((WIKI / "psgs_w100.tsv").read_bytes()))
    assert read_corpus(packed).fingerprint() == beir.fingerprint()


def test_rows_are_found_by_id():
    corpus = read_corpus(WIKI)
    assert [corpus.row(id) for id in corpus.ids] == list(range(20))
    assert "nq:p1" in corpus and "nq:p999" not in corpus
    with pytest.raises(KeyError):
        corpus.row("nq:p999")


def test_fingerprint_frames_its_fields():
    def fingerprint(*rows):
        return Corpus.from_passages(Passage(*row) for row in rows).fingerprint()

    contents = [
        (("a", "b", "c"),),
        (("ab", "", "c"),),
        (("a", "bc", ""),),
        (("a", "", "bc"),),
        (("a", "b", ""), ("c", "", "")),
        (("a", "", ""), ("b", "c", "")),
        (("b", "c", ""), ("a", "", "")),
    ]
    assert len({fingerprint(*rows) for rows in contents}) == len(contents)
    assert fingerprint(*contents[0]) == fingerprint(*contents[0])


def test_two_passages_of_one_id_make_no_corpus():
    assert "'x'" in message(Corpus.from_passages, [Passage("x", "", "a"), Passage("x", "", "b")])


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(AWKWARD, AWKWARD), min_size=1, max_size=6))
def test_any_text_survives_both_formats(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("any")
    lines = [
        json.dumps({"_id": str(i), "title": a, "text": b}, ensure_ascii=i % 2 == 0) for i, (a, b) in enumerate(rows)
    ]
    assert [(p.title, p.text) for p in read_corpus(write(folder / "c.jsonl", "\n".join(lines)))] == rows
    buffer = io.StringIO()
    table = csv.writer(buffer, "excel-tab", lineterminator="\n")
    # A carriage return or a tab inside a field is what this format cannot promise to carry (see the next test).
    clean = [(a.replace("\r", "").replace("\t", ""), b.replace("\r", "").replace("\t", "")) for a, b in rows]
    table.writerow(["id", "text", "title"])
    for i, (a, b) in enumerate(clean):
        table.writerow([i, b, a])
    assert [(p.title, p.text) for p in read_corpus(write(folder / "c.tsv", buffer.getvalue()))] == clean


def test_quotes_in_a_tsv_never_swallow_a_row(tmp_path):
    rows = [
        'a\t"quoted ""twice"", with a\ttab"\tT',
        'b\t"so" he said\tT',
        'c\tin the "middle"\tT',
        'd\t"left open\tT',
        'e\t"over\n\ntwo lines"\tT',
        "f\t\t",
        'g\tlast\t"open at the end',
    ]
    corpus = read_corpus(write(tmp_path / "c.tsv", "id\ttext\ttitle\n" + "\n".join(rows) + "\n"))
    assert corpus.ids == list("abcdefg")
    assert corpus.texts == [
        'quoted "twice", with a\ttab',
        '"so" he said',
        'in the "middle"',
        '"left open',
        "over\n\ntwo lines",
        "",
        "last",
    ]
    assert corpus.titles[6] == '"open at the end'


def test_a_field_of_a_whole_book_is_read(tmp_path):
    book = 'so "far" ' * 50_000
    quoted = '"' + book.replace('"', '""') + '"'
    assert read_corpus(write(tmp_path / "c.tsv", f"id\ttext\n1\t{quoted}\n")).texts == [book]


def test_header_in_any_order_and_without_title(tmp_path):
    assert list(read_corpus(write(tmp_path / "a.tsv", 'title\t"id"\ttext\r\nT\t1\tx\r\n'))) == [Passage("1", "T", "x")]
    assert list(read_corpus(write(tmp_path / "b.tsv", "text\tid\nx\t007\n"))) == [Passage("007", "", "x")]


def test_ms_marco_collection_keeps_quotes_and_needs_no_header(tmp_path):
    path = write(tmp_path / "collection.tsv", '0\t"Yes" and "no\n1\t\n')
    assert list(read_corpus(path)) == [Passage("0", "", '"Yes" and "no'), Passage("1", "", "")]
    three = write(tmp_path / "three.tsv", "0\ta\tb\n")
    assert f"{three}:1: 3 columns" in message(read_corpus, three)


def test_jsonl_names_nulls_numbers_and_a_byte_order_mark(tmp_path):
    lines = [
        '\ufeff{"_id": 7, "title": "NaN", "text": "null"}',
        '{"id": "007", "title": null, "contents": "line\u2028separator"}',
        "",
        '{"docid": "x", "title": "null", "text": ""}',
        '{"_id": "y", "title": "", "text": "nan"}',
    ]
    corpus = read_corpus(write(tmp_path / "c.jsonl", "\r\n".join(lines)))
    assert corpus.ids == ["7", "007", "x", "y"]
    assert corpus.titles == ["NaN", "", "null", ""]
    assert corpus.texts == ["null", "line\u2028separator", "", "nan"]
    assert [line for line, _ in iter_passages(tmp_path / "c.jsonl")] == [1, 2, 4, 5]


GOOD = b'{"_id": "good", "title": "", "text": "t"}\n'
BAD_JSON_ROWS = {
    "broken JSON": b'{"_id": "a", "text": "x"',
    "a list": b'["a"]',
    "no field \"text\"; did you mean 'txt'": b'{"_id": "a", "txt": "x"}',
    'no field "_id"': b'{"text": "x"}',
    'field "text" is a number': b'{"_id": "a", "text": 5}',
    'field "text" is null': b'{"_id": "a", "text": null}',
    'field "title" is a number': b'{"_id": "a", "title": NaN, "text": "x"}',
    'field "_id" is a boolean': b'{"_id": true, "text": "x"}',
    "the id is empty": b'{"_id": " ", "text": "x"}',
    "not valid UTF-8 (byte 0xff at character 24)": b'{"_id": "a", "text": "x\xff"}',
    "a lone surrogate": b'{"_id": "a", "text": "\\ud800"}',
    "duplicate id 'good' (first on line 1)": GOOD.strip(),
}


@pytest.mark.parametrize("problem", BAD_JSON_ROWS)
def test_bad_json_row_stops_or_is_counted(tmp_path, caplog, problem):
    content = GOOD + BAD_JSON_ROWS[problem] + b"\n" + GOOD.replace(b"good", b"also")
    path = write(tmp_path / "corpus.jsonl", content)
    assert message(read_corpus, path).startswith(f"{path}:2: {problem}")
    with caplog.at_level(logging.WARNING):
        assert read_corpus(path, skip_bad=True).ids == ["good", "also"]
    assert "skipped 1 bad rows, kept 2" in caplog.text
    assert f"{path}:2: {problem}" in caplog.text


def test_bad_tsv_row_stops_or_is_counted(tmp_path, caplog):
    path = write(tmp_path / "c.tsv", b"id\ttext\ttitle\n1\tx\tT\n2\tx\n3\t\xff\tT\n\tx\tT\n4\tx\tT\n")
    assert message(read_corpus, path).startswith(f"{path}:3: 2 columns, the header has 3")
    assert read_corpus(path, skip_bad=True).ids == ["1", "4"]
    assert "skipped 3 bad rows" in caplog.text


def test_files_that_hold_no_corpus(tmp_path):
    (tmp_path / "beir").mkdir()
    assert "neither corpus.jsonl nor corpus.jsonl.gz" in message(read_corpus, tmp_path / "beir")
    write(tmp_path / "corpus.jsonl", "")
    assert "no passages" in message(read_corpus, tmp_path / "corpus.jsonl")
    assert "did you mean 'corpus.jsonl'" in message(read_corpus, tmp_path / "corpsu.jsonl")
    assert "no passages" in message(read_corpus, write(tmp_path / "h.tsv", "id\ttext\n"))
    assert "a JSON array" in message(read_corpus, write(tmp_path / "c.json", "[{}]"))
    assert "not a corpus" in message(read_corpus, write(tmp_path / "c.txt", "some text\n"))
    only_bad = write(tmp_path / "bad.jsonl", "{\n")
    assert "besides 1 bad rows" in message(read_corpus, only_bad, skip_bad=True)


def test_a_cut_gzip_file_is_never_half_a_corpus(tmp_path):
    whole = gzip.compress((WIKI / "corpus.jsonl").read_bytes())
    path = write(tmp_path / "corpus.jsonl.gz", whole[: len(whole) // 2])
    for skip_bad in (False, True):
        text = message(read_corpus, path, skip_bad=skip_bad)
        assert text.startswith(f"{path}:") and "gzip stream is cut short" in text


def test_questions_of_all_formats(tmp_path, caplog):
    beir = read_questions(WIKI)
    assert len(beir) == 10
    assert beir[1] == Question(
        "nq:t16338859035433225645", "who plays mr randolph in the great gilly hopkins", ("Bill Cobbs",)
    )
    numbered = [Question(str(i), q.text, q.answers) for i, q in enumerate(beir)]
    assert read_questions(WIKI / "questions.tsv") == numbered

    dpr = [{"question": q.text, "answers": list(q.answers), "positive_ctxs": []} for q in beir]
    assert read_questions(write(tmp_path / "nq-train.json", json.dumps(dpr, indent=1))) == numbered
    web = [{"qId": q.id, "qText": q.text, "answers": list(q.answers)} for q in beir]
    packed = gzip.compress(json.dumps(web).encode())
    assert read_questions(write(tmp_path / "web.json.gz", packed)) == beir
    lines = "\n".join(json.dumps({"query": q.text, "answer": list(q.answers)}) for q in beir)
    assert read_questions(write(tmp_path / "open.jsonl", lines)) == numbered

    bare = [Question(q.id, q.text) for q in beir]
    lines = "".join(f"{q.id}\t  {q.text}\r\n" for q in beir)
    assert read_questions(write(tmp_path / "queries.tsv", lines)) == bare
    for header in ("qid\tquery", "qid\tqText", "QUERY_ID\tText"):
        assert read_questions(write(tmp_path / "headed.tsv", f"{header}\n{lines}")) == bare
    caplog.clear()
    assert len(read_questions(write(tmp_path / "other.tsv", "qid\twords\n" + lines))) == len(bare) + 1
    assert "other.tsv:1: is read as a question; of a header, the second name is one of" in caplog.text
    lines = "\n\n".join(q.text for q in beir)
    assert read_questions(write(tmp_path / "plain.txt", lines)) == [Question(q.id, q.text) for q in numbered]


def test_answer_literals(tmp_path):
    lines = [
        'when was "it"\t"[""Queen\'s"", \'a\\tb\']"',
        "a pattern, what is it\t'\\d{4}|19[0-9]+'",
        "none known\t[]",
    ]
    questions = read_questions(write(tmp_path / "qa.csv", "\n".join(lines)))
    assert [q.answers for q in questions] == [("Queen's", "a\tb"), ("\\d{4}|19[0-9]+",), ()]
    code = write(tmp_path / "code.tsv", "what is it\t['a']\nwhat is it\t__import__('os').getcwd()\n")
    assert f"{code}:2: the answers are not a Python list" in message(read_questions, code)
    # A query in quotes is no answer.
    marco = write(tmp_path / "marco.tsv", "17\t'quoted'\n18\t[1]\n")
    assert read_questions(marco) == [Question("17", "'quoted'"), Question("18", "[1]")]


BAD_QUESTION_FILES = {
    "q.jsonl:2: duplicate id 'a' (first on line 1)": '{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}',
    'q.jsonl:1: no field "text"': '{"_id": "a"}',
    "q.jsonl:1: the answers are not a list": '{"text": "x", "answers": [1]}',
    "q.json:3: the answers are not a list": '[{"text": "x"},\n\n{"text": "y", "answers": {}}]',
    "q.json:2: broken JSON array": '[{"text": "x"},\n{"text": "y"',
    "q.json:2: a string instead of": '[{"text": "x"},\n"y"]',
    "q.tsv:2: 3 columns": "1\ta\n2\tb\tc\n",
    "q.tsv:1: not a question file": "who\n",
    "q.txt: no questions": "\n\n",
    "q.json: no questions": "[ ]",
}


@pytest.mark.parametrize("problem", BAD_QUESTION_FILES)
def test_bad_questions_name_file_and_line(tmp_path, problem):
    path = write(tmp_path / problem.split(":")[0], BAD_QUESTION_FILES[problem])
    assert message(read_questions, path).startswith(str(tmp_path / problem))


def test_empty_questions_keep_their_rows(tmp_path, caplog):
    path = write(tmp_path / "q.jsonl", '{"_id": "a", "text": "x"}\n{"_id": "b", "text": ""}')
    assert read_questions(path) == [Question("a", "x"), Question("b", "")]
    assert f"{path}:2: the question is empty, the first of 1; kept" in caplog.text
    assert read_questions(write(tmp_path / "q.tsv", "a\tx\nb\t \n"))[1] == Question("b", "")


def test_skipped_questions_do_not_shift_the_numbers_of_the_others(tmp_path, caplog):
    path = write(tmp_path / "q.txt", b"first\n\xff\nthird\n")
    assert read_questions(path, skip_bad=True) == [Question("0", "first"), Question("2", "third")]
    assert "skipped 1 bad rows, kept 2" in caplog.text


def test_qrels_of_beir_and_trec(tmp_path):
    assert read_qrels(WIKI / "qrels" / "train.tsv")["nq:t9174646170831578919"] == {"nq:p1": 1}
    expected = {"q 1": {"d\u00a01": 2, "d2": 0}, "q2": {"d2": -1}}
    beir = "query-id\tcorpus-id\tscore\nq 1\td\u00a01\t2\nq 1\td2\t0\nq2\td2\t-1\nq2\td2\t-1\n"
    assert read_qrels(write(tmp_path / "b.tsv", beir)) == expected
    assert read_qrels(write(tmp_path / "b2.tsv", beir.partition("\n")[2])) == expected
    trec = "q1 0 d\u00a01   2\nq1 Q0 d2 0\nq2\t0\td2\t-1\r\n"
    assert read_qrels(write(tmp_path / "t.txt", trec)) == {"q1": expected["q 1"], "q2": expected["q2"]}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("q\td\t1\nq\td\t0\n", ":2: 'q' and 'd' have another grade on line 1"),
        ("q 0 d 1\nq 0 d\n", ":2: 3 columns, the first row has 4"),
        ("q\td\tyes\n", ":1: the grade 'yes' is not a whole number"),
        ("q d\n", ":1: 2 columns"),
        ("\td\t1\n", ":1: an id is empty"),
        ("query-id\tcorpus-id\tscore\n", ": no judgements"),
    ],
)
def test_bad_qrels_name_file_and_line(tmp_path, content, problem):
    path = write(tmp_path / "qrels.tsv", content)
    assert message(read_qrels, path).startswith(f"{path}{problem}")


def test_beir_split_takes_its_questions_in_file_order(tmp_path):
    folder = tmp_path / "beir"
    shutil.copytree(WIKI, folder)
    header, *rows = (folder / "qrels" / "train.tsv").read_text().splitlines()
    write(folder / "qrels" / "train.tsv", "\n".join([header, *reversed(rows)]))
    data = read_beir(folder, "train")
    assert [q.id for q in data.questions] == [q.id for q in read_questions(folder)][:6]
    assert len(data.corpus) == 20
    assert set(data.qrels) == {q.id for q in data.questions}
    everything = read_beir(folder, None)
    assert len(everything.questions) == 10 and everything.qrels == {}


def test_beir_split_that_is_missing_or_names_unknown_ids(tmp_path, caplog):
    assert "no split 'tyid', it has train, tydi; did you mean 'tydi'?" in message(read_beir, WIKI, "tyid")
    folder = tmp_path / "beir"
    shutil.copytree(WIKI, folder)
    with open(folder / "qrels" / "tydi.tsv", "a") as file:
        file.write("nobody\tnq:p0\t1\ntydidev:english--3784698701089424208-2\tnowhere\t1\n")
    data = read_beir(folder, "tydi")
    assert len(data.questions) == 4
    assert data.qrels["tydidev:english--3784698701089424208-2"]["nowhere"] == 1
    assert data.qrels["nobody"] == {"nq:p0": 1}
    assert "1 of 5 judged questions are unknown (the first: 'nobody')" in caplog.text
    assert "1 of 6 judged passages are unknown (the first: 'nowhere')" in caplog.text
    write(folder / "qrels" / "other.tsv", "nobody\tnq:p0\t1\n")
    assert "judges no question" in message(read_beir, folder, "other")


# ---- a little gzip that is very long ---------------------------------------------------------------------------------


def test_a_gzip_stream_of_one_endless_line_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten megabytes of gzip hold ten gigabytes of one letter."""
    monkeypatch.setattr(source, "LONGEST_BYTES", 100_000)
    fine = '{"_id": "1", "text": "' + "a" * 90_000 + '"}\n'
    path = write(tmp_path / "corpus.jsonl.gz", gzip.compress((fine + fine.replace("a", "a" * 200)).encode()))
    with pytest.raises(
        UserError, match=r"corpus\.jsonl\.gz:2: the line is longer than 100000 bytes; is it a text file"
    ):
        read_corpus(path)
    monkeypatch.setattr(text_rows, "_BLOCK_BYTES", 10_000)
    array = '[{"question": "' + "a" * 90_000 + '"}, {"question": "' + "a" * 900_000 + '"}]'
    for name, content in (("q.json.gz", gzip.compress(array.encode())), ("q.json", array.encode())):
        with pytest.raises(
            UserError, match=r":1: broken JSON array \(the element that begins here is longer than 100000"
        ):
            read_questions(write(tmp_path / name, content))
    # The format is told from the beginning.
    monkeypatch.setattr(text_rows, "_HEAD_BYTES", 10)
    assert text_rows.first_line(path) == '{"_id": "1'


def test_a_number_of_thousands_of_digits_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "q.json", b'[{"question": "a"}, {"question": 1' + b"0" * 5000 + b"}]")
    with pytest.raises(UserError, match=r"q\.json:1: broken JSON array \(Exceeds the limit") as caught:
        read_questions(path)
    assert "\n" not in str(caught.value)
