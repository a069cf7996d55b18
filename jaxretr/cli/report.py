"""`jaxretr report`: one page about training runs."""

import argparse

from jaxretr.cli.parsing import Commands, given


def add_commands(commands: Commands) -> None:
    options = commands.command(
        "report",
        "Write one self-contained HTML page about training runs: settings, curves, metrics with intervals and paired\n"
        "tests against BM25 and the encoder before training, searches side by side, and the environment.",
        "jaxretr report runs/art --out art.html\n  jaxretr report runs/dpr runs/ance --beir scifact --out page.html",
    ).options_of("jaxretr.training.report.run_report:report")
    options.argument("runs", "RUN")
    options.add("out")
    options.add("beir", metavar="DIR")
    options.add("split", "examples")
    options.add("search", option="--no-search", help="only what the runs logged: no metrics, no searches")


def run(args: argparse.Namespace) -> None:
    """Write the page and print its path."""
    from jaxretr.training.report.run_report import report

    print(report(**given(args)))
