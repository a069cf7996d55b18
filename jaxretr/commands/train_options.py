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
    add("--workdir", metavar="DIR", default="runs/quickstart", help="output folder (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of the question order and of the control (default: %(default)s)")
    add("--steps", type=at_least_one, help="training steps of each run (default: the config's)")


def _add_debug(commands: Commands) -> None:
    commands.command("debug", "Investigate a training run that failed.", "jaxretr debug replay runs/dpr")
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
        help="your own data, instead of what the config names: a BEIR folder (corpus, queries, qrels) or one training "
        "file (Tevatron, DPR, sentence-transformers, ...); a test split is used only if no other has judgements",
    )
    add("--workdir", metavar="DIR", help="folder of the run: checkpoints, metrics, the best model")
    add(
        "--profile-steps",
        metavar="A:B",
        type=_steps,
        help="trace steps A to B, counted from 1, into DIR/profile, for XProf, TensorBoard or Perfetto",
    )
    group = parser.add_argument_group(
        "before anything runs", "memory, communication and minimum time of the compiled programs"
    )
    add = group.add_argument
    add(
        "--plan",
        action="store_true",
        help="compile for the local devices, or for --topology, and stop; exits with 1 if the run does not fit",
    )
    add("--topology", metavar="NAME", help="TPU type and shape, for instance v5e:4x4; no TPU is needed")
    add("--passages", type=at_least_one, metavar="N", help="size of the corpus, if its file is not available")
    add("--format", choices=("text", "json"), help="output format (default: text)")
    add_processes(parser)


def module_of(args: argparse.Namespace) -> str:
    """The module that does what the arguments ask for: "train" or "train_plan".

    Raises:
      UsageError: arguments that do not go together.
    """
    if args.plan:
        if args.profile_steps is not None:
            raise UsageError("--profile-steps traces a run, but --plan runs nothing; leave one of them out")
        return "train_plan"
    for name in ("topology", "passages", "format"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name} is for --plan; add --plan, or leave it out")
    if args.workdir is None:
        raise UsageError("the following arguments are required: --workdir; see: jaxretr train --help")
    return "train"


def _steps(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a range of steps; give FIRST:LAST, from 1, for instance 11:15"
        )
    return int(first), int(last)
