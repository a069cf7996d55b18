"""Exports an embedding store as a live index (documents and vectors in SQLite, the first snapshot), and updates it."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import chain, islice, repeat
from pathlib import Path

import numpy as np

from jaxretr.data.named.documents import PREFIX, is_cut
from jaxretr.data.text_rows import find_input
from jaxretr.indexes import passage_fields
from jaxretr.indexes.certified.upkeep import Updated
from jaxretr.indexes.index import Document
from jaxretr.indexes.live import database, snapshots, writes
from jaxretr.indexes.live.database import Database
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.indexes.live.offline import WITH_OPTIONS, encoding_model
from jaxretr.indexes.live.settings import LiveSettings
from jaxretr.indexes.live.verifying import verify
from jaxretr.indexes.source import IndexSource, rebatched, silent
from jaxretr.models.combined_encoder import load_encoder
from jaxretr.models.dual_encoder import EncodeDtype
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel import memory
from jaxretr.runtime.progress import Progress
from jaxretr.runtime.storage.files import atomic_folder

# Documents per transaction.
_PIECE_ROWS = 10_000

# Documents per transaction of an update, which encodes them.
_UPDATE_ROWS = 1_000

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
    """Write the folder, which appears when it is complete and verified; return a summary of what was written.

    Args:
      source, out, advance: see `jaxretr.indexes.interchange.faiss_index.export`.
      corpus: the corpus that was encoded. The further fields of JSON lines, and those of their "metadata", are for filters.
      questions: vectors float32 [Q, D] to tune and certify the approximate index with, if there is to be one.
      settings: the settings of the snapshot.

    Raises:
      UserError: another corpus than the store's, or a folder that cannot be written.
    """
    out, meta = Path(out).expanduser(), source.store.meta
    settings = settings or LiveSettings()
    texts = find_input(corpus, "corpus.jsonl").size
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
                    content, of_model = writes.checked(piece), {meta.model_fingerprint: vectors}
                    with database.transaction(connection):
                        writes.upsert(connection, piece, content, of_model, meta.model)
                advance(len(vectors))
            next(documents, None)  # Raises an error if there are more.
            snapshots.write(base, database.state(connection).active, settings, questions)
        finally:
            connection.close()
            base.close()
        return verify(partial)


def update(
    folder: str | Path,
    *,
    add: str | Path | None = None,
    delete: Sequence[str] = (),
    rebalance: bool = False,
    model: str | None = None,
    dtype: EncodeDtype = "auto",
    batch_size: int | None = None,
) -> Updated:
    """Delete passages from a folder that no service has open, and add others, as the service does.

    Args:
      add: a corpus, whose passages are encoded; one whose id exists replaces the old one, and all else of the documents of
        files:PATH is deleted: passages behind the last one, all if it is whole now, and the whole one if it is cut. They are
        written in pieces: an update that was interrupted can be repeated.
      delete: ids of the passages to remove, or of documents that are cut, for all of their passages.
      rebalance: whether to write a new snapshot, with a new approximate index, and to measure its recall; automatic where
        it is due.
      model: the encoder, as `load_encoder` takes it, if the index's own name for its model leads nowhere.

    Raises:
      UserError: another process has the folder, an id is not in the index, a passage is wrong, or another model.
    """
    first: dict[str, str] = {}
    are_documents, are_cut = str(add).startswith(PREFIX), is_cut(str(add))
    documents: dict[str, None] = {}
    for where, id, _ in () if add is None else _documents(add):  # Find every fault before anything is changed.
        if first.setdefault(id, where) != where:
            raise UserError(f"{where}: passage {id!r} is at {first[id]} as well; remove one")
        if are_documents:
            documents[id.rpartition("#")[0] if are_cut else id] = None
    with closing(LiveIndex.open(folder, name=Path(folder).name, background=False)) as index:
        found = _passages_of(index, {*delete, *documents})
        if missing := next((id for id in delete if not found[id]), None):
            raise UserError(f"{missing!r} is not in the index; remove it from the ids to delete")
        # A passage's own id means it alone, whatever a field called document says of others.
        delete = list(chain.from_iterable([id] if id in found[id] else found[id] for id in delete))
        added = replaced = 0
        with ExitStack() as stack:
            encoder, passages = None, iter(())
            if add is not None:
                space = index.view.space
                name = model or space.model
                encoder = stack.enter_context(encoding_model(load_encoder(name, dtype=dtype), name, batch_size))
                if encoder.fingerprint != space.fingerprint:
                    raise UserError(
                        f"{folder}: has the vectors of {space.model}, and {name} makes others; name the model of the index "
                        f"({WITH_OPTIONS}), or move it to this one: jaxretr reindex {folder} --to {name}"
                    )
                passages = (passage for _, _, passage in _documents(add))
            progress = stack.enter_context(Progress(len(first), "passage", "added"))
            while encoder is not None and (piece := list(islice(passages, _UPDATE_ROWS))):
                written = index.upsert(piece, encoder.encode(piece), model_fingerprint=encoder.fingerprint)
                added, replaced = added + written.added, replaced + written.replaced
                progress.advance(len(piece))
        # Delete last: an update that is interrupted and repeated would miss them. Ids that are added too exist again.
        again = len(first.keys() & set(delete))
        left = set(chain.from_iterable(map(found.__getitem__, documents))).difference(delete, first)
        index.delete([*(each for each in delete if each not in first), *sorted(left)])
        if rebalance:
            index.upkeep.compact()
        index.upkeep.catch_up()
        return Updated(Path(folder), added + again, replaced - again, len(set(delete) | left), len(index), None)


def _passages_of(index: LiveIndex, documents: Collection[str]) -> dict[str, list[str]]:
    """The ids of the passages of documents that are in an index: a whole one's own, and those that it was cut into."""
    if not documents:
        return {}
    known = "document" in index.facts()["fields"]
    ids, fields = index.listing(["document"] if known else [])
    found: dict[str, list[str]] = {document: [] for document in documents}
    for id, of in zip(ids, fields["document"] if known else repeat(None), strict=False):
        whole = id.rpartition("#")[0]
        for document in (id, *([whole] if str(of) == whole else ())):  # A table may have ids with # of its own.
            if document in found:
                found[document].append(id)
    return found


def _documents(corpus: str | Path) -> Iterator[tuple[str, str, Document]]:
    """Yield ("path:line", id, document) of a corpus whose documents all have a text."""
    for where, id, document in passage_fields.documents(corpus):
        if not document.title and not document.text:
            raise UserError(f"{where}: passage {id!r} has neither title nor text; remove it, and encode again")
        yield where, id, document
