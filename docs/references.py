"""Writes the pages that list every command and every setting, from the code that defines them."""

import argparse
from pathlib import Path

from jaxretr import cli, experiment
from jaxretr.commands.config_help import sections
from jaxretr.config import KINDS


def write(folder: Path) -> None:
    """Writes commands.md, settings.md and configs.md."""
    folder.mkdir(parents=True)
    (folder / "commands.md").write_text(_commands(), encoding="utf-8")
    (folder / "settings.md").write_text(_settings(), encoding="utf-8")
    (folder / "configs.md").write_text(_configs(), encoding="utf-8")


def _commands() -> str:
    _, commands = cli.build_parser()
    parts = ["# Commands", "The same text as `jaxretr COMMAND --help`."]
    for name, parser in commands.items():
        # A fixed width, whatever terminal the build runs in.
        parser.formatter_class = lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=110)
        parts += [f"## jaxretr {name}", f"```text\n{parser.format_help().strip()}\n```"]
    return "\n\n".join(parts) + "\n"


def _settings() -> str:
    parts = [
        "# Settings",
        "Every setting of each kind of run, with its default. A config file sets them in Python; the command line "
        "overrides them as `--section.name VALUE`; `jaxretr train CONFIG --help` lists them with the values of CONFIG.",
    ]
    for kind, cls in KINDS.items():
        parts += [f"## {cls.__name__} (kind {kind})", (cls.__doc__ or "").split("\n\n")[0].strip()]
        for section in sections(cls):
            rows = [
                f"| `{one.option}` | {_code(one.type or 'on or off')} | {_code(one.value)} | {_cell(one.meaning)} |"
                for one in section.settings
            ]
            table = "\n".join(["| setting | type | default | meaning |", "|---|---|---|---|", *rows])
            parts += [f"### {cls.__name__}: {section.title}", section.summary, table]
    return "\n\n".join(parts) + "\n"


def _code(text: str) -> str:
    return f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _configs() -> str:
    parts = [
        "# Configs",
        "The configs that come with the library; `jaxretr configs` lists them, and `jaxretr train NAME` finds them.",
        "| config | what it trains |\n|---|---|\n"
        + "\n".join(f"| `{name}` | {_cell(what)} |" for name, what in experiment.shipped().items()),
    ]
    return "\n\n".join(parts) + "\n"
