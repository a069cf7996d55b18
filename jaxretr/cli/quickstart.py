"""`jaxretr quickstart`: the main job on the embedded data."""

import argparse
from pathlib import Path

from jaxretr.cli.parsing import Commands, at_least_one


def add_commands(commands: Commands) -> None:
    """Add `quickstart`."""
    add = commands.command(
        "quickstart",
        "ART from questions alone on the embedded data: before, after, control, an index, three searches.",
        "jaxretr quickstart --workdir runs/quickstart",
    ).add_argument
    add("--workdir", metavar="DIR", default="runs/quickstart", help="output folder (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of the question order and of the control (default: %(default)s)")
    add("--steps", type=at_least_one, help="training steps of each run (default: the config's)")


def run(args: argparse.Namespace) -> None:
    """Run the quickstart in the work directory."""
    from jaxretr.quickstart.run import main

    main(Path(args.workdir).expanduser(), args.seed, args.steps)
