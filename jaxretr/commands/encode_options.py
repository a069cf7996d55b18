"""Command-line options of `encode`."""

from jaxretr.commands.parsing import Commands, add_model, add_processes, at_least_one


def add_commands(commands: Commands) -> None:
    """Adds the command."""
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
