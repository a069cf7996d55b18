"""What can be typed behind `jaxretr update`."""

from jaxretr.commands.combination_options import Command


def add_commands(command: Command) -> None:
    """Adds the command.

    Args:
      command: (name, what it does, example) -> its parser.
    """
    add = command(
        "update",
        "Add and delete passages of a ScaNN index by id, and measure its recall certificate again; without options it\n"
        "only measures. The folder stays as it was until the new one is complete.",
        "jaxretr update indexes/wiki --add runs/new_passages --delete gone.txt\n"
        "  jaxretr update indexes/wiki --rebalance",
    ).add_argument
    add("folder", metavar="DIR", help="what jaxretr export --to scann wrote")
    add(
        "--add",
        metavar="STORE",
        help="passages that jaxretr encode has encoded; one whose id is there takes that one's place",
    )
    add("--delete", metavar="FILE", help="ids of passages that shall go, one a line; they go before others are added")
    add(
        "--rebalance",
        action="store_true",
        help="learn tree and codes anew, and tune again; done anyhow once 30%% of the passages have changed",
    )
