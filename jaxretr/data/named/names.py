"""`ir_datasets:ID`, `tfds:NAME/CONFIG:VERSION[split]` and `hf:OWNER/NAME/CONFIG[split]` as paths of data.

A name is read where a file or a BEIR folder is read: a collection with corpus, queries and judgements is a folder, a
single table is a file of JSON lines. NAME#PART is one part of a collection: #corpus, #queries, #qrels/test, #examples.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path, PosixPath
from typing import Any

from jaxretr.data.named import hub, ir_collections, tfds_collections
from jaxretr.data.named.tables import CORPUS, QRELS, QUERIES, Collection, Row, Table
from jaxretr.runtime.errors import UsageError, UserError

_OPEN = {
    "ir_datasets": ir_collections.open_collection,
    "tfds": tfds_collections.open_collection,
    "hf": hub.open_collection,
}
_PREFIXES = tuple(f"{scheme}:" for scheme in _OPEN)

_FORM = re.compile(r"(?P<scheme>\w+):(?P<body>[^\[\]#]+)(?:\[(?P<split>.+)\])?(?:#(?P<part>[^\[\]]+))?")
_FORMS = "ir_datasets:ID, tfds:NAME/CONFIG:VERSION[SPLIT] or hf:OWNER/NAME/CONFIG[SPLIT]"

# The part of a collection that stands for a file of a BEIR folder.
_PART_OF_FILE = {"corpus.jsonl": CORPUS, "queries.jsonl": QUERIES}


def data_path(path: str | Path) -> Path:
    """Return the path of data: a `DataName` for a name, otherwise a file or folder with `~` replaced."""
    text = os.fspath(path)
    return DataName(text) if text.startswith(_PREFIXES) else Path(text).expanduser()


class DataName(PosixPath):
    """A named data set, or one part of it, where a path is expected.

    Nothing but its text is kept: it survives `str`, a config and pickling. Only the methods below know that it is a
    name; it cannot be opened like a file.
    """

    @property
    def scheme(self) -> str:
        """ "ir_datasets", "tfds" or "hf"."""
        return self._match()["scheme"]

    @property
    def body(self) -> str:
        """The data set's name in its source, without split and part."""
        return self._match()["body"]

    @property
    def part(self) -> str | None:
        """The part that the name states behind #; None if it states none."""
        return self._match()["part"]

    def collection(self) -> Collection:
        """Open its collection, without reading rows.

        Raises:
          UserError: there is none; a package or the network is missing.
        """
        match = self._match()
        return _OPEN[match["scheme"]](match["body"], match["split"])

    def with_part(self, part: str) -> "DataName":
        """Return the name of a part of its collection, or the name itself if that has no other part."""
        if self.part is not None or len(self.collection().parts) == 1:
            return self
        return DataName(f"{self}#{part}")

    def sibling(self, part: str) -> "DataName | None":
        """Return the name of another part of its collection; None if it has no such part."""
        return DataName(f"{str(self).partition('#')[0]}#{part}") if part in self.collection().parts else None

    def table(self) -> Table:
        """Return the table that the name stands for.

        Raises:
          UserError: it is a collection of several, or has no such part.
        """
        return self.collection().table(self.part)

    @property
    def role(self) -> str | None:
        """ "corpus", "queries" or "qrels" if the name says so; None: the rows have to be looked at."""
        part = self.part or self.collection().main or ""
        role = part.split("/")[0]
        return role if role in (CORPUS, QUERIES, QRELS) else None

    def input(self, file: str) -> "DataName":
        """Return the name of the table that stands for a file of a BEIR folder.

        Args:
          file: "corpus.jsonl" or "queries.jsonl"; empty: the table that the name stands for.

        Raises:
          UserError: there is no such table.
        """
        collection = self.collection()
        wanted = _PART_OF_FILE.get(file)
        if self.part is None and wanted is not None and wanted in collection.parts:
            return self.with_part(wanted)
        if self.part is None and wanted is not None and collection.is_folder:
            collection.table(wanted)  # Raises.
        if self.part is None and wanted is None and collection.main is None and len(collection.splits) == 1:
            return self.with_part(f"{QRELS}/{collection.splits[0]}")
        self.table()
        return self

    def splits(self) -> list[str]:
        """Return the splits that have judgements, sorted."""
        return self.collection().splits

    def rows(self) -> Iterator[tuple[int, Row]]:
        """Return (row number from 1, row) for every row of its table."""
        return enumerate(self.table().rows(), start=1)

    def json_lines(self) -> Iterator[bytes]:
        """Yield the rows as lines of JSON, for readers of text."""
        for row in self.table().rows():
            yield json.dumps(row, ensure_ascii=False).encode("utf-8", errors="surrogateescape") + b"\n"

    def verify(self) -> None:
        """Compare the files of its collection, or of its part, with their checksums, where the source has any.

        Raises:
          UserError: a file is missing or has changed.
        """
        parts = self.collection().parts
        for table in parts.values() if self.part is None else [self.table()]:
            if table.verify is not None:
                table.verify()

    def facts(self) -> list[Any]:
        """Return JSON values that differ if the content differs."""
        return [str(self), *self.table().facts()]

    # ---- as a path

    def is_dir(self) -> bool:
        """Whether the name stands for a BEIR folder."""
        return self.part is None and self.collection().is_folder

    def is_file(self) -> bool:
        """Whether the name stands for a file, which can be read more than once."""
        return not self.is_dir()

    def exists(self) -> bool:
        """Whether the source knows the name."""
        try:
            self.collection()
        except UserError:
            return False
        return True

    def expanduser(self) -> "DataName":
        """The name itself, as for a path without `~`."""
        return self

    def absolute(self) -> "DataName":
        """The name itself, which does not depend on the working directory."""
        return self

    def _match(self) -> re.Match[str]:
        match = _FORM.fullmatch(str(self))
        if match is None:
            raise UsageError(f"{self}: not the name of a data set; write {_FORMS}")
        return match
