"""`jaxretr verify`: whether an export still gives what the exported model or index gave."""

import argparse

from jaxretr.export.verify import verify


def run(args: argparse.Namespace) -> None:
    """Verifies, and says what agrees."""
    print(f"{args.folder}: intact; {verify(args.folder, args.library)}")
