"""`jaxretr encode`: texts to an embedding store."""

import argparse
from collections.abc import Sequence

from jaxretr.commands.model import encode_rows, load_model
from jaxretr.commands.progress import Progress
from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.encoding_store import EmbeddingStore, StoreMeta, model_fingerprint, texts_fingerprint


def run(args: argparse.Namespace) -> None:
    """Encodes a corpus (or questions) into the shards that are not there yet."""
    content = read_corpus(args.corpus) if args.side == "passage" else read_questions(args.corpus)
    encoder = load_model(args)
    meta = StoreMeta(
        side=args.side,
        model=str(args.model),
        model_fingerprint=model_fingerprint(encoder, args.side),
        texts_fingerprint=texts_fingerprint(content),
        rows=len(content),
        dim=encoder.config.embedding_size,
        dtype=args.dtype,
        compute=args.compute,
        shard_rows=args.shard_rows,
    )
    store = EmbeddingStore.begin(args.out, meta, ids_of(content))
    with Progress(len(content), args.side, "encoded") as progress:
        missing = store.missing()
        progress.skip(sum(stop - start for start, stop in map(store.span, set(range(meta.shards)) - set(missing))))
        for shard in missing:
            embeddings, cut = encode_rows(
                encoder, content, *store.span(shard), batch_size=args.batch_size, advance=progress.advance
            )
            store.write(shard, embeddings, cut)
    longest = getattr(encoder.config, f"max_{args.side}_length")
    print(
        f"{store.folder}: {meta.rows} {args.side}s, {meta.dim} dimensions, {meta.shards} shards; "
        f"{store.cut} texts were cut at {longest} tokens"
    )


def ids_of(content: Corpus | Sequence[Question]) -> list[str]:
    """The ids of passages or questions, in their order."""
    return content.ids if isinstance(content, Corpus) else [question.id for question in content]
