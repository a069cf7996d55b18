"""`jaxretr report`: one page about training runs."""

import argparse

from jaxretr.cli.parsing import Commands, at_least_one


def add_commands(commands: Commands) -> None:
    """Add the command."""
    add = commands.command(
        "report",
        "Write one self-contained HTML page about training runs: settings, curves, metrics with intervals and paired\n"
        "tests against BM25 and the encoder before training, searches side by side, and the environment.",
        "jaxretr report runs/art --out art.html\n  jaxretr report runs/dpr runs/ance --beir scifact --out page.html",
    ).add_argument
    add("runs", nargs="+", metavar="RUN", help="folders of training runs; the first is compared with the others")
    add("--out", required=True, metavar="FILE", help="the page, an .html; an older one is replaced")
    add("--beir", metavar="DIR", help="measure on a BEIR folder (default: the first run's own dev questions)")
    add("--split", default="test", metavar="NAME", help="split of the BEIR folder's qrels (default: %(default)s)")
    add("--examples", type=at_least_one, default=6, metavar="N", help="searches to show (default: %(default)s)")
    add("--no-search", dest="search", action="store_false", help="only what the runs logged: no metrics, no searches")


def run(args: argparse.Namespace) -> None:
    """Write the page and print its path."""
    from jaxretr.training.report.run_report import report

    print(report(args.runs, out=args.out, beir=args.beir, split=args.split, examples=args.examples, search=args.search))
