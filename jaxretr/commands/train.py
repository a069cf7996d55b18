"""`jaxretr train`: from a config file to a run directory."""

import argparse
from pathlib import Path

from jaxretr import config as configuration
from jaxretr.train import train


def run(args: argparse.Namespace) -> None:
    """Trains, then prints the best figures and where the model lies."""
    workdir = Path(args.workdir).expanduser()
    figures = train(configuration.load(args.config, args.overrides), workdir)
    for name, value in figures.items():
        print(f"{name:<16} {value:.4f}")
    print(f"model: {workdir / 'model'}")
