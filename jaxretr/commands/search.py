"""`jaxretr search`: exact search over an embedding store or a saved exact index, or ScaNN's over its folder."""

import argparse
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxretr import memory
from jaxretr.commands.hits import check_output, write_hits
from jaxretr.commands.model import encode, load_model
from jaxretr.commands.process_options import typed
from jaxretr.commands.progress import Progress
from jaxretr.commands.search_filters import allowed_rows, check_trec_ids
from jaxretr.commands.stores import open_store
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.encoding_store import PIECE_ROWS, EmbeddingStore, is_store
from jaxretr.errors import UsageError, UserError
from jaxretr.evaluate.runs import Hits
from jaxretr.export import manifest
from jaxretr.fingerprints import model_fingerprint, texts_fingerprint
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.parallel.hosts import agree, program_facts, stops_when_asked, together
from jaxretr.parallel.mesh import make_mesh
from jaxretr.search import index_folder
from jaxretr.search.exact import ExactIndex, search_blocks, unique_ids
from jaxretr.search.footprint import estimate
from jaxretr.search.shares import merge_hits
from jaxretr.storage.copies import local_copy

log = logging.getLogger(__name__)

Encoder = DualEncoder | CombinedEncoder


def run(args: argparse.Namespace) -> None:
    """Searches and writes the run; of several processes each searches its share of a store, and the first writes."""
    with together(), stops_when_asked():
        _search(args)


def _search(args: argparse.Namespace) -> None:
    agree("the beginning", {**program_facts(), "command line": typed(args)})
    if args.format != "trec" and args.corpus is None:
        raise UsageError(f"--format {args.format} writes the passages' titles: give --corpus FILE as well")
    check_output(args.out)
    # Everything that can be wrong with the input is found before the model is loaded.
    questions = read_questions(args.queries, trec_ids=args.format == "trec")
    if is_store(args.index):
        open_index = _open_store
    else:
        args.index = local_copy(args.index)
        open_index = _open_scann if _is_scann(args.index) else _open_exact
    search = open_index(args, len(questions))
    corpus = read_corpus(args.corpus) if args.format != "trec" else None
    encoder = load_model(args)
    search.check(encoder)
    agree("the search", {"index": search.contents, "questions": texts_fingerprint(questions)})
    embeddings = encode(encoder, questions, args.batch_size)
    scores, ids = search.run(embeddings)
    if jax.process_index():
        return
    hits = [Hits(*found) for found in zip((question.id for question in questions), ids, scores, strict=True)]
    write_hits(args.out, args.format, hits, questions, corpus)


@dataclass(frozen=True)
class _Search:
    """An index that was opened.

    Attributes:
      contents: tells it from another index.
      check: refuses the model if it is not the index's.
      run: finds the hits of questions [B, D]: scores [B, k] and ids.
    """

    contents: str
    check: Callable[[Encoder], None]
    run: Callable[[np.ndarray], tuple[np.ndarray, list[list[str]]]]


def _open_store(args: argparse.Namespace, questions: int) -> _Search:
    store = open_store(args.index, share=True)
    meta = store.meta
    rows = store.row_numbers(meta.share)
    ids = unique_ids(store.read_ids(meta.share), len(rows), str(store.folder))
    _check_ids(args, ids)
    allowed = None
    if args.allow or args.deny or args.where:
        allowed = allowed_rows(args, ids if len(ids) == meta.rows else store.read_ids(), {})
        allowed = None if allowed is None else allowed[rows]
    slab = min(meta.shard_rows, PIECE_ROWS) if meta.dtype == "int8" else meta.shard_rows
    _announce(len(rows), meta.dim, questions, args.k, slab_rows=slab)

    def run(queries: np.ndarray) -> tuple[np.ndarray, list[list[str]]]:
        return search_store(store, ids, queries, args.k, allowed)

    return _Search(meta.address, lambda encoder: check_store(store, encoder, args.model), run)


def _open_exact(args: argparse.Namespace, questions: int) -> _Search:
    meta = index_folder.describe(args.index)
    _announce(meta["rows"], meta["dim"], questions, args.k, dtype=meta["dtype"])
    index = ExactIndex.load(args.index, mesh=make_mesh())
    _check_ids(args, index.ids)
    allowed = allowed_rows(args, index.ids, index.metadata)
    allow = None if allowed is None else [index.ids[row] for row in np.flatnonzero(allowed)]

    def check(encoder: Encoder) -> None:
        check_dim(args.index, index.dim, None, encoder, args.model)
        log.info("%s does not say which model made it; make sure that it was %s", args.index, args.model)

    return _Search(json.dumps(meta), check, lambda queries: index.search(queries, args.k, allow=allow))


def _is_scann(folder: str) -> bool:
    path = Path(folder).expanduser()
    return manifest.is_export(path) and manifest.read(path).kind == "scann"


def _open_scann(args: argparse.Namespace, questions: int) -> _Search:
    from jaxretr.search.scann import ScannIndex

    del questions  # Vectors stay on disk: there is nothing to say of memory.
    if jax.process_count() > 1:
        raise UsageError(f"{args.index}: ScaNN searches in one process; start it once")
    if args.allow or args.deny or args.where:
        raise UsageError(f"{args.index}: ScaNN has no filters; search the store that encode wrote, which is exact")
    facts = manifest.read(Path(args.index).expanduser()).facts
    index = ScannIndex.load(args.index)  # Where ScaNN does not work it warns, and searches exactly.

    def check(encoder: Encoder) -> None:
        check_dim(args.index, facts["dim"], facts.get("model"), encoder, args.model)
        if (made_by := facts.get("model_fingerprint")) is None:
            log.info("%s does not say which model made it; make sure that it was %s", args.index, args.model)
        elif made_by != model_fingerprint(encoder, "passage"):
            raise _another_model(args.index, facts.get("model"), args.model)

    return _Search(json.dumps(facts), check, lambda queries: index.search(queries, args.k))


def _check_ids(args: argparse.Namespace, ids: Sequence[str]) -> None:
    if args.format == "trec":
        check_trec_ids(ids, args.index)


def _announce(rows: int, dim: int, questions: int, k: int, **how: Any) -> None:
    needed = estimate(rows, dim, questions=questions, k=min(k, rows), **how)
    memory.announce(f"the search of {rows} passages of {dim} dimensions", needed.memory)


def check_store(store: EmbeddingStore, encoder: Encoder, model: Any) -> None:
    """Refuses a store that another model made, or that holds no passages."""
    meta = store.meta
    check_dim(store.folder, meta.dim, meta.model, encoder, model)
    if meta.model_fingerprint != model_fingerprint(encoder, meta.side):
        raise _another_model(store.folder, meta.model, model)
    if meta.side != "passage":
        raise UserError(f"{store.folder}: holds embeddings of questions; encode the corpus with --side passage")


def check_dim(folder: Any, dim: int, made_by: str | None, encoder: Encoder, model: Any) -> None:
    """Refuses an index of embeddings that are not as long as the model's."""
    if dim == (size := encoder.config.embedding_size):
        return
    fits = isinstance(encoder, DualEncoder) and dim <= encoder.config.full_size
    remedy = (
        f"search with --truncate-dim {dim}" if fits else "search with that one" if made_by else "search with its own"
    )
    whose = f" ({made_by})" if made_by else ""
    raise UserError(
        f"{folder}: holds embeddings of {dim} dimensions{whose}, but {model} gives {size}; "
        f"{remedy}, or encode the corpus again"
    )


def _another_model(folder: Any, made_by: str | None, model: Any) -> UserError:
    whose = f" ({made_by})" if made_by else ""
    return UserError(
        f"{folder}: was encoded with another model{whose} than {model}; "
        "search with that one, or encode the corpus again"
    )


def search_store(
    store: EmbeddingStore, ids: Sequence[str], queries: np.ndarray, k: int, allowed: np.ndarray | None = None
) -> tuple[np.ndarray, list[list[str]]]:
    """Streams the shards through the devices once.

    Of several processes, all of which must call this, each streams its share of the shards through its own devices.

    Args:
      store: N passages.
      ids: those of this process's share, which is all N where it is alone.
      queries: float32 [B, D].
      k: hits a question.
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
        """Of a row of the store among those of the share, whose shards are all full but the store's last."""
        shard, offset = divmod(row, meta.shard_rows)
        return share.index(shard) * meta.shard_rows + offset

    numbers = np.asarray(share)[rows // meta.shard_rows] * meta.shard_rows + rows % meta.shard_rows if ids else rows
    return merge_hits(scores, numbers, lambda row: ids[place(row)], k)
