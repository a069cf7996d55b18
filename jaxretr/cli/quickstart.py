"""`jaxretr quickstart`: the main job on the embedded data."""

import argparse
from pathlib import Path

from jaxretr.cli.parsing import Commands, given


def add_commands(commands: Commands) -> None:
    options = commands.command(
        "quickstart",
        "ART from questions alone on the embedded data: before, after, control, an index, three searches.",
        "jaxretr quickstart --workdir runs/quickstart",
    ).options_of("jaxretr.quickstart.run:main")
    options.add("workdir", metavar="DIR", type=Path, required=False, default=Path("runs/quickstart"))
    options.add("seed", "steps")


def run(args: argparse.Namespace) -> None:
    """Run the quickstart in the work directory."""
    from jaxretr.quickstart.run import main

    main(**given(args))
