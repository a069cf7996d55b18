"""`jaxretr mine scores`: the scores that an ART run's teacher gave the passages it was asked for."""

import argparse

from jaxretr.cli.parsing import Commands, at_least_one


def add_commands(commands: Commands) -> None:
    """Add the command."""
    parser = commands.command(
        "mine scores",
        "The scores that the teacher of an ART run gave to the passages that the run retrieved, as training data for\n"
        "distillation, or for --table.path of another run with the same teacher, questions and passages.",
        "jaxretr mine scores runs/art --out scores.jsonl\n"
        "  jaxretr mine scores runs/art --out scores.json --format dpr",
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="the folder of an ART run, of which the newest checkpoint is read")
    add("--out", metavar="FILE", required=True, help="the file to write")
    add(
        "--format",
        default="distillation",
        metavar="NAME",
        help="distillation (ids and scores), or with the texts dpr, dpr-scale, tevatron, tevatron2, sentence-transformers "
        "or flag (default: %(default)s)",
    )
    add("--step", type=at_least_one, metavar="N", help="the checkpoint of this step instead")


def run(args: argparse.Namespace) -> None:
    """Write the scores."""
    from jaxretr.cli.outputs import say_written
    from jaxretr.training.teacher_scores import mine_scores

    mined = mine_scores(args.run, args.out, format=args.format, step=args.step)
    say_written(args.out, f"{mined.pairs} scores of {mined.questions} questions, from step {mined.step}")
