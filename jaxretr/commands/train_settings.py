"""`jaxretr train CONFIG --help`: the command's own help, and every setting of the config."""

import argparse

from jaxretr import experiment
from jaxretr.commands.config_help import settings_text


def run(args: argparse.Namespace) -> None:
    """Prints both, with the values that the config, --data and overrides give."""
    config = experiment.load(args.config, args.overrides, args.data)
    print(args.command_help)
    print(f"settings of {args.config}, with their values:\n")
    print(settings_text(config))
