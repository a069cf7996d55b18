"""Passages: one, a corpus of them in memory, and the readers of the public corpus formats."""

import hashlib
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from jaxretr.data.collection import ID_FIELDS, TEXT_FIELDS, TITLE_FIELDS
from jaxretr.data.csv_tables import tsv_rows
from jaxretr.data.source import Input, NamedSource, Source
from jaxretr.data.text_rows import (
    BadRows,
    RowError,
    check_utf8,
    find_input,
    first_line,
    json_lines,
    missing_field,
    numbered_lines,
    parsed,
    string_field,
)
from jaxretr.runtime.errors import UserError

if TYPE_CHECKING:  # It imports numpy, which would delay the command line's help.
    from jaxretr.data.mapped_texts import MappedTexts

Column: TypeAlias = "list[str] | MappedTexts"

_HEADER_IDS = (*ID_FIELDS, "pid", "passage_id")
_HEADER_TEXTS = (*TEXT_FIELDS, "passage")


@dataclass(frozen=True, slots=True)
class Passage:
    """One row of a corpus; title and text may be empty, the id may not."""

    id: str
    title: str
    text: str


class Corpus:
    """The passages of a corpus as three columns; row numbers are positions in them.

    Attributes:
      ids: the passages' ids, all different.
    """

    def __init__(self, ids: Column, titles: Column, texts: Column, *, fingerprint: str | None = None):
        """
        Args:
          ids, titles, texts: the columns of N passages.
          fingerprint: the result of `fingerprint()`, if known.
        """
        if not len(ids) == len(titles) == len(texts):
            raise ValueError(f"columns of different lengths: {len(ids)} ids, {len(titles)} titles, {len(texts)} texts")
        self.ids = ids
        self.titles = titles
        self.texts = texts
        self._rows: dict[str, int] | None = None
        self._fingerprint = fingerprint

    @classmethod
    def from_passages(cls, passages: Iterable[Passage]) -> "Corpus":
        """Return the corpus of `passages`, in their order.

        Raises:
          UserError: two passages have the same id.
        """
        rows = list(passages)
        corpus = cls([row.id for row in rows], [row.title for row in rows], [row.text for row in rows])
        if len(corpus._row_of_id()) != len(rows):
            seen: set[str] = set()
            twice = next(row.id for row in rows if row.id in seen or seen.add(row.id))
            raise UserError(f"two passages have the id '{twice}'; give every passage an id of its own")
        return corpus

    def followed_by(self, other: "Corpus", where: object) -> "Corpus":
        """Return a corpus of these passages and then the other's.

        Args:
          other: a corpus that was read from another file.
          where: that file, for errors.

        Raises:
          UserError: an id occurs in both.
        """
        if twice := next((id for id in other.ids if id in self), None):
            raise UserError(
                f"{where}: passage '{twice}' is in an earlier corpus as well; give every passage its own id"
            )
        return Corpus([*self.ids, *other.ids], [*self.titles, *other.titles], [*self.texts, *other.texts])

    def first(self, count: int) -> "Corpus":
        """Return the first passages."""
        return Corpus(self.ids[:count], self.titles[:count], self.texts[:count])

    def __repr__(self) -> str:
        return f"Corpus({len(self)} passages)"

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> Passage:
        return Passage(self.ids[i], self.titles[i], self.texts[i])

    def __iter__(self) -> Iterator[Passage]:
        return map(Passage, self.ids, self.titles, self.texts)

    def __contains__(self, id: object) -> bool:
        return id in self._row_of_id()

    def row(self, id: str) -> int:
        """Return the row of the passage with this id; KeyError if there is none."""
        return self._row_of_id()[id]

    def fingerprint(self) -> str:
        """Return a sha256 (hexadecimal) over all ids, titles and texts in their order."""
        if self._fingerprint is None:
            self._fingerprint = content_fingerprint(self.ids, self.titles, self.texts)
        return self._fingerprint

    def _row_of_id(self) -> dict[str, int]:
        if self._rows is None:
            self._rows = {id: row for row, id in enumerate(self.ids)}
        return self._rows


def content_fingerprint(*columns: Sequence[str]) -> str:
    """Return a sha256 (hexadecimal) over columns of strings, all of one length.

    Every string is preceded by its length in bytes, so that no two contents hash the same bytes.
    """
    return rows_fingerprint(zip(*columns, strict=True), len(columns[0]), len(columns))


def rows_fingerprint(rows: Iterable[Sequence[str]], count: int, columns: int = 3) -> str:
    """Compute `content_fingerprint` of rows that are read one by one: `count` rows of `columns` strings each."""
    digest = hashlib.sha256(struct.pack("<QQ", columns, count))
    lengths = struct.Struct(f"<{columns}Q")
    for row in rows:
        fields = [field.encode() for field in row]
        digest.update(lengths.pack(*map(len, fields)) + b"".join(fields))
    return digest.hexdigest()


def iter_passages(path: Input, *, skip_bad: bool = False) -> Iterator[tuple[int, Passage]]:
    """Yield (line number, passage) from a corpus file or a BEIR folder, without checking for duplicate ids.

    Formats, each also gzipped: JSON lines (id under "_id", "id" or "docid"; "text" or "contents"; "title" may be
    missing or null), DPR's tab-separated `id text title` with a header in any order and csv quoting, and MS MARCO's
    `pid<TAB>text` without header or quoting. The suffix and the first line determine the format.

    Args:
      path: a file, or a folder with corpus.jsonl or corpus.jsonl.gz.
      skip_bad: whether to skip bad rows, with one warning that counts them, instead of stopping.

    Raises:
      UserError: a bad row (as `path:line: what; remedy`), or a file that cannot be read.
    """
    bad = BadRows(find_input(path, "corpus.jsonl"), skip_bad)
    kept = 0
    for numbered in bad.good(passage_rows(bad.path)):
        kept += 1
        yield numbered
    bad.report(kept)


def read_corpus(path: Input, *, skip_bad: bool = False, trec_ids: bool = False) -> Corpus:
    """Read a whole corpus; for the formats see `iter_passages`.

    Args:
      path: a file, or a folder with corpus.jsonl or corpus.jsonl.gz.
      skip_bad: whether bad rows and repeated ids are skipped, with one warning that counts them.
      trec_ids: whether ids that a TREC run cannot represent are bad rows.

    Raises:
      UserError: a bad row or a repeated id (as `path:line: what; remedy`), no passages, or no such file.
    """
    bad = BadRows(find_input(path, "corpus.jsonl"), skip_bad)
    ids: list[str] = []
    titles: list[str] = []
    texts: list[str] = []
    lines = array("q")
    seen: set[str] = set()
    for line, passage in bad.good(passage_rows(bad.path)):
        if passage.id in seen:
            first = lines[ids.index(passage.id)]
            bad.add(
                line, f"duplicate id '{passage.id}' (first on {bad.unit} {first}); give every passage an id of its own"
            )
            continue
        if trec_ids and not bad.takes_trec_id(line, passage.id):
            continue
        seen.add(passage.id)
        ids.append(passage.id)
        titles.append(passage.title)
        texts.append(passage.text)
        lines.append(line)
    bad.finish(len(ids), "passages", "give a corpus with at least one row")
    return Corpus(ids, titles, texts)


def passage_rows(path: Source) -> Iterator[tuple[int, Passage | RowError]]:
    """Return (line number, passage or the row's fault) for the rows of a file; see `iter_passages`."""
    if isinstance(path, NamedSource):
        return parsed(path.rows(), _passage_of_row)
    head = first_line(path)
    suffix = path.suffix
    if not head:
        return iter(())
    if head.lstrip().startswith("[") and suffix != ".tsv":
        raise UserError(
            f"{path}:1: a JSON array instead of a corpus; write one JSON object per line, or give it as files:{path}"
        )
    if suffix in (".jsonl", ".ndjson", ".json") or (suffix != ".tsv" and head.lstrip().startswith("{")):
        return parsed(json_lines(path), _passage_of_row)
    if "\t" not in head:
        raise UserError(
            f"{path}:1: not a corpus (neither a JSON object nor tab-separated columns); "
            f"give BEIR jsonl, a tsv with the header id, text, title, or pid<TAB>text; files:{path} reads other tables"
        )
    names = [name.strip().strip('"').lower() for name in head.split("\t")]
    if any(name in names for name in _HEADER_IDS) and any(name in names for name in _HEADER_TEXTS):
        rows = tsv_rows(path, len(names))
        next(rows)  # the header
        return parsed(rows, _dpr_passage(names))
    lines = ((number, line) for number, line in numbered_lines(path) if line.strip(" \r"))
    return parsed(lines, _marco_passage)


def _passage_of_row(row: dict[str, Any], *_: int) -> Passage:
    id = string_field(row, ID_FIELDS, allow_int=True)
    text = string_field(row, TEXT_FIELDS)
    title = string_field(row, TITLE_FIELDS)
    if text is None:
        raise missing_field(row, TEXT_FIELDS)
    if id is None:
        raise missing_field(row, ID_FIELDS)
    return _passage(id, title or "", text)


def _dpr_passage(names: Sequence[str]) -> Callable[[list[str], int, int], Passage]:
    """Return the parser of rows under a header with these names."""
    id_column = next(names.index(name) for name in _HEADER_IDS if name in names)
    text_column = next(names.index(name) for name in _HEADER_TEXTS if name in names)
    title_column = names.index("title") if "title" in names else None

    def parse(fields: list[str], *_: int) -> Passage:
        if len(fields) != len(names):
            raise RowError(f"{len(fields)} columns, the header has {len(names)}; check its tabs and quotes")
        check_utf8("".join(fields))
        title = "" if title_column is None else fields[title_column]
        return _passage(fields[id_column], title, fields[text_column])

    return parse


def _marco_passage(line: str, *_: int) -> Passage:
    check_utf8(line)
    fields = line.split("\t")
    if len(fields) != 2:
        raise RowError(
            f"{len(fields)} columns instead of id<TAB>text; for more columns begin the file with a "
            f"header such as id<TAB>text<TAB>title"
        )
    return _passage(fields[0], "", fields[1])


def _passage(id: str, title: str, text: str) -> Passage:
    if not id.strip():
        raise RowError("the id is empty; give every passage an id")
    return Passage(id, title, text)
