"""`jaxretr quickstart`: the main job on the embedded data."""

import argparse
from pathlib import Path

from jaxretr import quickstart


def run(args: argparse.Namespace) -> None:
    """Runs it in the work directory."""
    quickstart.main(Path(args.workdir).expanduser(), args.seed, args.steps)
