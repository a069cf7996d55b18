"""`files:PATH[columns and lengths]`: documents as people have them, a folder of texts or a table, as a corpus."""

import codecs
import contextlib
import datetime
import decimal
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from jaxretr.data.collection import CORPUS, PASSAGE_FIELDS, Collection, Row, Table, shortened
from jaxretr.data.csv_tables import CARRIAGE_RETURNS, csv_rows, tsv_rows
from jaxretr.data.named import hub
from jaxretr.data.text_rows import RowError, check_utf8, json_rows
from jaxretr.runtime.errors import UsageError, UserError, did_you_mean, import_extra
from jaxretr.runtime.storage.files import DOCUMENTS

PREFIX = "files:"

_JSON = (".jsonl", ".ndjson", ".json")
_TABLES = (".csv", ".tsv", ".parquet", *_JSON)

# Names of columns where none is given, the likeliest first.
_COLUMNS = {
    "id": ("_id", "id", "docid", "doc_id", "pid", "passage_id"),
    "title": ("title", "headline", "name"),
    "text": ("text", "contents", "content", "body", "passage", "abstract"),
}
_NUMBERS = ("words", "overlap")

# A version that changes when the same files give other rows.
_VERSION = 5

# Elements that stand on lines of their own as well, besides those that inscriptis knows.
_BLOCKS = "caption center dd details dialog dir dl dt fieldset form hr legend menu noscript optgroup option section summary textarea"


class Form(NamedTuple):
    """The settings in the brackets of a name.

    Attributes:
      columns: columns of a table, by "id", "title" and "text".
      words: most words of a passage, into which longer documents are cut; 0: they stay whole.
      overlap: sentences that a passage repeats of the one before.
    """

    columns: Mapping[str, str]
    words: int = 0
    overlap: int = 0

    @classmethod
    def of(cls, name: str, brackets: str | None) -> "Form":
        """Read `id=NAME,title=NAME,text=NAME,words=N,overlap=N`, each of which may be left out.

        Raises:
          UsageError: anything else.
        """
        given: dict[str, str] = {}
        for part in brackets.split(",") if brackets else ():
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not value or key not in (*_COLUMNS, *_NUMBERS):
                hint = did_you_mean(key, (*_COLUMNS, *_NUMBERS)) or "; write id=, title=, text=, words= or overlap="
                raise UsageError(f"{name}: '{part}' is no setting{hint}")
            given[key] = value
        numbers = {key: given.pop(key) for key in _NUMBERS if key in given}
        for key, value in numbers.items():
            least = int(key == "words")
            if not value.isdecimal() or int(value) < least:
                raise UsageError(f"{name}: {key}={value}: must be a whole number, at least {least}")
        if "overlap" in numbers and "words" not in numbers:
            raise UsageError(f"{name}: overlap= is for documents that are cut; write words= as well")
        return cls(given, **{key: int(value) for key, value in numbers.items()})


def is_cut(name: str) -> bool:
    """Whether a name stands for documents that are cut: each passage's field "document" names its own."""
    return name.startswith(PREFIX) and "words=" in name.rpartition("[")[2]


def open_collection(body: str, brackets: str | None) -> Collection:
    """Return the corpus of a folder of texts or of a table.

    Args:
      body: a folder with .txt, .md or .html files, below it at any depth, or a .csv, .tsv, .parquet, .jsonl or .json file.
      brackets: see `Form.of`.

    Raises:
      UserError: there is nothing that can be read.
      UsageError: brackets that mean nothing.
    """
    name, place = f"{PREFIX}{body}", Path(body).expanduser()
    form = Form.of(name, brackets)
    if place.is_dir():
        if form.columns:
            raise UsageError(
                f"{name}: is a folder of texts, which have no columns; leave {next(iter(form.columns))}= out"
            )
        files = _texts_below(place)
        if not files:
            raise UserError(f"{name}: no {', '.join(DOCUMENTS)} file in it; give a folder of texts, or a table")
        documents = partial(_of_folder, place, files)
    elif place.is_file():
        files, suffix = [place], Path(place.name.lower().removesuffix(".gz")).suffix
        if suffix not in _TABLES and place.suffix.lower() not in DOCUMENTS:
            raise UserError(f"{name}: not a {', '.join(_TABLES)} file; convert it, or give a folder of texts")
        documents = partial(_of_folder, place.parent, files)
        if suffix in _TABLES:
            documents = partial(_of_table, name, place, suffix, form.columns)
    else:
        raise UserError(f"{name}: no such file or folder; check the path")
    table = Table(partial(_passages, name, documents, form), partial(_facts, files))
    return Collection(name, {CORPUS: table}, CORPUS)


def _facts(files: Sequence[Path]) -> list[Any]:
    facts = [(file, file.stat()) for file in files]
    return [_VERSION, *([str(file.absolute()), status.st_size, status.st_mtime_ns] for file, status in facts)]


def _passages(name: str, documents: Callable[[], Iterator[Row]], form: Form) -> Iterator[Row]:
    """Yield the documents, or the passages that they are cut into, which name their document."""
    from jaxretr.data.sentences import cut  # It imports sentencex, which whole documents do without.

    for row in documents():
        # What is no text, or has no id, is the reader's to report.
        if not form.words or not isinstance(row["text"], str) or not isinstance(row["_id"], str | int):
            yield row
            continue
        if "document" in row:
            raise UserError(f"{name}: has a column 'document', which cut passages name theirs in; rename it")
        for number, part in enumerate(cut(row["text"], form.words, form.overlap), start=1):
            yield {**row, "_id": f"{row['_id']}#{number}", "text": part, "document": row["_id"]}


# ---- folders of texts ------------------------------------------------------------------------------------------------


def _texts_below(folder: Path) -> list[Path]:
    """The text files of a folder in the order of their paths, without hidden ones."""
    below = (
        path.relative_to(folder) for path in folder.rglob("*") if path.suffix.lower() in DOCUMENTS and path.is_file()
    )
    return [folder / path for path in sorted(below) if not any(part.startswith(".") for part in path.parts)]


def _of_folder(folder: Path, files: Sequence[Path]) -> Iterator[Row]:
    for file in files:
        title, text = _html(file) if file.suffix.lower() in (".html", ".htm") else _plain(file)
        try:
            str(file).encode()
        except UnicodeEncodeError:
            raise UserError(f"{str(file)!r}: its name is not UTF-8, as ids are; rename it") from None
        # Ids are columns of runs, which white space separates.
        id = "%20".join(file.relative_to(folder).as_posix().split())
        yield {"_id": id, "title": title or file.stem, "text": text}


def _plain(file: Path) -> tuple[str, str]:
    """Title, if it has one, and text of a .txt or .md file."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 at byte {error.start}; {_conversion(error, file)}") from error
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); check its rights") from error
    title = ""
    if file.suffix.lower() != ".txt":
        lines = text.splitlines()
        rules = [number for number, line in enumerate(lines) if line.rstrip() == "---"]
        if len(rules) > 1 and not rules[0] and lines[1].strip():  # front matter; before a blank line, "---" is a rule
            end = rules[1]
            title = _stated_title(lines[1:end])
            lines = lines[end + 1 :]
        first = next((number for number, line in enumerate(lines) if line.strip()), None)
        if first is not None and lines[first].startswith("# "):
            title = title or re.sub(r"(^|\s)#+$", "", lines[first][2:].strip())  # "# Heading #"
            lines = lines[first + 1 :]
        text = "\n".join(lines)
    return title, text.strip()


def _stated_title(front_matter: Sequence[str]) -> str:
    """The title in front matter; that of a line which is no YAML, such as `title: Sharks: a guide`, as it stands there."""
    import yaml  # Most corpora have no front matter.

    try:
        stated = yaml.load("\n".join(front_matter), yaml.BaseLoader)  # Of texts alone: 2020 and yes are titles as well.
        title = stated.get("title") if isinstance(stated, dict) else None
    except yaml.YAMLError:
        title = next((line[len("title:") :].strip(" \"'") for line in front_matter if line.startswith("title:")), None)
    return " ".join(title.split()) if isinstance(title, str) else ""


def _html(file: Path) -> tuple[str, str]:
    inscriptis, lxml = import_extra("inscriptis", "data"), import_extra("lxml.html", "data")
    settings, css = import_extra("inscriptis.model.config", "data"), import_extra("inscriptis.css_profiles", "data")
    element, display = css.HtmlElement, css.Display
    try:
        page = file.read_bytes()
        # lxml takes a page that declares no encoding for Latin 1; few are. Unless it is asked for huge trees, it leaves out
        # what stands in more than 255 elements, such as font, which pages open and never close.
        tree = lxml.document_fromstring(
            page, parser=lxml.HTMLParser(encoding="utf-8" if _is_utf8(page) else None, huge_tree=True)
        )
        # Pictures have titles, too.
        named = (
            "".join(found.itertext()).split()
            for found in (*tree.xpath("//title[not(ancestor::svg)]"), *tree.iter("h1"))
        )
        title = " ".join(next(filter(None, named), []))
        # The text behind an instruction (<?xml:namespace ... />) would be left out with it.
        lxml.etree.strip_elements(tree, lxml.etree.ProcessingInstruction, with_tail=False)
        shown = {**css.CSS_PROFILES["strict"], **dict.fromkeys(_BLOCKS.split(), element(display=display.block))}
        shown["template"] = element(display=display.none)
        text = inscriptis.Inscriptis(tree, settings.ParserConfig(shown)).get_text()
    except lxml.etree.ParserError:  # nothing in it
        return "", ""
    except Exception as error:  # lxml's other kinds, and elements nested so deeply that Python gives up
        raise UserError(f"{file}: cannot be read as HTML ({shortened(error)}); remove it, or save it again") from error
    return title, "\n".join(line.strip() for line in text.strip().splitlines())


def _conversion(error: UnicodeDecodeError, file: Path) -> str:
    """The remedy for a text that is not UTF-8; Windows' programs write UTF-16 with a mark."""
    encoding = "UTF-16" if error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "LATIN1"
    return f"convert it: iconv -f {encoding} -t UTF-8 {file.name}"


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


# ---- tables ----------------------------------------------------------------------------------------------------------


def _of_table(name: str, file: Path, suffix: str, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield {"_id", "title", "text", and the other columns} of a table's rows, numbered from 1 where it has no ids."""
    known: tuple[str, ...] | None = None
    chosen: dict[str, str] = {}
    further: list[str] = []
    for number, row in enumerate(_rows_of(name, file, suffix), start=1):
        if known != (there := tuple(row)):  # objects of JSON have keys of their own
            chosen, known = _chosen(f"{name}:{number}", there, columns, first=known is None), there
            # Without those that readers of a corpus would take for another id, title or text.
            further = [column for column in there if column not in PASSAGE_FIELDS | {"", *chosen.values()}]
        id = row.get(chosen["id"]) if "id" in chosen else str(number)
        # A column may be called "", as pandas calls its row numbers.
        title = row.get(chosen["title"]) if "title" in chosen else None
        others = {column: value for column in further if (value := _field(row[column], suffix)) not in (None, "")}
        yield {**others, "_id": id, "title": title, "text": row.get(chosen["text"])}


def _field(value: Any, suffix: str) -> Any:
    """A value of a further column, which filters may use; None for what they cannot.

    A text of .csv and .tsv that is a number as it prints becomes that number, and a date its text in ISO 8601.
    """
    if suffix in _JSON:
        return value
    if suffix in (".csv", ".tsv"):
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                if str(kind(value)) == value and math.isfinite(kind(value)):
                    return kind(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, float | decimal.Decimal):
        return float(value) if math.isfinite(value) else None
    return value if isinstance(value, str | int) else None


def _chosen(where: str, there: Sequence[str], columns: Mapping[str, str], *, first: bool) -> dict[str, str]:
    """The columns to read, by "id", "title" and "text": those that are given, or else the first known one of these."""
    lower = {column.strip().lower(): column for column in there}
    chosen = {key: lower[known] for key, names in _COLUMNS.items() for known in reversed(names) if known in lower}
    for key, column in columns.items():
        if first and column not in there:
            hint = did_you_mean(column, there) or f"; it has {', '.join(there)}"
            raise UserError(f"{where}: no column '{column}'{hint}")
        chosen[key] = column
    if "text" not in chosen:
        apart = len(there) == 1 and any(map(there[0].__contains__, ";\t|"))
        remedy = "separate its columns with commas" if apart else "write [text=COLUMN]"
        raise UserError(f"{where}: none of its columns, {', '.join(there)}, is known as the text; {remedy}")
    return chosen


def _rows_of(name: str, file: Path, suffix: str) -> Iterator[Row]:
    if suffix == ".parquet":
        yield from hub.local_rows(name, file)
        return
    if suffix in _JSON:
        table: Iterator[tuple[int, Any]] = json_rows(file)
    else:
        table = tsv_rows(file) if suffix == ".tsv" else csv_rows(file)
    header: list[str] | None = None
    for number, row in table:
        try:
            if isinstance(row, RowError):
                raise row
            if isinstance(row, list):
                check_utf8("".join(row))
                if header is None:
                    header = row
                    if "\r" in "".join(row):
                        raise RowError(CARRIAGE_RETURNS)
                    if twice := next((column for column in row if column.strip() and row.count(column) > 1), ""):
                        raise RowError(f"column '{twice}' is there twice; rename one")
                    continue
                if len(row) != len(header):
                    raise RowError(f"{len(row)} columns, the header has {len(header)}; check separators and quotes")
                row = dict(zip(header, row, strict=True))
        except RowError as error:
            raise UserError(f"{file}:{number}: {error}") from None
        yield row
