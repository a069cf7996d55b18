"""`jaxretr sweep`: trains every combination of some settings' values, and compares the runs."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from jaxretr.cli.parsing import Commands
from jaxretr.cli.train import add_config
from jaxretr.config import Config, settings_of
from jaxretr.evaluate.tables import FORMATS
from jaxretr.runtime.errors import UsageError
from jaxretr.training import experiment


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "sweep",
        "Train every combination of some settings' values, one after the other, and compare the runs: the best metric of\n"
        "each, the spread over the seeds, paired tests on the dev questions. The same command resumes; a wider grid adds\n"
        "to the runs of DIR. jaxretr train CONFIG --help lists the settings.",
        "jaxretr sweep dpr_small --data scifact --grid optimizer.learning-rate=1e-4,3e-4 --grid train.seed=1,2,3 "
        "--workdir sweeps/scifact",
    )
    parser.usage = (
        "%(prog)s CONFIG [--data PATH | --data-folder DIR] --grid SECTION.KEY=VALUE,VALUE [--grid ...] --workdir DIR\n"
        "           [--section.key VALUE ...]"
    )
    add_config(parser)
    add = parser.add_argument
    add(
        "--grid",
        metavar="NAME=VALUES",
        action="append",
        required=True,
        help="a setting and its values, separated by commas, or a JSON list of them where a value has commas itself; "
        "repeat for every setting: all combinations are trained",
    )
    add(
        "--workdir",
        metavar="DIR",
        required=True,
        help="folder of the sweep: a run's folder for each combination, sweep.json, and sweep.html with all curves",
    )
    add("--format", choices=FORMATS, default="table", help="output format (default: table)")


def run(args: argparse.Namespace) -> None:
    """Train, and print the tables."""
    config = experiment.load(args.config, args.overrides, args.data, args.data_folder)
    grid = grid_of(config, args.overrides, args.grid)
    from jaxretr.training.sweep import sweep

    found = sweep(config, grid=grid, workdir=args.workdir)
    print(found.to_json() if args.format == "json" else found.table(args.format))


def grid_of(config: Config, overrides: Sequence[str], words: Sequence[str]) -> dict[str, list[Any]]:
    """Read the settings and values of a grid, each as it is typed for `jaxretr train`.

    Raises:
      UsageError: no such setting, a value of another type, or a setting that is given twice or overridden as well.
    """
    grid, given = dict[str, list[Any]](), list(overrides)
    for word in words:
        name, _, text = word.partition("=")
        values = _values(text)
        if not name or not all(values):
            raise UsageError(f"--grid {word}: give a setting and its values, such as optimizer.learning-rate=1e-5,2e-5")
        for value in values:
            setting, read = list(settings_of(config, [*given, f"--{name}={value}"]).items())[-1]
            grid.setdefault(setting, []).append(read)
        given.append(f"--{name}={values[0]}")
    return grid


def _values(text: str) -> list[str]:
    if text.startswith("["):
        try:
            return [each if isinstance(each, str) else json.dumps(each) for each in json.loads(text)]
        except ValueError:
            pass
    return text.split(",")
