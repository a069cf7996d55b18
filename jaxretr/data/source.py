"""Where data are: in a file, in a folder, or in a data set by name. What a path or name stands for is decided here, once.

`ir_datasets:ID`, `tfds:NAME/CONFIG:VERSION[split]`, `hf:OWNER/NAME/CONFIG[split]` and `files:PATH[columns]` are names: a
collection with corpus, queries and judgements stands for a BEIR folder, a single table for a file of JSON lines.
NAME#PART is one part of a collection: #corpus, #queries, #qrels/test, #examples.
"""

import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from jaxretr.data.collection import CORPUS, QRELS, QUERIES, Collection, Row, Table
from jaxretr.runtime.errors import UsageError, UserError, did_you_mean, path_text
from jaxretr.runtime.storage.files import sha256

OPENERS: dict[str, Callable[[str, str | None], Collection]] = {}
"""By the scheme of a name, functions of its body and of what stands in its brackets; the package adds its own."""

# files: has no parts, and a path may contain a #.
_FORM = re.compile(
    r"(?P<scheme>\w+):(?P<body>(?<=^files:)[^\[\]]+|[^\[\]#]+)(?:\[(?P<split>.+)\])?(?:#(?P<part>[^\[\]]+))?"
)
_FORMS = "ir_datasets:ID, tfds:NAME/CONFIG:VERSION[SPLIT], hf:OWNER/NAME/CONFIG[SPLIT] or files:PATH[text=COLUMN]"

# The part of a collection that stands for a file of a BEIR folder.
_PART_OF_FILE = {"corpus.jsonl": CORPUS, "queries.jsonl": QUERIES}

LONGEST_BYTES = 1 << 30
"""Most bytes of a line of a gzip stream, and of an element of a JSON array: 10 MB of gzip may expand to 10 GB."""


@dataclass(frozen=True)
class FileSource:
    """A file or folder.

    Attributes:
      path: its path, with `~` replaced.
      role: None: its rows have to be looked at to know what they are.
    """

    path: Path
    role = None

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.name

    @property
    def suffix(self) -> str:
        """The lower-case suffix of its name without a final .gz: ".jsonl" for "corpus.jsonl.gz"."""
        return Path(self.path.name.lower().removesuffix(".gz")).suffix

    @property
    def size(self) -> int:
        """Its bytes on disk."""
        return self.path.stat().st_size

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self.path.is_dir()

    def is_file(self) -> bool:
        """Whether it is a file that can be read more than once."""
        return self.path.is_file()

    def exists(self) -> bool:
        """Whether there is such a file or folder."""
        return self.path.exists()

    def is_beir(self) -> bool:
        """Whether it is a folder with a corpus or judgements."""
        files = ("corpus.jsonl", "corpus.jsonl.gz")
        return (self.path / "qrels").is_dir() or any((self.path / name).is_file() for name in files)

    def absolute(self) -> "FileSource":
        """Return the source that does not depend on the working directory."""
        return FileSource(self.path.absolute())

    def file(self, stem: str = "") -> "FileSource":
        """Return the file to read: itself, or `<stem>` or `<stem>.gz` inside it if it is a folder.

        Raises:
          UserError: there is no such file; the message names the nearest one.
        """
        path = self.path
        if path.is_dir():
            if not stem:
                raise UserError(f"{path}: is a folder; give a file")
            for name in (stem, f"{stem}.gz"):
                if (path / name).is_file():
                    return FileSource(path / name)
            texts = f", or files:{path} for a folder of texts" if _PART_OF_FILE.get(stem) == CORPUS else ""
            raise UserError(
                f"{path}: the folder contains neither {stem} nor {stem}.gz; give a file or a BEIR folder{texts}"
            )
        if not path.exists():
            siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
            raise UserError(f"{path}: no such file{did_you_mean(path.name, siblings) or '; check the path'}")
        return self

    def sibling(self, part: str) -> None:
        """Return None: a file belongs to no collection."""

    def splits(self) -> list[str]:
        """Return the names of a BEIR folder's judgements, sorted; none if it has no qrels/."""
        files = self.path.glob("qrels/*.tsv*")
        return sorted({file.name.removesuffix(".gz").removesuffix(".tsv") for file in files})

    def judgements(self, split: str) -> "FileSource | None":
        """Return a BEIR folder's judgements of a split; None if it has none."""
        files = (self.path / "qrels" / name for name in (f"{split}.tsv", f"{split}.tsv.gz"))
        return next((FileSource(file) for file in files if file.is_file()), None)

    def pieces(self, size: int | None = None, cut_lines: bool = False) -> Iterator[tuple[int, bytes]]:
        """Yield (number of the line that it begins in, bytes) for every line of a file, gzip or not.

        Args:
          size: yield pieces of this many bytes instead of lines.
          cut_lines: whether a piece ends with its line as well.

        Raises:
          UserError: the file cannot be read, or its gzip stream is damaged (no later row could be trusted).
        """
        number = 1
        try:
            with ExitStack() as stack:
                file = stack.enter_context(open(self.path, "rb"))
                stream: BinaryIO = file
                pieces: Iterable[bytes] = file
                # The content decides, not the name: a renamed download still reads.
                if file.peek(2)[:2] == b"\x1f\x8b":
                    stream = cast(BinaryIO, stack.enter_context(gzip.GzipFile(fileobj=file)))
                    pieces = iter(lambda: stream.readline(LONGEST_BYTES + 1), b"")
                if size is not None:
                    pieces = iter(lambda: (stream.readline if cut_lines else stream.read)(size), b"")
                for raw in pieces:
                    if size is None and len(raw) > LONGEST_BYTES:
                        raise UserError(
                            f"{self}:{number}: the line is longer than {LONGEST_BYTES} bytes; is it a text file?"
                        )
                    yield number, raw
                    number += raw.count(b"\n")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(
                f"{self}:{number}: the gzip stream is cut short or damaged ({error}); fetch the file again"
            ) from error
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"{self}: cannot be read ({reason}); check the path and its rights") from error

    def facts(self) -> list[Any]:
        """Return JSON values that change when the file does: its path, size and modification time.

        Raises:
          UserError: it cannot be read.
        """
        try:
            facts = os.stat(self.path)
        except OSError as error:
            raise UserError(f"{self}: cannot be read ({error.strerror}); give a file") from error
        return [str(self.path.absolute()), facts.st_size, facts.st_mtime_ns]

    def digest(self) -> str:
        """Return the sha256 (hexadecimal) of the file's bytes."""
        return sha256(self.path)

    def verify(self) -> None:
        """Do nothing: a file has no checksum."""


@dataclass(frozen=True)
class NamedSource:
    """A named data set, or one part of it; the methods of `FileSource` that it shares do the same for it.

    Attributes:
      text: the name as the user gave it.
    """

    text: str
    suffix = ".jsonl"  # as its rows are
    size = 0  # not known

    def __str__(self) -> str:
        return self.text

    @property
    def name(self) -> str:
        """The last part of the name."""
        return self.text.rpartition("/")[2]

    @property
    def scheme(self) -> str:
        """ "ir_datasets", "tfds", "hf" or "files"."""
        return self._match()["scheme"]

    @property
    def body(self) -> str:
        """The data set's name in its source, without split and part."""
        return self._match()["body"]

    @property
    def part(self) -> str | None:
        """The part that the name states behind #; None if it states none."""
        return self._match()["part"]

    @property
    def role(self) -> str | None:
        """ "corpus", "queries" or "qrels" if the name says so; None: the rows have to be looked at."""
        part = self.part or self.collection().main or ""
        role = part.split("/")[0]
        return role if role in (CORPUS, QUERIES, QRELS) else None

    def collection(self) -> Collection:
        """Open its collection, without reading rows.

        Raises:
          UserError: there is none; a package or the network is missing.
        """
        match = self._match()
        return OPENERS[match["scheme"]](match["body"], match["split"])

    def table(self) -> Table:
        """Return the table that the name stands for.

        Raises:
          UserError: it is a collection of several, or has no such part.
        """
        return self.collection().table(self.part)

    def rows(self) -> Iterator[tuple[int, Row]]:
        """Return (row number from 1, row) for every row of its table."""
        return enumerate(self.table().rows(), start=1)

    def is_dir(self) -> bool:
        """Whether the name stands for a BEIR folder."""
        return self.part is None and self.collection().is_folder

    def is_file(self) -> bool:
        return not self.is_dir()

    def exists(self) -> bool:
        """Whether its source knows the name."""
        try:
            self.collection()
        except UserError:
            return False
        return True

    def is_beir(self) -> bool:
        return self.is_dir()

    def absolute(self) -> "NamedSource":
        """Return the source that does not depend on the working directory."""
        if self.scheme != "files":
            return self
        begin, end = self._match().span("body")
        return NamedSource(f"{self.text[:begin]}{Path(self.body).expanduser().absolute()}{self.text[end:]}")

    def file(self, stem: str = "") -> "NamedSource":
        """Return the name of the table that stands for a file of a BEIR folder.

        Args:
          stem: "corpus.jsonl" or "queries.jsonl"; empty: the table that the name stands for.

        Raises:
          UserError: there is no such table.
        """
        collection = self.collection()
        wanted = _PART_OF_FILE.get(stem)
        if self.part is None and wanted is not None and wanted in collection.parts:
            return self._with_part(wanted)
        if self.part is None and wanted is not None and collection.is_folder:
            collection.table(wanted)  # Raises.
        if self.part is None and wanted is None and collection.main is None and len(collection.splits) == 1:
            return self._with_part(f"{QRELS}/{collection.splits[0]}")
        self.table()
        return self

    def sibling(self, part: str) -> "NamedSource | None":
        """Return another part of its collection; None if it has no such part."""
        return NamedSource(f"{self.text.partition('#')[0]}#{part}") if part in self.collection().parts else None

    def splits(self) -> list[str]:
        return self.collection().splits

    def judgements(self, split: str) -> "NamedSource | None":
        return self._with_part(f"{QRELS}/{split}") if split in self.splits() else None

    def pieces(self, size: int | None = None, cut_lines: bool = False) -> Iterator[tuple[int, bytes]]:
        """Yield (row number, row as a line of JSON), for readers of text."""
        for number, row in self.rows():
            yield number, json.dumps(row, ensure_ascii=False).encode("utf-8", errors="surrogateescape") + b"\n"

    def facts(self) -> list[Any]:
        """Return JSON values that differ if the content differs."""
        return [self.text, *self.table().facts()]

    def digest(self) -> str:
        """Return a sha256 (hexadecimal) of its facts."""
        return hashlib.sha256(json.dumps(self.facts()).encode()).hexdigest()

    def verify(self) -> None:
        """Compare the files of its collection, or of its part, with their checksums, where the source has any.

        Raises:
          UserError: a file is missing or has changed.
        """
        parts = self.collection().parts
        for table in parts.values() if self.part is None else [self.table()]:
            if table.verify is not None:
                table.verify()

    def _with_part(self, part: str) -> "NamedSource":
        if self.part is not None or len(self.collection().parts) == 1:
            return self
        return NamedSource(f"{self}#{part}")

    def _match(self) -> re.Match[str]:
        match = _FORM.fullmatch(self.text)
        if match is None:
            raise UsageError(f"{self}: not the name of a data set; write {_FORMS}")
        return match


Source = FileSource | NamedSource
"""Where data are."""

Input = str | Path | Source
"""Where data are, also as the user states it."""


def source_of(path: Input) -> Source:
    """Return where a path or name points to; a source itself."""
    if isinstance(path, FileSource | NamedSource):
        return path
    text = path_text(path)
    scheme, colon, _ = text.partition(":")
    return NamedSource(str(Path(text))) if colon and scheme in OPENERS else FileSource(Path(text).expanduser())
