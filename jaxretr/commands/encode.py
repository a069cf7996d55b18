"""`jaxretr encode`: texts to an embedding store."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxretr.commands.model import encode_rows, load_model
from jaxretr.commands.progress import Progress
from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.encoding_store import EmbeddingStore, StoreMeta, model_fingerprint, texts_fingerprint
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder, Side


def run(args: argparse.Namespace) -> None:
    """Encodes a corpus (or questions) into the shards that are not there yet."""
    content = read_corpus(args.corpus) if args.side == "passage" else read_questions(args.corpus)
    encoder = load_model(args)
    store = encode_into(
        encoder,
        content,
        args.out,
        model=str(args.model),
        compute=args.compute,
        dtype=args.dtype,
        shard_rows=args.shard_rows,
        batch_size=args.batch_size,
    )
    meta = store.meta
    longest = getattr(encoder.config, f"max_{args.side}_length")
    print(
        f"{store.folder}: {meta.rows} {args.side}s, {meta.dim} dimensions, {meta.shards} shards; "
        f"{store.cut} texts were cut at {longest} tokens"
    )


def encode_into(
    encoder: DualEncoder | CombinedEncoder,
    content: Corpus | Sequence[Question],
    out: str | Path,
    *,
    model: str,
    compute: str,
    dtype: str = "float32",
    shard_rows: int = 50_000,
    batch_size: int | None = None,
) -> EmbeddingStore:
    """Encodes into an embedding store, going on where an earlier process was interrupted.

    Args:
      encoder: the model.
      content: a corpus for its passage side, questions for its question side.
      out: the store's folder.
      model: its name, for messages.
      compute: of its matmuls, "float32" or "bfloat16".
      dtype: of the stored numbers, "float32" or "float16".
      shard_rows: rows a file.
      batch_size: texts a batch; None: what suits the device.
    """
    side: Side = "passage" if isinstance(content, Corpus) else "question"
    meta = StoreMeta(
        side=side,
        model=model,
        model_fingerprint=model_fingerprint(encoder, side),
        texts_fingerprint=texts_fingerprint(content),
        rows=len(content),
        dim=encoder.config.embedding_size,
        dtype=dtype,
        compute=compute,
        shard_rows=shard_rows,
    )
    store = EmbeddingStore.begin(out, meta, ids_of(content))
    with Progress(len(content), side, "encoded") as progress:
        missing = store.missing()
        progress.skip(sum(stop - start for start, stop in map(store.span, set(range(meta.shards)) - set(missing))))
        for shard in missing:
            embeddings, cut = encode_rows(
                encoder, content, *store.span(shard), batch_size=batch_size, advance=progress.advance
            )
            store.write(shard, embeddings, cut)
    return store


def ids_of(content: Corpus | Sequence[Question]) -> list[str]:
    """The ids of passages or questions, in their order."""
    return content.ids if isinstance(content, Corpus) else [question.id for question in content]
