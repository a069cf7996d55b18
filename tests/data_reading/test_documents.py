"""`files:PATH`: folders of texts and tables with any columns, as a corpus for every command."""

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxretr.cli import main
from jaxretr.data.corpus import Passage, read_corpus
from jaxretr.data.sentences import cut
from jaxretr.data.source import source_of
from jaxretr.indexes import passage_fields
from jaxretr.runtime.errors import UserError

FILES = {
    "a.md": '---\ntitle: "Rivers"\ntags: x\n--- \n\nThe Elbe is long. It has bridges.\n',
    "sub/b c.markdown": "\n# Lakes of C# ##\n\nA lake. Another.\n",
    "sub/page.HTML": "<title>Seas &amp; more</title><script>no()</script><p>Salt <b>water</b>.</p><ul><li>one<li>two</ul>",
    "sub/plain.txt": "\ufeffNo title here.",
    "sub/.hidden/x.txt": "not read",
    "sub/ü.htm": "<title> </title><svg><title>icon</title></svg><h1>Sé<i>a</i></h1><p>Füße",
    "sub/zero.html": "<!-- nothing -->",
    "picture.png": "not read",
}
READ = [
    Passage("a.md", "Rivers", "The Elbe is long. It has bridges."),
    Passage("sub/b%20c.markdown", "Lakes of C#", "A lake. Another."),
    Passage("sub/page.HTML", "Seas & more", "Salt water.\n\n* one\n* two"),
    Passage("sub/plain.txt", "plain", "No title here."),
    Passage("sub/zero.html", "zero", ""),
    Passage("sub/ü.htm", "Séa", "Séa\n\nFüße"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "texts"


def written(tmp_path: Path, name: str, content: str | bytes) -> str:
    content = content.encode() if isinstance(content, str) else content
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return f"files:{tmp_path}/{name}"


def test_a_folder_of_texts_is_a_corpus(folder: Path) -> None:
    assert list(read_corpus(f"files:{folder}")) == READ
    assert list(read_corpus(f"files:{folder / 'a.md'}")) == READ[:1]


@pytest.mark.parametrize(
    ("stated", "title"),
    [
        ("title: Rock 'n' \"roll\"", "Rock 'n' \"roll\""),
        ("title:   C# and F # notes", "C# and F"),
        ("title: 'It''s # 1'  # a comment", "It's # 1"),
        (r'title: "Say \"hi\" \u00fc"', 'Say "hi" ü'),
        ("title: >-\n  Folded\n  over lines", "Folded over lines"),
        ("title: |\n  A block", "A block"),
        ("title:\n  On the next line", "On the next line"),
        ('title: "Quoted and\n  folded"', "Quoted and folded"),
        ("title: Sharks: a guide", "Sharks: a guide"),
        ("title: yes", "yes"),
        ("subtitle: no", "heading"),
    ],
)
def test_a_title_in_front_matter_is_read_as_yaml(stated: str, title: str, tmp_path: Path) -> None:
    name = written(tmp_path, "t.md", f"---\ndate: 2020\n{stated}\ntags: [a]\n---\n# heading\nText.\n")
    assert list(read_corpus(name)) == [Passage("t.md", title, "Text.")]


def test_rules_of_a_markdown_file_are_no_front_matter(tmp_path: Path) -> None:
    name = written(tmp_path, "r.md", "---\n\nFirst.\n\n---\n\nSecond.\n")
    assert next(iter(read_corpus(name))).text == "---\n\nFirst.\n\n---\n\nSecond."


def test_a_folder_whose_name_contains_a_number_sign(tmp_path: Path) -> None:
    (tmp_path / "C#").mkdir()
    name = written(tmp_path, "C#/a#b.txt", "One. Two.")
    assert (
        list(read_corpus(f"files:{tmp_path}/C#")) == list(read_corpus(name)) == [Passage("a#b.txt", "a#b", "One. Two.")]
    )
    assert [passage.id for passage in read_corpus(f"{name}[words=1]#corpus")] == ["a#b.txt#1", "a#b.txt#2"]


def test_an_absolute_name_is_read_from_everywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    found = [source_of(name).absolute() for name in ("files:texts", "files:texts/a.md[words=5]#corpus")]
    monkeypatch.chdir("/")
    assert list(read_corpus(found[0])) == READ
    assert [passage.id for passage in read_corpus(found[1])] == ["a.md#1", "a.md#2"]
    assert found[1].absolute() == found[1]


def test_a_name_that_no_id_can_be(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")).write_text("x")
    with pytest.raises(UserError, match="its name is not UTF-8"):
        read_corpus(f"files:{tmp_path}")


def test_a_page_in_the_encoding_that_it_declares(tmp_path: Path) -> None:
    name = written(tmp_path, "p.html", '<meta charset="iso-8859-1"><title>Füße</title><p>é'.encode("latin-1"))
    assert list(read_corpus(name)) == [Passage("p.html", "Füße", "é")]


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<dl><dt>Hive<dd>Home<dt>Comb<dd>Cells</dl>after", "Hive\nHome\nComb\nCells\nafter"),
        ("bees<noscript>no scripts</noscript><template>never shown</template>after", "bees\nno scripts\nafter"),
        (
            "<section>One</section><section>Two</section><details><summary>More</summary>Inside",
            "One\nTwo\nMore\nInside",
        ),
        ("<p>a<?xml:namespace prefix = o /> b</p>", "a b"),
        ("<p>start</p>" + "<font>" * 300 + "inside<p>end</p>", "start\n\ninside\n\nend"),
    ],
    ids=["definitions", "not shown", "sections", "instruction", "deep"],
)
def test_no_words_of_a_page_are_lost_or_joined(tmp_path: Path, page: str, text: str) -> None:
    assert next(iter(read_corpus(written(tmp_path, "p.html", page)))).text == text


def test_a_folder_with_other_contents_counts_as_changed(folder: Path) -> None:
    before = source_of(f"files:{folder}").facts()
    (folder / "sub/plain.txt").write_text("Changed.")
    assert source_of(f"files:{folder}").facts() != before


@pytest.mark.parametrize(
    ("name", "content", "brackets"),
    [
        ("t.csv", 'doc_id,headline,body\n1,"A, B","x ""y""\nz"\n2,,w\n', ""),
        ("t.tsv", 'k\tt\tb\n1\tA, B\t"x ""y""\nz"\n2\t\tw\n', "[id=k,title=t,text=b]"),
        ("t.csv.gz", '\ufeffb,_id,title\n"x ""y""\r\nz",1,"A, B"\r\nw,2,\r\n', "[text=b]"),
        ("t.json", '[{"n": 1, "name": "A, B", "b": "x \\"y\\"\\nz"},\n {"n": 2, "b": "w"}]', "[id=n, text=b]"),
        ("t.jsonl", '{"n": 1, "name": "A, B", "b": "x \\"y\\"\\nz"}\n\n{"n": 2, "b": "w"}\n', "[id=n, text=b]"),
    ],
)
def test_columns_are_known_or_named(tmp_path: Path, name: str, content: str, brackets: str) -> None:
    found = list(read_corpus(written(tmp_path, name, content) + brackets))
    text = 'x "y"\r\nz' if name == "t.csv.gz" else 'x "y"\nz'
    assert found == [Passage("1", "A, B", text), Passage("2", "", "w")]


def test_a_quote_that_is_text_stays_in_a_tsv(tmp_path: Path) -> None:
    name = written(tmp_path, "t.tsv", 'id\ttext\n1\t"So" he said\n2\tb\n')
    assert list(read_corpus(name)) == [Passage("1", "", '"So" he said'), Passage("2", "", "b")]


def test_the_row_numbers_that_pandas_writes_are_no_titles(tmp_path: Path) -> None:
    assert list(read_corpus(written(tmp_path, "t.csv", ",text\n0,a\n"))) == [Passage("1", "", "a")]


def test_further_columns_are_fields(tmp_path: Path) -> None:
    """Numbers of a .csv as numbers, where they print so; none that a reader would take for the text or the id."""
    csv = "id,text,contents,year,zip,price,name,empty\n1,a,other,1999,01234,2.5,n,\n"
    (found,) = passage_fields.rows(written(tmp_path, "t.csv", csv) + "[title=name]")
    assert found[2] == {"_id": "1", "title": "n", "text": "a", "year": 1999, "zip": "01234", "price": 2.5}
    line = '{"id": 1, "text": "a", "docid": "b", "lang": "de", "metadata": {"year": 3, "id": 7, "body": "c"}}\n'
    (found,) = passage_fields.rows(written(tmp_path, "t.jsonl", line))
    assert passage_fields.metadata_of(found[2], set()) == {"lang": "de", "year": 3, "id": 7, "body": "c"}


def test_parquet_and_rows_without_ids(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pip install 'jaxretr[data]'")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'jaxretr[data]'")
    parquet.write_table(arrow.table({"headline": ["A", None], "content": ["x", "y"]}), tmp_path / "t.parquet")
    assert list(read_corpus(f"files:{tmp_path}/t.parquet")) == [Passage("1", "A", "x"), Passage("2", "", "y")]


def test_long_documents_are_cut_and_keep_their_source(folder: Path) -> None:
    found = list(read_corpus(f"files:{folder}[words=4]"))
    assert found[:2] == [
        Passage("a.md#1", "Rivers", "The Elbe is long."),
        Passage("a.md#2", "Rivers", "It has bridges."),
    ]
    assert {passage.id.rpartition("#")[0] for passage in found} == {passage.id for passage in READ}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "t.csv",
            "id,txt\n1,a\n",
            r"t.csv:1: none of its columns, id, txt, is known as the text; write \[text=COLUMN\]",
        ),
        ("t.csv", "id;text\n1;a\n", "t.csv:1: .* id;text, is known as the text; separate its columns with commas"),
        ("t.csv[text=tx]", "id,txt\n1,a\n", "t.csv:1: no column 'tx'; did you mean 'txt'"),
        ("t.csv", "id,text\n1,a\n2\n", "t.csv:3: 1 columns, the header has 2; check"),
        ("t.csv", "id,text\r1,a\r", r"t.csv:1: has carriage returns outside of quotes; .* tr '\\r' '\\n'"),
        ("t.tsv", "id\ttext\r1\ta\r", r"t.tsv:1: has carriage returns outside of quotes; .* tr '\\r' '\\n'"),
        ("t.csv", 'id,text\n1,"a" b\n', "t.csv:2: broken csv .*; close the quotes"),
        ("t.csv", "id,text,text\n1,a,b\n", "t.csv:1: column 'text' is there twice; rename one"),
        ("t.csv", 'id,text\n1,"a\nb"\n1,c\n', r"t.csv:2: duplicate id '1' \(first on row 1\); give"),
        ("t.tsv", "id\ttext\n1\ta\n".encode("utf-16"), "t.tsv:1: not valid UTF-8 .*; convert the file"),
        ("t.csv", b"id,text\n1,a\n2,caf\xe9\n", "t.csv:3: not valid UTF-8 .*; convert the file"),
        ("t.csv.gz", b"", "t.csv.gz: no passages"),
        ("t.jsonl", '{"id": 1, "text": "a"}\n[2]\n', "t.jsonl:2: a list instead of a JSON object; write one"),
        ("t.jsonl[words=9]", '{"id": null, "text": "a"}\n', 'field "_id" is null'),
        ("t.txt", b"caf\xe9", "t.txt: not UTF-8 at byte 3; convert it: iconv -f LATIN1"),
        ("t.md", "a".encode("utf-16"), "t.md: not UTF-8 at byte 0; convert it: iconv -f UTF-16"),
        ("t.html", "<div>" * 5000 + "x", "t.html: cannot be read as HTML .*; remove it"),
        ("t.txt.gz", "x", "not a .csv, .* file; convert it"),
        ("t.doc", "x", r"not a .csv, .* file; convert it"),
        ("t.csv[word=3]", "", "'word=3' is no setting; did you mean 'words'"),
        ("t.csv[words=0]", "", "words=0: must be a whole number, at least 1"),
        ("t.csv[overlap=1]", "", "write words= as well"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    file, bracket, rest = name.partition("[")
    with pytest.raises(UserError, match=message):
        read_corpus(written(tmp_path, file, content) + bracket + rest)


def test_a_folder_without_texts_and_one_that_is_given_as_it_is(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no \.txt, .* file in it"):
        read_corpus(f"files:{tmp_path}/empty")
    with pytest.raises(UserError, match="is a folder of texts, which have no columns"):
        read_corpus(f"files:{folder}[text=body]")
    (folder / "t.csv").write_text("id,document,text\na,b,One two.\n")
    with pytest.raises(UserError, match="has a column 'document', which cut passages name theirs in; rename it"):
        read_corpus(f"files:{folder / 't.csv'}[words=5]")
    with pytest.raises(UserError, match=f"or files:{folder} for a folder of texts"):
        read_corpus(folder)


def test_a_command_searches_a_folder(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queries, run = tmp_path / "q.txt", tmp_path / "run.trec"
    queries.write_text("bridges on the Elbe\n")
    command = ["bm25", "--corpus", f"files:{folder}[words=4]", "--queries", str(queries), "--out", str(run)]
    assert main(command) == 0
    found = [line.split() for line in run.read_text().splitlines()]
    assert [hit[2] for hit in found[:2]] == ["a.md#1", "a.md#2"]
    assert main([*command, "--documents"]) == 0
    of_documents = [line.split() for line in run.read_text().splitlines()]
    assert of_documents[0][2:5] == ["a.md", "1", found[0][4]], "by its best passage"
    assert [hit[2] for hit in of_documents].count("a.md") == 1
    assert main([*command, "--documents", "--format", "jsonl"]) == 2
    assert "--format jsonl shows passages: leave --documents out" in capsys.readouterr().err


# ---- cutting ---------------------------------------------------------------------------------------------------------


def test_parts_are_whole_sentences_with_an_overlap() -> None:
    text = "One two. Three four five.\n\nSix. Seven eight nine ten eleven twelve."
    assert cut(text, 5) == ["One two. Three four five.", "Six.", "Seven eight nine ten eleven", "twelve."]
    assert cut(text, 5, 1)[:2] == ["One two. Three four five.", "Three four five.\n\nSix."]
    assert cut(text, 100) == [text] and cut("", 5) == [""]
    assert cut("今日は。明日は雨。", 4) == ["今日は。", "明日は雨", "。"]
    thai = cut("ภาษาไทยเป็นภาษาที่มีระดับเสียงของคำแน่นอน two words", 3)
    assert thai == ["ภาษาไทยเป็นภา", "ษาที่มีระดับเสียง", "ของคำแน่นอน", "two words"]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 6), st.integers(0, 3))
def test_no_word_is_lost_no_part_is_too_long_and_every_part_has_something_new(
    sentences: list[int], words: int, overlap: int
) -> None:
    numbers = iter(range(1000))
    text = " ".join(" ".join(f"W{next(numbers)}" for _ in range(count)) + "." for count in sentences)
    parts = [[int(word.strip("W.")) for word in part.split()] for part in cut(text, words, overlap)]
    assert all(len(part) <= words for part in parts)
    assert {number for part in parts for number in part} == set(range(sum(sentences)))
    lasts = [part[-1] for part in parts]
    assert lasts == sorted(set(lasts)), "something new in each"
    if not overlap:
        assert [number for part in parts for number in part] == list(range(sum(sentences)))
