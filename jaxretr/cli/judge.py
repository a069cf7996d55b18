"""`jaxretr judge`: a page on which somebody judges two systems blind."""

import argparse

from jaxretr.cli.parsing import Commands, given


def add_commands(commands: Commands) -> None:
    options = commands.command(
        "judge",
        "Write one self-contained HTML page that shows what two systems find for your own questions, side by side and\n"
        "without names; it counts your votes, tests them, and says at the end which system is which. Needs no judgements.",
        "jaxretr judge runs/art all-MiniLM-L6-v2 --corpus corpus.jsonl --queries questions.txt --out judge.html\n"
        "  jaxretr judge adapted/model bm25 --corpus files:manuals --queries questions.txt --out judge.html",
    ).options_of("jaxretr.training.report.blind:judge")
    options.argument("first", "SYSTEM")
    options.argument("second", "SYSTEM2")
    options.add("corpus", "queries", "out", "hits", "count", "seed")
    options.add("dtype", option="--compute", default="auto")
    options.add("batch_size")


def run(args: argparse.Namespace) -> None:
    """Write the page and print its path."""
    from jaxretr.training.report.blind import judge

    print(judge(**given(args)))
