"""The command line: its words, its errors, and the setup of the process.

jaxretr/cli/ has the commands themselves. Nothing here imports JAX or numpy, so that --help answers at once.
"""

import argparse
import contextlib
import dataclasses
import errno
import functools
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from jaxretr.cli.parsing import Commands, Parser, spoken
from jaxretr.runtime.errors import UsageError, UserError, did_you_mean
from jaxretr.version import __version__

# The modules with the options of the commands, in the order in which help lists them; actions follow their command.
_OPTIONS = (
    "quickstart",
    "train",
    "sweep",
    "configs",
    "encode",
    "search",
    "serve",
    "evaluate",
    "report",
    "judge",
    "bm25",
    "mine",
    "mine_lexical",
    "mine_scores",
    "generate",
    "score",
    "combine",
    "tune",
    "merge",
    "fuse",
    "assemble",
    "adapt",
    "adapt_documents",
    "typos",
    "export",
    "publish",
    "update",
    "reindex",
    "verify",
    "data",
    "analyse",
    "doctor",
    "completion",
    "debug_replay",
)
# Commands that have actions, and that also do something without one.
_WITHOUT_ACTION = ("adapt", "mine", "serve")
# Commands where the next word may be an action or an argument.
_TAKES_A_WORD = ("adapt", "serve")
# Commands that take the settings of a CONFIG as --section.key VALUE.
WITH_SETTINGS = ("train", "sweep")
# What `jaxretr` alone prints.
_FIRST_SCREEN = """\
jaxretr trains, evaluates, exports and serves dense passage retrievers.

Try it
  jaxretr quickstart                  # a retriever from questions alone, compared with BM25, on data in the package
Search folders of text
  jaxretr encode runs/quickstart/art --corpus files:notes --out embeddings
  jaxretr serve runs/quickstart/art --index embeddings --corpus files:notes
Train on your own data
  jaxretr data validate scifact       # reads it and says what is wrong with it
  jaxretr train dpr_small --data scifact --workdir runs/dpr
  jaxretr configs                     # what else can be trained
Measure and pass on
  jaxretr evaluate runs/dpr --beir scifact --split test --baseline bm25
  jaxretr export runs/dpr --to sentence-transformers --out exported

All commands: jaxretr --help. One, with an example: jaxretr COMMAND --help. scifact stands for a folder with
corpus.jsonl, queries.jsonl and qrels/ (BEIR's layout), or for one file of questions with their passages.\
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
      argv: the words after `jaxretr`; those of the process by default.

    Returns:
      The exit code: 0 done, 1 failed, 2 wrong use, 75 not finished (the same command resumes it), 130 interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    _open_closed_streams()
    args = None
    try:
        if not words:
            print(_FIRST_SCREEN, flush=True)
            return 0
        args = parse(words)
        from jaxretr.cli import process

        process.apply(args)
        process.set_up(functools.partial(_spoken, args))
        importlib.import_module(f"jaxretr.cli.{args.module}").run(args)
        sys.stdout.flush()  # Flushed here, where a closed pipe is handled.
        return 0
    except SystemExit as stop:  # --help, --version, and a training run that was asked to stop, which has said so
        if type(stop) is not SystemExit:  # `AskedToStop`, of any other command
            return _report(f"{stop}; run the command again", int(stop.code or 0), debug)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        return _report("interrupted", 130, debug)
    except BrokenPipeError:
        # The reader of our output (`| head`) has closed the pipe. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UserError as error:
        message = str(error) if args is None else _spoken(args, str(error))
        return _report(f"error: {message}", error.exit_code, debug)
    except OSError as error:
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        reason = error.strerror or str(error) or type(error).__name__
        remedy = "check the path, its rights and the free space there"
        return _report(f"error: {where}{reason}; {remedy}", 1, debug)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        if os.strerror(errno.ENOSPC) in what:  # Libraries for tensors and tokenizers report a full disk like this.
            return _report(f"error: the disk is full ({what}); free some space and run it again", 1, debug)
        return _report(f"error: {what}; run again with --debug for the traceback", 1, debug)


def _spoken(args: argparse.Namespace, message: str) -> str:
    """The message with what the user types for each parameter, and each setting of a config, that it names."""
    name = f"{args.command} {args.action}" if "action" in args else args.command
    words, settings = build_parser(args.command)[1][name].words, []
    if args.command in WITH_SETTINGS:
        from jaxretr.config import all_settings

        names = [setting.replace("-", "_") for setting in all_settings()]
        settings = [name for name in names if "." in name]
        words = {name: f"--{name.replace('_', '-')}" for name in names if "." not in name} | words
    return spoken(message, words, settings)


def _report(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    with contextlib.suppress(OSError):  # Nobody may read stderr; the exit code still says what happened.
        print("jaxretr:", " ".join(message.split()), file=sys.stderr, flush=True)
    return code


def _open_closed_streams() -> None:
    """Open /dev/null in place of stdin, stdout and stderr that were closed (`>&-`).

    In this order each takes its own number, which the next opened file would otherwise get, together with everything a
    library prints.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


# ---- parsing ---------------------------------------------------------------------------------------------------------


def build_parser(command: str | None = None, has_options: bool = True) -> tuple[Parser, Commands]:
    """Return the parser of the options before a command, and the parser of `command` or of each, as in `Commands`."""
    commands = Commands(has_options)
    for module in [each for each in _OPTIONS if command in (None, each.split("_")[0])]:
        importlib.import_module(f"jaxretr.cli.{module}").add_commands(commands)
    for name in commands:
        if actions := [f"{name} {action}" for action in commands.actions(name)]:
            listed = commands.listed(actions, last_word=True)
            commands[name].epilog = f"actions:\n{listed}\n\n{commands[name].epilog}"
    first = Parser(
        prog="jaxretr",
        usage="jaxretr COMMAND [options]",
        description="Train, evaluate and serve dense passage retrievers in JAX.",
        epilog=f"commands:\n{commands.listed(name for name in commands if ' ' not in name)}\n\n"
        "First steps: jaxretr quickstart. Help on a command: jaxretr COMMAND --help.",
    )
    first.add_argument("--version", action="version", version=f"jaxretr {__version__}")
    return first, commands


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the words after `jaxretr`.

    Returns:
      The arguments, with `command` and, for train and sweep, the overrides of the configuration in `overrides`.

    Raises:
      UsageError: a word is misspelt, missing or superfluous.
      SystemExit: --help or --version was asked for and printed.
    """
    if not words:
        raise UsageError("no command; see: jaxretr --help")
    named = any(each.split("_")[0] == words[0] for each in _OPTIONS)
    first, commands = build_parser(words[0]) if named else build_parser(has_options=False)
    if words[0].startswith("-"):
        if words[0] not in first.options:
            hint = did_you_mean(words[0], set(first.options) - {"-h", "--help"})
            raise UsageError(f"{words[0]}: no such option{hint or '; see: jaxretr --help'}")
        first.parse_args(words)
        raise UsageError("no command; see: jaxretr --help")
    name = _named(words, commands)
    parser, rest = commands[name], words[len(name.split()) :]
    # Before argparse, which would report the option that is missing, not the one that is misspelt.
    _check_options(name, parser, rest)
    if name in WITH_SETTINGS:
        return _parse_with_settings(name, parser, rest)
    if commands.actions(name) and name not in _WITHOUT_ACTION and not {"-h", "--help"} & set(rest):
        raise UsageError(f"the following arguments are required: ACTION; see: jaxretr {name} --help")
    args, superfluous = parser.parse_known_args(rest)
    if superfluous:
        raise UsageError(f"{superfluous[0]}: not expected here; see: jaxretr {name} --help")
    return args


def _parse_with_settings(name: str, parser: Parser, words: Sequence[str]) -> argparse.Namespace:
    wants_help = not {"-h", "--help"}.isdisjoint(words)
    options, overrides = _without_settings(parser, [word for word in words if word not in ("-h", "--help")])
    try:
        args, superfluous = parser.parse_known_args(options)
        if superfluous:
            raise UsageError(f"{superfluous[0]}: not expected here; see: jaxretr {name} --help")
    except UsageError as error:
        if wants_help:  # Without a config the words ask for the command's own help.
            parser.parse_args(["--help"])
        if overrides and "CONFIG" in str(error):
            raise UsageError(
                f"CONFIG is missing; it comes before the settings: jaxretr {name} CONFIG --section.key ..."
            ) from None
        raise
    args.overrides = overrides
    if name == "train":
        from jaxretr.cli.train import check

        args.command_help = parser.format_help() if wants_help else None
        if not wants_help:
            check(args)
    elif wants_help:
        parser.parse_args(["--help"])
    return args


def _without_settings(parser: Parser, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words into those of the command's own options and CONFIG, and those of the config's settings.

    A setting has all words up to the next option: only the config tells whether it takes none, one or several.
    """
    options: list[str] = []
    settings: list[str] = []
    found = options
    for word in words:
        if word.startswith("--") and word != "--":
            found = options if word.split("=", 1)[0] in parser.options else settings
        found.append(word)
    return options, settings


def _named(words: Sequence[str], commands: Commands) -> str:
    """Return the command's name, of two words where it has actions."""
    if words[0] not in commands:
        there = [name for name in commands if " " not in name]
        hint = did_you_mean(words[0], there) or f" (there are {', '.join(there)})"
        raise UsageError(f"{words[0]}: no such command{hint}")
    actions = commands.actions(words[0])
    if len(words) < 2 or not actions or words[1].startswith("-"):
        return words[0]
    if words[1] not in actions and words[0] in _TAKES_A_WORD:
        return words[0]
    if words[1] not in actions:
        hint = did_you_mean(words[1], actions) or f" (there are {', '.join(actions)})"
        raise UsageError(f"{words[1]}: no such action of {words[0]}{hint}")
    return f"{words[0]} {words[1]}"


def _check_options(command: str, parser: Parser, words: Sequence[str]) -> None:
    # Without --help, which a message without a suggestion names in any case.
    known = [name for name in parser.options if name.startswith("--") and name != "--help"]
    sections: list[str] = []
    if command in WITH_SETTINGS:
        from jaxretr.config import KINDS, all_settings, nearest_setting

        sections = [f"--{field.name}" for kind in KINDS.values() for field in dataclasses.fields(kind)]
    given: dict[str, str] = {}
    for word in words:
        if word == "--":
            break
        name = word.split("=", 1)[0] if word.startswith("--") else word[:2]
        if name in parser.options:
            setting = parser.taken_once(name)
            if setting in given:
                as_well = f" (as {given[setting]} too)" if given[setting] != name else ""
                raise UsageError(f"{name}: given twice{as_well}, and {command} takes one; leave one of them out")
            if setting is not None:
                given[setting] = name
            continue
        # The settings of a CONFIG, --section.key, are checked once the config has been read.
        setting = "." in name or name.replace("-", "_").replace("__", "--", 1) in sections
        if word.startswith("--") and not (command in WITH_SETTINGS and setting):
            if command in WITH_SETTINGS:
                hint = nearest_setting(name[2:].replace("_", "-"), all_settings(), [*known, *sections])
            else:
                hint = did_you_mean(name, known)
            raise UsageError(f"{name}: no such option of {command}{hint or f'; see: jaxretr {command} --help'}")
