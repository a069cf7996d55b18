"""Searches a folder that `jaxretr export --to lance` wrote: `lance:DIR`. It is read-only: export again to change it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.embeddings.encoding import Encoder
from jaxretr.indexes import recall
from jaxretr.indexes.checks import check_model, check_questions
from jaxretr.indexes.graph_width import Width, width_of
from jaxretr.indexes.lance.table import KIND, LanceTable, Only
from jaxretr.indexes.served import Document, Hit, SearchOptions, Standing, find_unchanging
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage import manifest

PREFIX = "lance:"


def open(text: str, *, name: str, encoder: Encoder | None = None) -> "LanceIndex":
    """Open a folder.

    Args:
      text: the folder, with or without "lance:" before it.
      name: the index's name in requests.
      encoder: the model of the service; None: the folder's model is not compared with it.

    Raises:
      UserError: it is no such folder, another model made it, or LanceDB is not installed.
    """
    return LanceIndex(Path(text.removeprefix(PREFIX)).expanduser(), name, encoder)


class LanceIndex:
    """A LanceDB table as a `ServedIndex`; see `jaxretr.indexes.served`.

    Attributes:
      name: its name in requests.
    """

    def __init__(self, folder: Path, name: str, encoder: Encoder | None):
        """Use `open`."""
        stated = manifest.read(folder)
        if stated.kind != KIND:
            raise UserError(f"{folder}: is an export --to {stated.kind}; give one --to lance")
        facts = stated.facts
        check_model(str(folder), facts["dim"], facts["model"], facts["model_fingerprint"], encoder)
        self.name, self._folder, self._facts = name, folder, facts
        self._settings = [Width(**setting) for setting in facts["settings"]]
        self._certificate = recall.read(folder) if self._settings else None
        self._table = LanceTable(folder, facts["fields"], facts["dim"])

    def __len__(self) -> int:
        return len(self._table)

    @property
    def dim(self) -> int:
        """The vectors' dimensions, D."""
        return self._table.dim

    @property
    def standing(self) -> Standing:
        """The index's standing; see `ServedIndex`."""
        return Standing(self._facts["model"], self._facts["model_fingerprint"])

    def is_exact(self, options: SearchOptions) -> bool:
        """Implement `ServedIndex.is_exact`."""
        return options.exact or not self._settings

    def search(self, vectors: np.ndarray, k: int, options: SearchOptions) -> list[list[Hit]]:
        """Implement `ServedIndex.search`."""
        vectors = check_questions(vectors, self.dim, k)
        width = None
        if not options.exact and self._settings:
            width = width_of(self._settings, options.target_recall, str(self._folder))
        found = self._table.search(vectors, k, width, Only(options.where, options.allow, options.deny))
        return [[Hit(*hit) for hit in zip(one.ids, one.scores.tolist(), strict=True)] for one in found]

    find = find_unchanging

    def documents(self, ids: Sequence[str]) -> list[Document | None]:
        """Implement `ServedIndex.documents`."""
        rows = self._table.rows(ids, ["title", "text", "metadata"])
        found = {
            name: Document(name, row["title"], row["text"], json.loads(row["metadata"])) for name, row in rows.items()
        }
        return [found.get(name) for name in ids]

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        """Implement `ServedIndex.vectors`."""
        rows = self._table.rows(ids, ["embedding"])
        missing = [name for name in ids if name not in rows]
        if missing:
            raise UserError(f"{missing[0][:80]!r} is not in the index ({len(missing)} such ids); leave it out")
        return np.array([rows[name]["embedding"] for name in ids], np.float32).reshape(len(ids), self.dim)

    def facts(self) -> dict[str, Any]:
        """Implement `ServedIndex.facts`; `bytes` is 0, since LanceDB reads what it needs from the disk."""
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
        """Implement `ServedIndex.close`; LanceDB has nothing to close."""
