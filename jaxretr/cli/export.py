"""`jaxretr export`: a model, its encoder or an index for another library."""

import argparse

from jaxretr.cli.parsing import Commands, add_model, from_zero, given

EXPORT = "jaxretr.exports.exporting:export"


def add_commands(commands: Commands) -> None:
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
    options = parser.options_of(EXPORT)
    options.add("to")
    options.add("out", metavar="DIR")
    options = parser.options_of(EXPORT, to=parser.add_argument_group("of a model"))
    options.add("layout", "license")
    options = parser.options_of(EXPORT, to=parser.add_argument_group("of an encoder (onnx, stablehlo)"))
    options.add("side", "quantise")
    options.add("least_cosine", metavar="C")
    group = parser.add_argument_group("of an index (scann, vertex, pyserini, faiss, live, pgvector, lance)")
    options = parser.options_of(EXPORT, to=group)
    options.add("index", metavar="STORE")
    options.add("corpus")
    options.add("restricts", metavar="FIELD", action="store", nargs="+")
    options.add("crowding", metavar="FIELD")
    options.add("since", metavar="EXPORT")
    options.add("faiss_kind", metavar="KIND")
    options.add("queries")
    options.add("k", option="-k")
    options.add("seed", type=from_zero)
    options.add("target_recall", type=_recalls, action="store", metavar="R,...")
    options.add("train_size", "engine", "table", "hnsw_m", "ef_construction")


def run(args: argparse.Namespace) -> None:
    """Export, and print a summary of what was written and verified."""
    from jaxretr.cli.model import load_model
    from jaxretr.exports.exporting import export

    print(export(lambda: load_model(args), **given(args, "export")))


def _recalls(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of recalls; give for instance 0.9,0.95") from None
