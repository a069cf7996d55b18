"""`jaxretr encode`: texts to an embedding store."""

import argparse
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import jax

from jaxretr.commands.data import counted
from jaxretr.commands.model import encode_rows, load_model
from jaxretr.commands.process_options import typed
from jaxretr.commands.progress import Progress
from jaxretr.data.corpus import Corpus, Passage
from jaxretr.data.corpus_stream import CorpusStream
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_questions
from jaxretr.data.vector_files import VectorDtype
from jaxretr.encoding_store import EmbeddingStore, StoreMeta
from jaxretr.errors import UsageError, UserError
from jaxretr.fingerprints import model_fingerprint, texts_fingerprint
from jaxretr.memory import announce, size
from jaxretr.models.combined_encoder import CombinedEncoder, parts_of
from jaxretr.models.dual_encoder import DualEncoder, Side
from jaxretr.parallel.hosts import agree, program_facts, stops_when_asked, together, wait_for_all

log = logging.getLogger(__name__)

Content = Corpus | CorpusStream | Sequence[Question]

# A text of 100 words as Python holds it, and its tokens.
_BYTES_A_TEXT = 3_000

# What the encoder's own arrays take while it runs: programs and activations of a batch that suits a CPU.
_BYTES_OF_THE_ENGINE = 200 * 2**20


def run(args: argparse.Namespace) -> None:
    """Encodes a corpus (or questions) into the shards that are not there yet."""
    if args.side == "question" and len(args.corpus) > 1:
        raise UsageError("--side question reads one file; give --corpus once")
    with together(), stops_when_asked():
        _encode(args)


def _encode(args: argparse.Namespace) -> None:
    agree("the beginning", {**program_facts(), "command line": typed(args)})
    content: Content = (
        CorpusStream(args.corpus, watch=lambda passages: counted(passages, "passage"))
        if args.side == "passage"
        else read_questions(args.corpus[0])
    )
    encoder = load_model(args)
    store = encode_into(
        encoder,
        content,
        args.out,
        model=str(args.model),
        dtype=args.dtype,
        shard_rows=args.shard_rows,
        batch_size=args.batch_size,
    )
    if jax.process_index():
        return
    meta = store.meta
    longest = getattr(encoder.config, f"max_{args.side}_length")
    print(
        f"{store.folder}: {meta.rows} {args.side}s, {meta.dim} dimensions, {meta.dtype}, {size(meta.bytes)} in "
        f"{meta.shards} shards; {store.cut} texts were cut at {longest} tokens"
    )


def encode_into(
    encoder: DualEncoder | CombinedEncoder,
    content: Content,
    out: str | Path,
    *,
    model: str,
    dtype: VectorDtype = "float32",
    shard_rows: int = 50_000,
    batch_size: int | None = None,
) -> EmbeddingStore:
    """Encodes into an embedding store, going on where an earlier process was interrupted.

    In a run of several processes each encodes its share of the shards on its own devices; all must call this, and all
    must see the folder.

    Args:
      encoder: the model.
      content: a corpus for its passage side, questions for its question side. A `CorpusStream` is read along the way:
        the texts of two shards are in memory at a time.
      out: the store's folder.
      model: its name, for messages.
      dtype: of the stored numbers.
      shard_rows: rows a file.
      batch_size: texts a batch; None: what suits the device.

    Returns:
      The complete store.
    """
    side: Side = "passage" if isinstance(content, Corpus | CorpusStream) else "question"
    meta = StoreMeta(
        side=side,
        model=model,
        model_fingerprint=model_fingerprint(encoder, side),
        texts_fingerprint=texts_fingerprint(content),
        rows=content.num_rows if isinstance(content, CorpusStream) else len(content),
        dim=encoder.config.embedding_size,
        dtype=dtype,
        compute=parts_of(encoder)[0].dtype,
        shard_rows=shard_rows,
    )
    agree("the first shard", {"model": meta.model_fingerprint, "corpus": meta.texts_fingerprint})
    store = EmbeddingStore.begin(out, meta, ids_of(content))
    missing = store.missing()
    left = _rows(meta, missing)
    if missing:
        announce(
            f"{left} {side}s of {meta.dim} dimensions",
            2 * min(shard_rows, meta.rows) * (meta.dim * 4 + _BYTES_A_TEXT) + _BYTES_OF_THE_ENGINE,
            disk=meta.bytes * left // meta.rows,
            folder=store.folder if store.local else None,
        )
    began = time.monotonic()
    with Progress(_rows(meta, meta.share), side, "encoded") as progress, ThreadPoolExecutor(1, "read") as thread:
        progress.skip(_rows(meta, meta.share) - left)
        pieces = _pieces(content, [meta.span(shard) for shard in missing])
        coming = thread.submit(next, pieces, None)
        for shard in missing:
            piece = coming.result()
            start, stop = meta.span(shard)
            if piece is None or len(piece) < stop - start:
                raise UserError("the corpus has become shorter while it was read; leave it as it is, and start again")
            coming = thread.submit(next, pieces, None)
            embeddings, cut = encode_rows(
                encoder, piece, 0, len(piece), batch_size=batch_size, advance=progress.advance
            )
            store.write(shard, embeddings, cut)
    if missing:
        seconds = time.monotonic() - began
        log.info("encoded %d %ss in %.0f s, %.0f/s", left, side, seconds, left / seconds)
    wait_for_all("the end of encoding")
    return EmbeddingStore.open(out)


def ids_of(content: Content) -> Iterable[str]:
    """The ids of passages or questions, in their order."""
    if isinstance(content, CorpusStream):
        return (passage.id for _, passage in content.passages())
    return content.ids if isinstance(content, Corpus) else (question.id for question in content)


def _rows(meta: StoreMeta, shards: Iterable[int]) -> int:
    return sum(stop - start for start, stop in map(meta.span, shards))


def _pieces(content: Content, spans: Sequence[tuple[int, int]]) -> Iterator[Corpus | Sequence[Question]]:
    """Yields the passages or questions of spans [start, stop), which ascend."""
    if isinstance(content, CorpusStream):
        passages, row = content.passages(), 0
        for start, stop in spans:
            next(islice(passages, start - row, start - row), None)
            yield _as_corpus(passage for _, passage in islice(passages, stop - start))
            row = stop
        return
    for start, stop in spans:
        yield (
            _as_corpus(map(content.__getitem__, range(start, stop)))
            if isinstance(content, Corpus)
            else content[start:stop]
        )


def _as_corpus(passages: Iterable[Passage]) -> Corpus:
    rows = list(passages)
    return Corpus([row.id for row in rows], [row.title for row in rows], [row.text for row in rows])
