"""What can be typed behind `jaxretr train`, beside the settings of the config."""

import argparse
from collections.abc import Callable

from jaxretr.commands import process_options
from jaxretr.errors import UsageError


def add_options(parser: argparse.ArgumentParser, number: Callable[[str], int]) -> None:
    """Adds the arguments.

    Args:
      parser: of the command.
      number: reads a whole number from 1.
    """
    parser.usage = (
        "%(prog)s CONFIG [--data PATH] --workdir DIR [--section.key VALUE ...]\n"
        "       %(prog)s CONFIG --help\n"
        "       %(prog)s CONFIG [--data PATH] --plan [--topology v5e:4x4] [--section.key VALUE ...]"
    )
    add = parser.add_argument
    add(
        "config",
        metavar="CONFIG",
        help="a file that defines config() -> jaxretr.config.Config, or the name of a shipped one (see: jaxretr configs)",
    )
    add(
        "--data",
        "--beir",
        metavar="PATH",
        help="your own data, in place of all that the config names: a BEIR folder (corpus, queries, qrels) or one "
        "training file (Tevatron, DPR, sentence-transformers ...); a test split is used only where nothing else is judged",
    )
    add("--workdir", metavar="DIR", help="the run's folder: checkpoints, metrics, the best model")
    add(
        "--profile-steps",
        metavar="A:B",
        type=_steps,
        help="trace the steps A to B, counted from 1, into DIR/profile, for XProf, TensorBoard or Perfetto",
    )
    group = parser.add_argument_group(
        "before anything runs", "memory, communication and least time of the run's compiled programs"
    )
    add = group.add_argument
    add(
        "--plan",
        action="store_true",
        help="compile for the devices at hand, or for --topology, and stop; 1: does not fit",
    )
    add("--topology", metavar="NAME", help="kind and shape of TPUs, for instance v5e:4x4; none need be here")
    add("--passages", type=number, metavar="N", help="of the corpus, where its file is not here")
    add("--format", choices=("text", "json"), help="of what is printed (default: text)")
    process_options.add_options(parser)


def command_of(args: argparse.Namespace) -> str:
    """The command that the arguments mean: "train" or "train plan".

    Raises:
      UsageError: arguments that do not go together.
    """
    if args.plan:
        if args.profile_steps is not None:
            raise UsageError("--profile-steps is about a run, and --plan runs nothing; leave one of them out")
        return "train plan"
    for name in ("topology", "passages", "format"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name} belongs to a plan; add --plan, or leave it out")
    if args.workdir is None:
        raise UsageError("the following arguments are required: --workdir; see: jaxretr train --help")
    return "train"


def _steps(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"'{text}' names no steps; give FIRST:LAST, from 1, for instance 11:15")
    return int(first), int(last)
