"""`jaxretr adapt documents`: a model for the user's own documents, from them alone."""

import argparse

from jaxretr.cli.parsing import Commands, from_zero, given


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "adapt documents",
        "Adapt a model to documents, from them alone (GPL): a language model writes questions about the passages, BM25 and\n"
        "the model find hard negatives, the model is trained on them, and compared with itself before and with BM25.\n"
        "Resumes automatically if interrupted.",
        "jaxretr adapt documents files:manuals --model sentence-transformers/all-MiniLM-L6-v2 \\\n"
        "    --generator HuggingFaceTB/SmolLM2-135M-Instruct --passages 2500 --out adapted\n"
        "  jaxretr adapt documents scifact --model minilm --generator smollm2 --scorer smollm2 --out adapted",
    )
    options = parser.options_of("jaxretr.document_adaptation:adapt_to_documents")
    options.argument("documents", "DOCUMENTS")
    options.add("model", metavar="MODEL")
    options.add("generator", "scorer", metavar="MODEL")
    options.add("out", metavar="DIR")
    options.add("passages", "per_passage")
    options.add("template", metavar="NAME|FILE")
    options.add("prompt_length")
    options.add("round_trip", type=from_zero)
    options.add("steps", "batch_size", "max_length", "learning_rate", "teacher_temperature")
    options.add("seed", type=from_zero)
    options.add("queries", "qrels", "split")
    options.add("dtype", option="--compute")


def run(args: argparse.Namespace) -> None:
    """Adapts, and prints the comparison, which is also in report.json."""
    from jaxretr.document_adaptation import adapt_to_documents

    print(adapt_to_documents(**given(args)).table())
