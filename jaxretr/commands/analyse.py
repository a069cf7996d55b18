"""`jaxretr analyse`: what a model has learnt, beyond its figures."""

import argparse
import importlib


def run(args: argparse.Namespace) -> None:
    """Does what `args.action` says."""
    importlib.import_module(f"jaxretr.commands.analyse_{args.action}").run(args)
