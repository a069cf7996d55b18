"""`jaxretr encode`: texts to an embedding store."""

import argparse

from jaxretr.cli.parsing import Commands, add_model, add_processes, given
from jaxretr.runtime.errors import UsageError


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "encode",
        "Encode a corpus into a folder of shards; resumes automatically if interrupted. With several processes, each\n"
        "encodes its share.",
        "jaxretr encode runs/art --corpus corpus.jsonl --out runs/art/embeddings",
    )
    add_model(parser)
    options = parser.options_of("jaxretr.embeddings.encoding:encode")
    options.add("corpus", required=True)
    options.add("out", metavar="DIR")
    parser.add_argument(
        "--side",
        choices=("passage", "question"),
        default="passage",
        help="which tower; with question, FILE contains questions (default: %(default)s)",
    )
    options.add("dtype", "shard_rows", "batch_size")
    add_processes(parser)


def run(args: argparse.Namespace) -> None:
    """Encode a corpus (or questions) into the shards that are missing; with several processes, the first one prints."""
    if args.side == "question" and len(args.corpus) > 1:
        raise UsageError("--side question reads one file; give --corpus once")
    import jax

    from jaxretr.cli.model import load_model
    from jaxretr.cli.process import typed
    from jaxretr.embeddings.encoding import encode
    from jaxretr.models.encode import cut_remedy
    from jaxretr.runtime.parallel.hosts import agree, program_facts, stops_when_asked, together
    from jaxretr.runtime.parallel.memory import size

    with together(), stops_when_asked():
        agree("the beginning", {**program_facts(), "command line": typed(args)})
        settings = given(args, "encode")
        if args.side == "question":
            settings["queries"] = settings.pop("corpus")[0]
        encoder = load_model(args)
        store = encode(encoder, **settings, model=str(args.model))
        if jax.process_index():
            return
        meta = store.meta
        longest = getattr(encoder.config, f"max_{args.side}_length")
        remedy = cut_remedy(store.cut, meta.rows, args.side, longest)
        print(
            f"{store.folder}: {meta.rows} {args.side}s, {meta.dim} dimensions, {meta.dtype}, {size(store.bytes)} in "
            f"{meta.shards} shards; {store.cut} texts ({store.cut / meta.rows:.0%}) were cut at {longest} tokens{remedy}"
        )
