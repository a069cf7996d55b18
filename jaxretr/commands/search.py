"""`jaxretr search`: exact search over an embedding store or a saved exact index."""

import argparse
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxretr.commands.hits import check_output, write_hits
from jaxretr.commands.model import encode, load_model
from jaxretr.commands.progress import Progress
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.encoding_store import EmbeddingStore, is_store, model_fingerprint
from jaxretr.errors import UsageError, UserError
from jaxretr.evaluate.runs import Hits
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.search.exact import ExactIndex, search_blocks

log = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> None:
    """Searches and writes the run."""
    if args.format != "trec" and args.corpus is None:
        raise UsageError(f"--format {args.format} writes the passages' titles: give --corpus FILE as well")
    check_output(args.out)
    questions = read_questions(args.queries)
    # Everything that can be wrong with the input is found before the model is loaded.
    index = EmbeddingStore.open(args.index) if is_store(args.index) else ExactIndex.load(args.index)
    corpus = None if args.corpus is None else read_corpus(args.corpus)
    encoder = load_model(args)
    if isinstance(index, EmbeddingStore):
        check_store(index, encoder, args.model)
    else:
        log.info("%s does not say which model made it; make sure that it was %s", args.index, args.model)
    embeddings = encode(encoder, questions, args.batch_size)
    scores, ids = (
        search_store(index, embeddings, args.k)
        if isinstance(index, EmbeddingStore)
        else index.search(embeddings, args.k)
    )
    hits = [Hits(*found) for found in zip((question.id for question in questions), ids, scores, strict=True)]
    write_hits(args.out, args.format, hits, questions, corpus)


def check_store(store: EmbeddingStore, encoder: DualEncoder | CombinedEncoder, model: Any) -> None:
    """Refuses a store that another model made, or that holds no passages."""
    meta = store.meta
    if meta.dim != (size := encoder.config.embedding_size):
        fits = isinstance(encoder, DualEncoder) and meta.dim <= encoder.config.full_size
        remedy = f"search with --truncate-dim {meta.dim}" if fits else "search with that one"
        raise UserError(
            f"{store.folder}: holds embeddings of {meta.dim} dimensions ({meta.model}), but {model} gives {size}; "
            f"{remedy}, or encode the corpus again"
        )
    if meta.model_fingerprint != model_fingerprint(encoder, meta.side):
        raise UserError(
            f"{store.folder}: was encoded with another model ({meta.model}) than {model}; "
            "search with that one, or encode the corpus again"
        )
    if meta.side != "passage":
        raise UserError(f"{store.folder}: holds embeddings of questions; encode the corpus with --side passage")


def search_store(store: EmbeddingStore, queries: np.ndarray, k: int) -> tuple[np.ndarray, list[list[str]]]:
    """Streams the shards through the devices once.

    Args:
      store: N passages.
      queries: float32 [B, D].
      k: hits a question.

    Returns:
      Scores float32 [B, min(k, N)], descending, and the ids of the hits.
    """
    ids = store.read_ids()
    with Progress(store.meta.rows, "passage", "searched") as progress:

        def blocks() -> Iterator[np.ndarray]:
            for block in store.blocks():
                yield block
                progress.advance(len(block))

        scores, rows = search_blocks(blocks(), queries, k)
    return scores, [[ids[row] for row in found] for found in rows.tolist()]
