"""Experiment files, and the settings that replace theirs: of the command line, or by name."""

import json
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxretr.config.art import INDEX_IN_ART, ArtConfig
from jaxretr.config.as_json import from_json, to_json
from jaxretr.config.names import flat_names, nearest_setting
from jaxretr.config.run import Config
from jaxretr.errors import UsageError, UserError, did_you_mean


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Runs an experiment file's `config()` and applies command-line overrides.

    Not in several threads at once: the file is run as a program, and stderr is caught meanwhile.

    Args:
      path: a Python file that defines `config() -> Config`.
      overrides: words like "--optimizer.learning-rate" "3e-5".

    Raises:
      UsageError: the file is missing or broken, or an override's name or value is wrong.
    """
    path = Path(path)
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; give the config file itself")
    if not path.is_file():
        near = [str(other) for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise UsageError(f"{path}: no such config file{did_you_mean(str(path), near) or '; check the path'}")
    try:
        names = runpy.run_path(str(path))
        if not callable(names.get("config")):
            raise UsageError(f"{path}: defines no function config(); add `def config() -> Config`")
        config = names["config"]()
    except UserError:
        raise
    except Exception as error:  # The file is the user's program: whatever it raises is to be fixed there.
        line, what = _line_in(error, path), f"{type(error).__name__}: {error}"
        if isinstance(error, SyntaxError) and error.filename == str(path):
            line, what = error.lineno, error.msg
        raise UsageError(f"{path}:{line}: {what}; fix the config file") from error
    if not isinstance(config, Config):
        raise UsageError(f"{path}: config() returned a {type(config).__name__}; return a jaxretr.config.Config")
    return override(config, overrides)


def _line_in(error: BaseException, path: Path) -> int:
    """The last line of `path` in the error's traceback, 0 if none."""
    line, frame = 0, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(path):
            line = frame.tb_lineno
        frame = frame.tb_next
    return line


def override(config: Config, words: Sequence[str]) -> Config:
    """Applies overrides like "--train.steps" "10"; raises UsageError for a wrong name or value."""
    if not words:
        return config
    words = [_renamed(config, word) for word in words]
    known = {name.replace("_", "-") for name in flat_names(config)}
    for word in words:
        name = word.split("=", 1)[0].removeprefix("--").replace("_", "-")
        # "--no-x" is how a switch that is on by default is put out.
        plain = ".".join([*name.split(".")[:-1], name.split(".")[-1].removeprefix("no-")])
        if word.startswith("--") and not {name, plain} & known:
            raise UsageError(f"{word.split('=', 1)[0]}: no such setting{nearest_setting(name, known)}")
    import contextlib
    import io

    import tyro

    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(type(config), args=list(words), default=config, config=(tyro.conf.AvoidSubcommands,))
    except SystemExit as stop:
        if not stop.code:
            raise
        text = " ".join(printed.getvalue().translate(str.maketrans("│╭╮╰╯─", "      ")).split())
        # What follows is tyro's own advice, on a --help that is not this program's.
        text = text.split("Argument helptext:")[0].split("For full helptext")[0].strip(" .")
        raise UsageError(f"{' '.join(words)}: {text}; correct these settings of the config") from None


def _renamed(config: Config, word: str) -> str:
    """An option under its present name, e.g. --index.no-write-back for --art.no-write-back."""
    option, equals, value = word.partition("=")
    section, _, name = option.partition(".")
    negated = "no-" if name.startswith(("no-", "no_")) else ""
    name = INDEX_IN_ART.get(name[len(negated) :].replace("-", "_"))
    if not isinstance(config, ArtConfig) or section != "--art" or name is None:
        return word
    return f"--index.{negated}{name.replace('_', '-')}{equals}{value}"


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """Returns the config with other values: {"train.steps": 100}; raises UsageError for a wrong name or value."""
    values = to_json(config)
    for name, value in settings.items():
        *sections, key = name.split(".")
        place = values
        for section in sections:
            if (
                place.get(section) is None
            ):  # No such section, which `from_json` reports, or one that is left out so far.
                place[section] = {}
            place = place[section]
        place[key] = str(value) if isinstance(value, Path) else value
    return from_json(json.loads(json.dumps(values)), "settings")
