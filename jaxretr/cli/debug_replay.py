"""`jaxretr debug replay`: repeats a training step that went wrong, from the checkpoint before it."""

import argparse

from jaxretr.cli.parsing import Commands, add_processes, given


def add_commands(commands: Commands) -> None:
    commands.command("debug", "Investigate a training run that failed.", "jaxretr debug replay runs/dpr")
    parser = commands.command(
        "debug replay",
        "Repeat a step from the checkpoint before it; by default the last step that failed, because its loss was NaN\n"
        "or infinite or had jumped. Prints every step's metrics, and which parameters were not finite before and after.",
        "jaxretr debug replay runs/dpr --step 1200",
    )
    options = parser.options_of("jaxretr.training.replay:replay")
    options.argument("workdir", "WORKDIR")
    options.add("step")
    add_processes(parser)


def run(args: argparse.Namespace) -> None:
    """Run the steps again, and print each step's report."""
    from jaxretr.training.replay import replay

    print(replay(**given(args)).table())
