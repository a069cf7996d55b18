"""`jaxretr search`: exact search over an embedding store or a saved exact index, or ScaNN's over its folder."""

import argparse
import dataclasses
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxretr.commands.model import load_model
from jaxretr.commands.outputs import write_hits
from jaxretr.commands.process import typed
from jaxretr.commands.search_filters import allowed_rows, check_trec_ids
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.errors import UsageError
from jaxretr.evaluate.runs import Hits
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.parallel import memory
from jaxretr.parallel.hosts import agree, program_facts, stops_when_asked, together
from jaxretr.parallel.mesh import make_mesh
from jaxretr.search.exact import ExactIndex, unique_ids
from jaxretr.search.exact.footprint import estimate
from jaxretr.search.searching import check_dim, check_scann, check_store, is_scann, search_store
from jaxretr.storage.copies import local_copy
from jaxretr.storage.files import check_output
from jaxretr.stores import index_folder
from jaxretr.stores.embedding_store import is_store
from jaxretr.stores.encoding import encode_texts
from jaxretr.stores.fingerprints import texts_fingerprint
from jaxretr.stores.opening import open_store

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
        open_index = _open_scann if is_scann(args.index) else _open_exact
    search = open_index(args, len(questions))
    corpus = read_corpus(args.corpus) if args.format != "trec" else None
    encoder = load_model(args)
    search.check(encoder)
    agree("the search", {"index": search.contents, "questions": texts_fingerprint(questions)})
    embeddings = encode_texts(encoder, questions, args.batch_size)
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
    _announce(len(rows), meta.dim, questions, args.k, slab_rows=store.block_rows)

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


def _open_scann(args: argparse.Namespace, questions: int) -> _Search:
    from jaxretr.search.scann.index import ScannIndex

    del questions  # Vectors stay on disk: there is nothing to say of memory.
    if jax.process_count() > 1:
        raise UsageError(f"{args.index}: ScaNN searches in one process; start it once")
    if args.allow or args.deny or args.where:
        raise UsageError(f"{args.index}: ScaNN has no filters; search the store that encode wrote, which is exact")
    index = ScannIndex.load(args.index)  # Where ScaNN does not work it warns, and searches exactly.
    return _Search(
        json.dumps(dataclasses.asdict(index.facts)),
        lambda encoder: check_scann(args.index, index.facts, encoder, args.model),
        lambda queries: index.search(queries, args.k),
    )


def _check_ids(args: argparse.Namespace, ids: Sequence[str]) -> None:
    if args.format == "trec":
        check_trec_ids(ids, args.index)


def _announce(rows: int, dim: int, questions: int, k: int, **how: Any) -> None:
    needed = estimate(rows, dim, questions=questions, k=min(k, rows), **how)
    memory.announce(f"the search of {rows} passages of {dim} dimensions", needed.memory)
