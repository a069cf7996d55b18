"""`jaxretr train`: from a config file to a run directory."""

import argparse

from jaxretr import experiment
from jaxretr.storage.paths import as_path
from jaxretr.train import train


def run(args: argparse.Namespace) -> None:
    """Trains, then prints the best figures and where the model lies."""
    workdir = as_path(args.workdir)
    figures = train(experiment.load(args.config, args.overrides, args.data), workdir, profile_steps=args.profile_steps)
    for name, value in figures.items():
        print(f"{name:<16} {value:.4f}")
    print(f"model: {workdir / 'model'}")
