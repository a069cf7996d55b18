"""`jaxretr reindex`: moves a live index to another model."""

import argparse

from jaxretr.cli.parsing import Commands, given
from jaxretr.runtime.errors import UsageError


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "reindex",
        "Move a live index to another model: encode its passages, build and certify the new snapshot, then switch in\n"
        "one step. Resumes automatically if it was interrupted. The old vectors stay until --forget, for --rollback.",
        "jaxretr reindex indexes/live --to runs/dpr\n"
        "  jaxretr reindex indexes/live --rollback\n"
        "  jaxretr reindex indexes/live --forget",
    )
    add = parser.add_argument
    add("folder", metavar="DIR", help="a live index, made by jaxretr serve or jaxretr export --to live")
    add("--to", metavar="MODEL", help="the new model: a run directory, an export, a folder or hub name")
    add("--rollback", action="store_true", help="switch back to the model before")
    add("--forget", action="store_true", help="remove the vectors of the model that is not searched")
    options = parser.options_of(*(f"jaxretr.indexes.live.offline:{name}" for name in ("reindex", "rollback")))
    options.add("dtype", option="--compute")
    options.add("batch_size")


def run(args: argparse.Namespace) -> None:
    """Move the index, move it back, or forget the old model, and print a summary."""
    if (args.to is not None) + args.rollback + args.forget != 1:
        raise UsageError("reindex needs one of --to MODEL, --rollback and --forget; give one of them")
    from jaxretr.indexes.live import offline

    if args.forget:
        print(offline.forget(args.folder))
    elif args.rollback:
        print(offline.rollback(args.folder, **given(args, "rollback")))
    else:
        print(offline.reindex(args.folder, args.to, **given(args, "reindex")))
