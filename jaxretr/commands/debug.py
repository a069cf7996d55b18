"""`jaxretr debug`: a training run that went wrong."""

import argparse
import importlib


def run(args: argparse.Namespace) -> None:
    """Does what `args.action` says."""
    importlib.import_module(f"jaxretr.commands.debug_{args.action}").run(args)
