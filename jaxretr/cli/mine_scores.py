"""`jaxretr mine scores`: the scores that an ART run's teacher gave the passages it was asked for."""

import argparse

from jaxretr.cli.parsing import Commands, given


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "mine scores",
        "The scores that the teacher of an ART run gave to the passages that the run retrieved, as training data for\n"
        "distillation, or for --table.path of another run with the same teacher, questions and passages.",
        "jaxretr mine scores runs/art --out scores.jsonl\n"
        "  jaxretr mine scores runs/art --out scores.json --format dpr",
    )
    options = parser.options_of("jaxretr.training.teacher_scores:mine_scores")
    options.argument("run", "RUN")
    options.add("out", "format", "step")


def run(args: argparse.Namespace) -> None:
    """Write the scores."""
    from jaxretr.cli.outputs import say_written
    from jaxretr.training.teacher_scores import mine_scores

    mined = mine_scores(**given(args))
    say_written(args.out, f"{mined.pairs} scores of {mined.questions} questions, from step {mined.step}")
