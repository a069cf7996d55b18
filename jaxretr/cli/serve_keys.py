"""`jaxretr serve keys`: makes an API key."""

import argparse

from jaxretr.cli.parsing import given


def run(args: argparse.Namespace) -> None:
    """Add a key's digest to the file, and print the key."""
    from jaxretr.serve.keys import add_key

    print(add_key(**given(args)))
