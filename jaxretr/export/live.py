"""Exports an embedding store as a live index: documents and vectors in SQLite, and the first snapshot."""

import logging
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.data.corpus import iter_passages
from jaxretr.data.text_rows import bare_suffix, find_input
from jaxretr.errors import UserError
from jaxretr.export import passage_fields
from jaxretr.export.index_source import IndexSource, rebatched, silent
from jaxretr.parallel import memory
from jaxretr.search.filters import Value
from jaxretr.serve.live import database, snapshots, writes
from jaxretr.serve.live.database import Database
from jaxretr.serve.live.settings import LiveSettings
from jaxretr.serve.live.verifying import verify
from jaxretr.serve.served import Document
from jaxretr.storage.files import atomic_folder

log = logging.getLogger(__name__)

# Documents per transaction.
_PIECE_ROWS = 10_000

# Bytes that a document takes in the database besides text and vector.
_ROW_BYTES = 200


def export(
    source: IndexSource,
    out: str | Path,
    *,
    corpus: str | Path,
    questions: np.ndarray | None = None,
    settings: LiveSettings | None = None,
    advance: Callable[[int], None] = silent,
) -> str:
    """Writes the folder, which appears when it is complete and verified.

    Args:
      source: the passages.
      out: a new or empty folder.
      corpus: the one that was encoded. The "metadata" of JSON lines becomes the fields for filters.
      questions: float32 [Q, D] to tune and certify the ScaNN index with, if there are enough passages for one.
      settings: of the snapshot.
      advance: called with the number of rows that were written since the last call.

    Returns:
      What was written and verified, for people.

    Raises:
      UserError: another corpus than the store's, or a folder that cannot be written.
    """
    out, meta = Path(out).expanduser(), source.store.meta
    settings = settings or LiveSettings()
    texts = find_input(corpus, "corpus.jsonl").stat().st_size
    disk = 2 * meta.rows * (4 * meta.dim + _ROW_BYTES) + texts
    memory.announce(f"a live index of {meta.rows} passages", _PIECE_ROWS * (4 * meta.dim + 4000), disk=disk, folder=out)
    documents = source.in_step(_documents(corpus), corpus)
    with atomic_folder(out) as partial:
        base = Database.create(partial, meta.model, meta.model_fingerprint, meta.dim)
        connection = base.connect()
        try:
            for vectors in rebatched(source.pieces(), _PIECE_ROWS):
                piece = [document for _, document in zip(range(len(vectors)), documents, strict=False)]
                if len(piece) == len(vectors):
                    content = writes.checked(piece)
                    upsert = writes.Upsert(piece, content, {meta.model_fingerprint: vectors}, meta.model)
                    with database.transaction(connection):
                        upsert(connection)
                advance(len(vectors))
            next(documents, None)  # Raises an error if there are more.
            snapshots.write(base, database.state(connection).active, settings, questions)
        finally:
            connection.close()
            base.close()
        return verify(partial)


def _documents(corpus: str | Path) -> Iterator[tuple[str, str, Document]]:
    path = find_input(corpus, "corpus.jsonl")
    lines = bare_suffix(path) in (".jsonl", ".ndjson", ".json")
    fields = (row for _, _, row in passage_fields.rows(corpus)) if lines else repeat({})
    left_out: set[str] = set()
    for (number, passage), row in zip(iter_passages(corpus), fields, strict=lines):
        metadata = _metadata(row.get("metadata"), left_out)
        where = f"{path}:{number}"
        if not passage.title and not passage.text:
            raise UserError(f"{where}: passage {passage.id!r} has neither title nor text; remove it, and encode again")
        yield where, passage.id, Document(passage.id, passage.title, passage.text, metadata)
    if left_out:
        log.warning(
            "%s: fields that are neither texts nor numbers were left out: %s", path, ", ".join(sorted(left_out))
        )


def _metadata(values: Any, left_out: set[str]) -> dict[str, Value]:
    """The fields that filters can use; adds the names of the others to `left_out`."""
    if not isinstance(values, dict):
        return {}
    kept = {name: value for name, value in values.items() if value is None or isinstance(value, str | int | float)}
    left_out |= values.keys() - kept.keys()
    return kept
