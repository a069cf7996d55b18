"""`jaxretr train`: trains by a config; with --plan prints the run's needs; with CONFIG --help prints its settings."""

import argparse
import json

from jaxretr.cli.config_help import settings_text
from jaxretr.cli.parsing import Commands, Parser, add_processes, at_least_one, window
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.training import experiment


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "train",
        "Train by a config; resumes automatically if DIR contains a checkpoint. Any setting of the config can be\n"
        "overridden as --section.key VALUE; jaxretr train CONFIG --help lists them with their meaning and value.",
        "jaxretr train dpr_small --data scifact --workdir runs/scifact\n"
        "  jaxretr train configs/art_small.py --workdir runs/art --optimizer.learning-rate 1e-4 --train.steps 400\n"
        "  jaxretr train configs/art_nq_t0_3b.py --plan --topology v5e:4x4",
    )
    parser.usage = (
        "%(prog)s CONFIG [--data PATH | --data-folder DIR] --workdir DIR [--section.key VALUE ...]\n"
        "       %(prog)s CONFIG --help\n"
        "       %(prog)s CONFIG [--data PATH] --plan [--topology v5e:4x4] [--section.key VALUE ...]"
    )
    add_config(parser)
    add = parser.add_argument
    add("--workdir", metavar="DIR", help="folder of the run: checkpoints, metrics, the best model")
    add(
        "--profile-steps",
        metavar="A:B",
        type=window("steps", "11:15"),
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
    add("--topology", metavar="NAME", help="TPU type and shape (v5e:4x4), or GPUs of a host (h100:8); none is needed")
    add("--passages", type=at_least_one, metavar="N", help="size of the corpus, if its file is not available")
    add("--format", choices=("text", "json"), help="output format (default: text)")
    add_processes(parser)


def add_config(parser: Parser) -> None:
    """Add CONFIG and the data in place of what it names."""
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
        action="append",
        help="your own data, instead of what the config names: a BEIR folder (corpus, queries, qrels) or one training "
        "file (Tevatron, DPR, sentence-transformers, ...); a test split is used only if no other has judgements; given "
        "several times, a contrastive run trains on all of them (data.mixture)",
    )
    add(
        "--data-folder",
        metavar="DIR",
        help="where the data sets are that the config names, in place of its own folder (data, for those that ship)",
    )


def check(args: argparse.Namespace) -> None:
    """Refuse options that do not go together.

    Raises:
      UsageError: there are such options, or one is missing.
    """
    if args.plan:
        if args.profile_steps is not None:
            raise UsageError("--profile-steps traces a run, but --plan runs nothing; leave one of them out")
        return
    for name in ("topology", "passages", "format"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name} is for --plan; add --plan, or leave it out")
    if args.workdir is None:
        raise UsageError("the following arguments are required: --workdir; see: jaxretr train --help")


def run(args: argparse.Namespace) -> None:
    """Trains, plans, or prints the settings.

    Raises:
      UserError: the run does not fit (--plan).
    """
    if args.command_help is not None:
        settings = settings_text(experiment.load(args.config, args.overrides, args.data, args.data_folder))
        print(args.command_help)
        print(f"settings of {args.config}, with their values:\n")
        print(settings)
    elif args.plan:
        _plan(args)
    else:
        config = experiment.load(args.config, args.overrides, args.data, args.data_folder)
        from jaxretr.training.loop import train

        result = train(config, args.workdir, profile_steps=args.profile_steps)
        for name, value in result.items():
            print(f"{name:<16} {value:.4f}")
        print(f"model: {result.model}")


def _plan(args: argparse.Namespace) -> None:
    from jaxretr.runtime.parallel.tpu_environment import compile_for_tpus

    if args.topology is not None:
        compile_for_tpus()  # Must come before the config, which is a program and may import JAX.
    config = experiment.load(args.config, args.overrides, args.data, args.data_folder)
    from jaxretr.training.plan.requirements import plan, remedy

    planned = plan(config, args.topology, args.passages)
    print(json.dumps(planned.to_json(), indent=2) if args.format == "json" else planned.table())
    if not planned.fits:
        raise UserError(f"{planned.config} does not fit on {planned.topology}: {remedy(config, planned)}")
