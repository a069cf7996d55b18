"""Searches a folder that `jaxretr export --to lance` wrote: `lance:DIR`. It is read-only: export again to change it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.indexes import recall
from jaxretr.indexes.checks import check_model
from jaxretr.indexes.exact.host_rows import checked_questions
from jaxretr.indexes.filters import Value
from jaxretr.indexes.graph_width import Width, width_of
from jaxretr.indexes.index import Document, Hit, Opening, SearchOptions, Standing, find_unchanging
from jaxretr.indexes.lance.build import verify as verify
from jaxretr.indexes.lance.table import KIND, LanceTable
from jaxretr.runtime.errors import UserError, check_rows
from jaxretr.runtime.storage import manifest


def open(place: str, opening: Opening) -> "LanceIndex":
    """Open a folder with a LanceDB table that `jaxretr export --to lance` wrote.

    Raises:
      UserError: it is no such folder, another model made it, or LanceDB is not installed.
    """
    return LanceIndex(Path(place).expanduser(), opening)


class LanceIndex:
    """A LanceDB table as a `Index`; see `jaxretr.indexes.index`.

    Attributes:
      name: its name in requests.
    """

    def __init__(self, folder: Path, opening: Opening):
        """Use `open`."""
        record = manifest.read(folder)
        if record.kind != KIND:
            raise UserError(f"{folder}: is an export --to {record.kind}; give one --to lance")
        facts = record.facts
        check_model(str(folder), facts["dim"], facts["model"], facts["model_fingerprint"], opening.encoder)
        self.name, self._folder, self._facts = opening.name, folder, facts
        self._settings = [Width(**setting) for setting in facts["settings"]]
        self._certificate = recall.read(folder) if self._settings else None
        self._table = LanceTable(folder, facts["fields"], facts["dim"])

    def __len__(self) -> int:
        return len(self._table)

    @property
    def dim(self) -> int:
        return self._table.dim

    @property
    def standing(self) -> Standing:
        return Standing(self._facts["model"], self._facts["model_fingerprint"])

    def is_exact(self, options: SearchOptions) -> bool:
        return options.exact or not self._settings

    def search(self, vectors: np.ndarray, k: int, options: SearchOptions) -> list[list[Hit]]:
        vectors = checked_questions(vectors, self.dim, k, "questions")
        width = None
        if not options.exact and self._settings:
            width = width_of(self._settings, options.target_recall, str(self._folder))
        results = self._table.search(vectors, k, width, options)
        return [list(map(Hit, hits.ids, map(float, hits.scores))) for hits in results]

    find = find_unchanging

    def listing(
        self, fields: Sequence[str] = (), *, share: bool = False
    ) -> tuple[Sequence[str], Mapping[str, Sequence[Value]]]:
        return self._table.listing(fields)

    def documents(self, ids: Sequence[str]) -> list[Document | None]:
        check_rows("ids", ids)
        rows = self._table.rows(ids, ["title", "text", "metadata"])
        documents = {
            name: Document(name, row["title"], row["text"], json.loads(row["metadata"])) for name, row in rows.items()
        }
        return [documents.get(name) for name in ids]

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        check_rows("ids", ids)
        rows = self._table.rows(ids, ["embedding"])
        missing = [name for name in ids if name not in rows]
        if missing:
            raise UserError(f"{missing[0][:80]!r} is not in the index ({len(missing)} such ids); leave it out")
        return np.array([rows[name]["embedding"] for name in ids], np.float32).reshape(len(ids), self.dim)

    def facts(self) -> dict[str, Any]:
        """Implement `Index.facts`; `bytes` is 0, since LanceDB reads what it needs from the disk."""
        facts = self._facts
        return {
            "engine": "lance",
            "folder": str(self._folder),
            "passages": len(self),
            "dim": self.dim,
            "model": facts["model"],
            "model_fingerprint": facts["model_fingerprint"],
            "writable": False,
            "bytes": 0,
            "fields": list(self._table.fields),
            "targets": [setting.target for setting in self._settings],
            "certificate": None if self._certificate is None else recall.as_dict(self._certificate),
            "lancedb": facts["lancedb"],
        }

    def close(self) -> None:
        """Implement `Index.close`; LanceDB has nothing to close."""
