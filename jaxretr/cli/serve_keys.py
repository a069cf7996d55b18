"""`jaxretr serve keys`: makes an API key."""

import argparse
from pathlib import Path


def run(args: argparse.Namespace) -> None:
    """Add a key's digest to the file, and print the key."""
    from jaxretr.serve.keys import add_key

    print(add_key(Path(args.keys), args.add, args.scopes.split(",")))
