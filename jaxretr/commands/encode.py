"""`jaxretr encode`: texts to an embedding store."""

import argparse

import jax

from jaxretr.commands.model import load_model
from jaxretr.commands.process import typed
from jaxretr.errors import UsageError
from jaxretr.parallel.hosts import agree, program_facts, stops_when_asked, together
from jaxretr.parallel.memory import size
from jaxretr.stores.encoding import encode


def run(args: argparse.Namespace) -> None:
    """Encodes a corpus (or questions) into the shards that are not there yet."""
    if args.side == "question" and len(args.corpus) > 1:
        raise UsageError("--side question reads one file; give --corpus once")
    with together(), stops_when_asked():
        _encode(args)


def _encode(args: argparse.Namespace) -> None:
    agree("the beginning", {**program_facts(), "command line": typed(args)})
    content = {"corpus": args.corpus} if args.side == "passage" else {"queries": args.corpus[0]}
    encoder = load_model(args)
    store = encode(
        encoder,
        **content,
        out=args.out,
        dtype=args.dtype,
        shard_rows=args.shard_rows,
        batch_size=args.batch_size,
        model=str(args.model),
        option="--out",
    )
    if jax.process_index():
        return
    meta = store.meta
    longest = getattr(encoder.config, f"max_{args.side}_length")
    print(
        f"{store.folder}: {meta.rows} {args.side}s, {meta.dim} dimensions, {meta.dtype}, {size(meta.bytes)} in "
        f"{meta.shards} shards; {store.cut} texts were cut at {longest} tokens"
    )
