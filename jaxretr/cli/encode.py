"""`jaxretr encode`: texts to an embedding store."""

import argparse

from jaxretr.cli.parsing import Commands, add_model, add_processes, at_least_one
from jaxretr.runtime.errors import UsageError


def add_commands(commands: Commands) -> None:
    """Add the command."""
    parser = commands.command(
        "encode",
        "Encode a corpus into a folder of shards; resumes automatically if interrupted. With several processes, each\n"
        "encodes its share.",
        "jaxretr encode runs/art --corpus corpus.jsonl --out runs/art/embeddings",
    )
    add_model(parser)
    add = parser.add_argument
    add(
        "--corpus",
        metavar="FILE",
        required=True,
        action="append",
        help="BEIR jsonl or folder, DPR tsv, MS MARCO tsv; also .gz; repeat for further files of the corpus. "
        "Streamed, never held in memory",
    )
    add(
        "--out",
        metavar="DIR",
        required=True,
        help="a new or empty folder, or that of an interrupted run; also gs:// or s3://",
    )
    add(
        "--side",
        choices=("passage", "question"),
        default="passage",
        help="which tower; with question, FILE contains questions (default: %(default)s)",
    )
    add(
        "--dtype",
        choices=("float32", "float16", "bfloat16", "int8"),
        default="float32",
        help="type of the stored embeddings; int8 has one scale per row (default: %(default)s)",
    )
    add(
        "--shard-rows",
        type=at_least_one,
        metavar="N",
        help="rows per shard, which an interruption loses (default: a thousandth of the corpus, but at least 256 on "
        "CPUs and 16384 per accelerator, and at most 50000 or 128 MiB; that of the store when resuming)",
    )
    add_processes(parser)


def run(args: argparse.Namespace) -> None:
    """Encode a corpus (or questions) into the shards that are missing; with several processes, the first one prints."""
    if args.side == "question" and len(args.corpus) > 1:
        raise UsageError("--side question reads one file; give --corpus once")
    import jax

    from jaxretr.cli.model import load_model
    from jaxretr.cli.process import typed
    from jaxretr.embeddings.encoding import encode
    from jaxretr.runtime.parallel.hosts import agree, program_facts, stops_when_asked, together
    from jaxretr.runtime.parallel.memory import size

    with together(), stops_when_asked():
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
            f"{meta.shards} shards; {store.cut} texts ({store.cut / meta.rows:.0%}) were cut at {longest} tokens"
        )
