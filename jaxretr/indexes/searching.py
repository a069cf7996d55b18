"""`jaxretr.search`: finds the passages of questions in an embedding store, an exact index or a ScaNN index."""

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxretr.data.corpus import Corpus
from jaxretr.data.readers import read_corpus
from jaxretr.data.runs import Hits, Queries, SearchRun, questions_of
from jaxretr.data.text_rows import RowError, check_trec_id
from jaxretr.embeddings import index_folder
from jaxretr.embeddings.embedding_store import EmbeddingStore, is_store
from jaxretr.embeddings.encoding import Encoder, Path_, encode_texts, loaded, name_of
from jaxretr.embeddings.fingerprints import model_fingerprint, texts_fingerprint
from jaxretr.embeddings.opening import open_store
from jaxretr.indexes.exact import ExactIndex, search_blocks, unique_ids
from jaxretr.indexes.exact.footprint import estimate
from jaxretr.indexes.exact.shares import merge_hits
from jaxretr.indexes.filters import RowFilter, Where
from jaxretr.indexes.reranking import AnyScorer, loaded_scorer, rerank_hits
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel import memory
from jaxretr.runtime.parallel.hosts import agree
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.runtime.progress import Progress
from jaxretr.runtime.storage import manifest
from jaxretr.runtime.storage.copies import local_copy

if TYPE_CHECKING:
    from jaxretr.indexes.certified.index import ScannIndex
    from jaxretr.indexes.certified.layout import Facts

    Index = EmbeddingStore | ExactIndex | ScannIndex

log = logging.getLogger(__name__)

Found = tuple[np.ndarray, list[list[str]]]
"""Scores float32 [B, k'], descending, and the ids of the hits."""


def search(
    encoder: Encoder | Path_ | Callable[[], Encoder],
    index: "Index | Path_",
    *,
    queries: Queries,
    k: int = 100,
    allow: Path | Iterable[str] | None = None,
    deny: Path | Iterable[str] | None = None,
    where: Where | None = None,
    corpus: Path_ | None = None,
    batch_size: int | None = None,
    trec_ids: bool = False,
    rerank: AnyScorer | None = None,
    depth: int = 100,
    passages: Corpus | None = None,
) -> SearchRun:
    """Find the k best passages of each question: exactly, or approximately with a ScaNN index.

    With several processes, each searches its share of a store, or of an exact index given as a folder, on its own
    devices; all must call this, and all return the same run.

    Args:
      encoder: the model that made the index, what `load_encoder` takes, or a function that loads the model: it is
        called once the questions, the index and the filters have been checked.
      index: a store of passages, an `ExactIndex`, a `ScannIndex`, or the folder of one.
      queries: a file of questions, questions, or their texts, whose ids are then "0", "1", ...
      k: hits per question; fewer are returned if fewer passages may be found.
      allow: ids of the only passages to search, or as a `Path` a file with one per line; all by default.
      deny: ids of passages to exclude, or as a `Path` a file with one per line.
      where: field -> the value that a passage must have, or several of which it must have one. Values are compared
        as text, as JSON writes them.
      corpus: the passages' file, JSON lines, with the fields of `where` that the index itself lacks.
      batch_size: questions per batch; None: chosen for the device.
      trec_ids: refuse ids that a TREC run cannot represent, before the search.
      rerank: a cross-encoder or another scorer, what `load_scorer` takes, or a function that loads one: it orders the first
        `depth` hits of each question by its raw scores, and reads their texts in `corpus`; see `jaxretr.rerank`.
      depth: hits that are re-ranked; those behind them are dropped.
      passages: the corpus for re-ranking, if it was read already.

    Returns:
      The hits, {question id: {passage id: score}}; `.save(path)` writes them.

    Raises:
      UserError: another model made the index, it is damaged, the questions cannot be read, a filter names an unknown
        id, field or value, or no passage passes the filters.
      UsageError: several processes with a ScaNN index; or re-ranking without a corpus.
    """
    if rerank is not None and corpus is None and passages is None:
        raise UsageError("rerank reads the passages' texts: give the corpus as well")
    questions = questions_of(queries, trec_ids)
    row_filter = RowFilter(allow, deny, where, corpus)
    opened = _open(index, row_filter, len(questions), k)
    if trec_ids:
        _check_trec_ids(opened.ids, opened.name)
    scorer = None if rerank is None else loaded_scorer(rerank)
    encoder = loaded(encoder)
    opened.check(encoder)
    agree("the search", {"index": opened.contents, "questions": texts_fingerprint(questions)})
    scores, ids = opened.search(encode_texts(encoder, questions, batch_size))
    hits = [Hits(question.id, *found) for question, found in zip(questions, zip(ids, scores, strict=True), strict=True)]
    if scorer is not None:
        texts = read_corpus(corpus) if passages is None and corpus is not None else passages
        assert texts is not None
        hits, _ = rerank_hits(scorer, hits, questions=questions, corpus=texts, depth=depth)
    return SearchRun(hits, questions)


# ---- the three kinds of index ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Opened:
    """An index that is ready to be searched.

    Attributes:
      name: the name of the index in messages.
      contents: a mark that tells the index from others; the same in all processes.
      ids: the ids that this process may find; none for ScaNN, whose ids come with the hits.
      check: a function that refuses a model that did not make the index.
      search: a function that finds the hits of questions [B, D].
    """

    name: str
    contents: str
    ids: Sequence[str]
    check: Callable[[Encoder], None]
    search: Callable[[np.ndarray], Found]


def _open(index: "Index | Path_", row_filter: RowFilter, questions: int, k: int) -> _Opened:
    name = str(index) if isinstance(index, str | Path) else repr(index)
    if isinstance(index, str | Path):
        if is_store(index):
            index = open_store(index, share=True)
        elif is_scann(place := local_copy(os.fspath(index))):
            return _scann(lambda: _load_scann(place), name, row_filter, k)
        else:
            meta = index_folder.describe(place)
            _announce(meta["rows"], meta["dim"], questions, k, dtype=meta["dtype"])
            index = ExactIndex.load(place, mesh=make_mesh())
    if isinstance(index, EmbeddingStore):
        return _store(index, row_filter, questions, k)
    if isinstance(index, ExactIndex):
        return _exact(index, name, row_filter, k)
    return _scann(lambda: index, name, row_filter, k)


def _store(store: EmbeddingStore, row_filter: RowFilter, questions: int, k: int) -> _Opened:
    meta = store.meta
    rows = store.row_numbers(meta.share)
    ids = unique_ids(store.read_ids(meta.share), len(rows), str(store.folder))
    allowed = None
    if row_filter:
        allowed = row_filter.mask(ids if len(ids) == meta.rows else store.read_ids(), {}, str(store.folder))
        allowed = None if allowed is None else allowed[rows]
    _announce(len(rows), meta.dim, questions, k, slab_rows=store.block_rows)
    return _Opened(
        name=str(store.folder),
        contents=meta.address,
        ids=ids,
        check=lambda encoder: check_store(store, encoder, name_of(encoder)),
        search=lambda queries: search_store(store, ids, queries, k, allowed),
    )


def _exact(index: ExactIndex, name: str, row_filter: RowFilter, k: int) -> _Opened:
    ids = index.ids
    allowed = row_filter.mask(ids, index.metadata, name)
    allow = None if allowed is None else [ids[row] for row in np.flatnonzero(allowed)]

    def check(encoder: Encoder) -> None:
        check_dim(name, index.dim, None, encoder, name_of(encoder))
        log.info("%s does not state which model made it; make sure that it was %s", name, name_of(encoder))

    contents = json.dumps([repr(index), list(index.metadata)])
    return _Opened(name, contents, ids, check, lambda queries: index.search(queries, k, allow=allow))


def _scann(load: "Callable[[], ScannIndex]", name: str, row_filter: RowFilter, k: int) -> _Opened:
    if jax.process_count() > 1:
        raise UsageError(f"{name}: an approximate index is searched in one process; start only one")
    index = load()
    allowed = row_filter.mask(index.rows.ids, {}, name) if row_filter else None
    allow = None if allowed is None else [index.rows.ids[row] for row in np.flatnonzero(allowed)]
    return _Opened(
        name=name,
        contents=json.dumps(dataclasses.asdict(index.facts)),
        ids=(),
        check=lambda encoder: check_scann(name, index.facts, encoder, name_of(encoder)),
        search=lambda queries: index.search(queries, k, allow=allow),
    )


def _load_scann(folder: str) -> "ScannIndex":
    from jaxretr.indexes.certified.index import ScannIndex

    return ScannIndex.load(folder)  # It warns and searches exactly where ScaNN does not work.


def is_scann(folder: Path_) -> bool:
    """Whether `jaxretr export --to scann` or `ScannIndex.save` wrote the folder."""
    path = Path(folder).expanduser()
    return manifest.is_export(path) and manifest.read(path).kind == "scann"


def _announce(rows: int, dim: int, questions: int, k: int, **how: Any) -> None:
    needed = estimate(rows, dim, questions=questions, k=min(k, rows), **how)
    memory.announce(f"the search of {rows} passages of {dim} dimensions", needed.memory)


def _check_trec_ids(ids: Sequence[str], index: str) -> None:
    """Refuse ids that the columns of a TREC run cannot hold, before the work of a search is lost to one."""
    for number, name in enumerate(ids, start=1):
        try:
            check_trec_id(name)
        except RowError as error:
            raise UserError(f"{index}: passage {number}: {error}, with --corpus FILE") from None


# ---- what an index and a model must have in common -------------------------------------------------------------------


def check_scann(folder: Any, facts: "Facts", encoder: Encoder, model: Any) -> None:
    """Refuse a ScaNN index that another model made, if it names one."""
    check_dim(folder, facts.dim, facts.model, encoder, model)
    if facts.model_fingerprint is None:
        log.info("%s does not say which model made it; make sure that it was %s", folder, model)
    elif facts.model_fingerprint != model_fingerprint(encoder, "passage"):
        raise another_model(folder, facts.model, model)


def check_store(store: EmbeddingStore, encoder: Encoder, model: Any) -> None:
    """Refuse a store that another model made, or that holds no passages."""
    meta = store.meta
    check_dim(store.folder, meta.dim, meta.model, encoder, model)
    if meta.model_fingerprint != model_fingerprint(encoder, meta.side):
        raise another_model(store.folder, meta.model, model)
    if meta.side != "passage":
        raise UserError(f"{store.folder}: contains embeddings of questions; encode the corpus with --side passage")


def check_dim(folder: Any, dim: int, made_by: str | None, encoder: Encoder, model: Any) -> None:
    """Refuse an index of embeddings that are not as long as the model's."""
    if dim == (size := encoder.config.embedding_size):
        return
    fits = isinstance(encoder, DualEncoder) and dim <= encoder.config.full_size
    remedy = (
        f"search with --truncate-dim {dim}"
        if fits
        else "search with that model"
        if made_by
        else "search with its own model"
    )
    whose = f" ({made_by})" if made_by else ""
    raise UserError(
        f"{folder}: contains embeddings of {dim} dimensions{whose}, but {model} gives {size}; "
        f"{remedy}, or encode the corpus again"
    )


def another_model(folder: Any, made_by: str | None, model: Any) -> UserError:
    """The error for an index that another model made."""
    whose = f" ({made_by})" if made_by else ""
    return UserError(
        f"{folder}: was encoded with another model{whose} than {model}, or with another --passage-prompt; "
        "search with that model, or encode the corpus again"
    )


def search_store(
    store: EmbeddingStore, ids: Sequence[str], queries: np.ndarray, k: int, allowed: np.ndarray | None = None
) -> tuple[np.ndarray, list[list[str]]]:
    """Search a store by streaming its shards through the devices once.

    With several processes, all of which must call this, each streams its share of the shards through its own devices.

    Args:
      store: N passages.
      ids: the ids of this process's share, which is all N where it is alone.
      queries: float32 [B, D].
      k: hits per question.
      allowed: bool, as long as `ids`: the passages that may be found; None: all.

    Returns:
      Scores float32 [B, k'], descending, and the ids of the hits; k' is k, or the number of passages that may be found
      if that is less.
    """
    meta, share = store.meta, store.meta.share
    scores, rows = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
    with Progress(len(ids), "passage", "searched") as progress:

        def blocks() -> Iterator[np.ndarray]:
            for block in store.blocks(share):
                yield block
                progress.advance(len(block))

        if ids and (allowed is None or allowed.any()):
            scores, rows = search_blocks(blocks(), queries, k, allowed=allowed, source=str(store.folder))

    def place(row: int) -> int:
        """The place of a store's row among the rows of the share, whose shards are full except for the store's last."""
        shard, offset = divmod(row, meta.shard_rows)
        return share.index(shard) * meta.shard_rows + offset

    numbers = np.asarray(share)[rows // meta.shard_rows] * meta.shard_rows + rows % meta.shard_rows if ids else rows
    return merge_hits(scores, numbers, lambda row: ids[place(row)], k)
