"""Command-line options of `quickstart`, `train`, `configs` and `debug`, except the settings of the config."""

import argparse

from jaxretr.commands.parsing import Commands, add_processes, at_least_one
from jaxretr.errors import UsageError


def add_commands(commands: Commands) -> None:
    """Adds the four commands."""
    _add_quickstart(commands)
    _add_train(commands)
    commands.command(
        "configs", "List the configs that come with the library; jaxretr train takes their names.", "jaxretr configs"
    )
    _add_debug(commands)


def _add_quickstart(commands: Commands) -> None:
    add = commands.command(
        "quickstart",
        "ART from questions alone on the embedded data: before, after, control, an index, three searches.",
        "jaxretr quickstart --workdir runs/quickstart",
    ).add_argument
    add("--workdir", metavar="DIR", default="runs/quickstart", help="where everything goes (default: %(default)s)")
    add("--seed", type=int, default=0, help="of the questions' order and of the control (default: %(default)s)")
    add("--steps", type=at_least_one, help="training steps of each run (default: the config's)")


def _add_debug(commands: Commands) -> None:
    commands.command("debug", "A training run that went wrong.", "jaxretr debug replay runs/dpr")
    parser = commands.command(
        "debug replay",
        "Repeat a step from the checkpoint before it; by default the last step that failed, because its loss was NaN\n"
        "or infinite or had jumped. Prints every step's metrics, and which parameters were not finite before and after.",
        "jaxretr debug replay runs/dpr --step 1200",
    )
    parser.add_argument("workdir", metavar="WORKDIR", help="of the training run")
    parser.add_argument("--step", type=at_least_one, metavar="N", help="the step, counted from 1")
    add_processes(parser)


def _add_train(commands: Commands) -> None:
    parser = commands.command(
        "train",
        "Train by a config; resumes automatically if DIR contains a checkpoint. Any setting of the config can be\n"
        "overridden as --section.key VALUE; jaxretr train CONFIG --help lists them with their meaning and value.",
        "jaxretr train dpr_small --data scifact --workdir runs/scifact\n"
        "  jaxretr train configs/art_small.py --workdir runs/art --optimizer.learning-rate 1e-4 --train.steps 400\n"
        "  jaxretr train configs/art_nq_t0_3b.py --plan --topology v5e:4x4",
    )
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
    add("--passages", type=at_least_one, metavar="N", help="of the corpus, where its file is not here")
    add("--format", choices=("text", "json"), help="of what is printed (default: text)")
    add_processes(parser)


def module_of(args: argparse.Namespace) -> str:
    """The module that does what the arguments ask for: "train" or "train_plan".

    Raises:
      UsageError: arguments that do not go together.
    """
    if args.plan:
        if args.profile_steps is not None:
            raise UsageError("--profile-steps is about a run, and --plan runs nothing; leave one of them out")
        return "train_plan"
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
