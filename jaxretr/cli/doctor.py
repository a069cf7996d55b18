"""`jaxretr doctor`: what this machine and installation offer, and what is slow or missing."""

import argparse

from jaxretr.cli.parsing import Commands


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "doctor",
        "Devices, versions, caches and extras, what is slow here and why. Exits with 1 where something prevents work.",
        "jaxretr doctor\n  jaxretr doctor --json",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args: argparse.Namespace) -> None:
    """Print what was found."""
    from jaxretr.doctor import examine

    found = examine()
    print(found.to_json() if args.json else found.table())
    if found.problems:
        raise SystemExit(1)
