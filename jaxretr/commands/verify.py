"""`jaxretr verify`: whether an export still gives what the exported model gave."""

import argparse

from jaxretr.export.verify import TOLERANCE, verify


def run(args: argparse.Namespace) -> None:
    """Verifies, and says what agrees."""
    report = verify(args.folder, args.library)
    print(
        f"{args.folder}: intact; {report.texts} golden vectors agree to {report.difference:.1g} of their length "
        f"(allowed: {TOLERANCE:.0e}), read by {' and '.join(report.readers)}; {report.files} files unchanged"
    )
