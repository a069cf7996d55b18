"""`jaxretr export`: a model, its encoder or an index for another library."""

import argparse

from jaxretr.cli.parsing import Commands, add_engine, add_model, at_least_one, from_zero

_OPTIONS = (
    *("layout", "license", "side", "index", "corpus", "restricts", "crowding", "since"),
    *("faiss_kind", "queries", "k", "seed", "target_recall", "train_size", "engine"),
    *("table", "hnsw_m", "ef_construction"),
)

# A copy of the list in jaxretr/exports/exporting.py, which imports numpy.
_TARGETS = (
    *("huggingface", "sentence-transformers", "jaxretr"),
    *("onnx", "stablehlo"),
    *("scann", "vertex", "pyserini", "faiss", "live", "pgvector", "lance"),
)


def add_commands(commands: Commands) -> None:
    """Add the command."""
    parser = commands.command(
        "export",
        "Export a model to the layout of another library, its encoder to ONNX or StableHLO, or the embeddings of a\n"
        "corpus to an index of another library; each with golden vectors or hits that jaxretr verify checks.",
        "jaxretr export runs/dpr --to sentence-transformers --out exports/dpr\n"
        "  jaxretr export runs/dpr --to huggingface --layout dpr --out exports/dpr_hf --license apache-2.0\n"
        "  jaxretr export runs/dpr --to onnx --out exports/dpr_onnx\n"
        "  jaxretr export runs/dpr --to vertex --index embeddings --out exports/new --since exports/old\n"
        "  jaxretr export runs/dpr --to pgvector --index embeddings --corpus corpus.jsonl --out postgresql://me@db/search",
    )
    add_model(parser, encodes=False)
    add = parser.add_argument
    add(
        "--to",
        choices=_TARGETS,
        required=True,
        help="target; sentence-transformers also serves text-embeddings-inference and vLLM",
    )
    add(
        "--out",
        metavar="DIR",
        required=True,
        help="a new or empty folder; for pgvector a database, postgresql://USER@HOST/DATABASE (password: ~/.pgpass)",
    )
    add = parser.add_argument_group("of a model").add_argument
    add(
        "--layout",
        choices=("bert", "dpr"),
        help="for huggingface: BertModel, or DPRQuestionEncoder and DPRContextEncoder (default: dpr for a model with a "
        "projection, which BertModel lacks, otherwise bert)",
    )
    add("--license", metavar="NAME", help="for the model card, in the hub's spelling (default: unknown)")
    add = parser.add_argument_group("of an encoder (onnx, stablehlo)").add_argument
    add("--side", choices=("question", "passage", "both"), help="towers to export (default: question)")
    add = parser.add_argument_group("of an index (scann, vertex, pyserini, faiss, live, pgvector, lance)").add_argument
    add("--index", metavar="STORE", help="an embedding store, made by jaxretr encode")
    add(
        "--corpus",
        metavar="FILE",
        help="the encoded passages: for vertex the JSON lines with the fields, for pyserini the contents, for live, "
        "pgvector and lance what is stored and returned",
    )
    add(
        "--restricts",
        metavar="FIELD",
        nargs="+",
        help='vertex: fields of the corpus\'s rows or of their "metadata" to filter by, texts or numbers',
    )
    add("--crowding", metavar="FIELD", help="vertex: the field of the crowding tag")
    add(
        "--since",
        metavar="EXPORT",
        help="vertex: export only the changes since that export, with a list of deleted ids",
    )
    add(
        "--faiss-kind",
        metavar="KIND",
        help="faiss: flat, hnsw, ivfpq, int8, binary, or an index_factory string (default: flat)",
    )
    add(
        "--queries",
        metavar="FILE",
        help="scann, faiss, live, pgvector, lance: questions for measuring the recall (default: passages of the store)",
    )
    add("-k", type=at_least_one, help="the same: k of recall@k (default: 10)")
    add("--seed", type=from_zero, help="the same: seed of the samples (default: 0)")
    add(
        "--target-recall",
        type=_recalls,
        metavar="R,...",
        help="scann, pgvector, lance: recalls to tune settings for (default: 0.95)",
    )
    add("--train-size", type=at_least_one, metavar="N", help="scann: passages to train on (default: a fifth)")
    add_engine(
        add, "scann, live: whose codes propose the candidates (default: scann; live: faiss where ScaNN does not work)"
    )
    add("--table", metavar="NAME", help="pgvector: the table, an older export's is replaced (default: passages)")
    add("--hnsw-m", type=at_least_one, metavar="M", help="pgvector, lance: edges of a passage in the HNSW graph")
    add("--ef-construction", type=at_least_one, metavar="N", help="pgvector, lance: candidates while it is built")


def run(args: argparse.Namespace) -> None:
    """Export, and print a summary of what was written and verified."""
    from jaxretr.cli.model import load_model
    from jaxretr.exports.exporting import export

    options = vars(args)
    given = {name: options[name] for name in _OPTIONS}
    print(export(lambda: load_model(args), to=args.to, out=args.out, **given))


def _recalls(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(0 < value <= 1 for value in values):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of recalls; give for instance 0.9,0.95")
    return values
