"""`jaxretr configs`: the configs that come with the library."""

import argparse

from jaxretr.cli.parsing import Commands
from jaxretr.training.experiment import configs, shipped_folder


def add_commands(commands: Commands) -> None:
    commands.command(
        "configs", "List the configs that come with the library; jaxretr train takes their names.", "jaxretr configs"
    )


def run(args: argparse.Namespace) -> None:
    """Print the name of each config with its first sentence, and the folder of the configs."""
    shipped = configs()
    width = max(map(len, shipped))
    for name, what in shipped.items():
        print(f"{name:<{width}}  {what}")
    print(f"\n{shipped_folder()}: jaxretr train NAME takes one; copy it to change more than settings")
