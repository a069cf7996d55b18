"""`jaxretr adapt`: a model for the user's own corpus."""

import argparse

from jaxretr.cli.parsing import Commands, given


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "adapt",
        "Adapt a model to a corpus without judgements (DDR): masked language modelling continues on the corpus, the\n"
        "relevance module is kept, and the corpus is encoded; with a report of before and after. Resumes automatically\n"
        "if interrupted.",
        "jaxretr adapt runs/rem --corpus medquad --out models/medical --steps 2000",
    )
    options = parser.options_of("jaxretr.adaptation:adapt")
    options.argument("model", "MODEL")
    options.add("corpus")
    options.add("out", metavar="DIR")
    options.add("steps", "batch_size", "max_length", "learning_rate", "dropout", "chunk", "head_steps", "held_out")
    options.add("seed")
    options.add("queries", "qrels", "split")
    options.add("dtype", option="--compute")


def run(args: argparse.Namespace) -> None:
    """Adapts, and prints the report, which is also in report.json."""
    from jaxretr.adaptation import adapt

    print(adapt(**given(args)).table())
