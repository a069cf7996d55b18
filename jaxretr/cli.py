"""The command line: what can be typed, how errors look, and how the process is set up.

What the commands do is in jaxretr/commands/. Nothing here imports JAX or numpy, so that --help answers at once.
"""

import argparse
import contextlib
import dataclasses
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn, get_args

from jaxretr.config import EncodeDtype
from jaxretr.errors import UsageError, UserError, did_you_mean
from jaxretr.version import __version__

_MODEL = "a run directory, an exported folder, a Hugging Face, sentence-transformers or DPR folder, or a hub name"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      argv: the words after `jaxretr`; those of the process by default.

    Returns:
      The exit code: 0 done, 1 failed, 2 wrong use, 75 not finished (the same command goes on with it), 130 interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    _open_closed_streams()
    try:
        args = parse(words)
        from jaxretr.commands import process, process_options

        process_options.apply(args)
        process.set_up()
        importlib.import_module(f"jaxretr.commands.{args.command.replace(' ', '_')}").run(args)
        sys.stdout.flush()  # Here, where a reader that has gone is dealt with.
        return 0
    except SystemExit as stop:  # --help, --version, and a training run that was asked to stop
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        return _report("interrupted", 130, debug)
    except BrokenPipeError:
        # The reader of our output (`| head`) has gone. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UserError as error:
        return _report(f"error: {error}", error.exit_code, debug)
    except OSError as error:
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        reason = error.strerror or str(error) or type(error).__name__
        remedy = "check the path, its rights and the free space there"
        return _report(f"error: {where}{reason}; {remedy}", 1, debug)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        if os.strerror(errno.ENOSPC) in what:  # As the libraries for tensors and tokenizers report it.
            return _report(f"error: the disk is full ({what}); free some space and run it again", 1, debug)
        return _report(f"error: {what}; run again with --debug for the traceback", 1, debug)


def _report(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    with contextlib.suppress(OSError):  # Nobody reads stderr; the exit code still says what happened.
        print("jaxretr:", " ".join(message.split()), file=sys.stderr, flush=True)
    return code


def _open_closed_streams() -> None:
    """Opens /dev/null in place of stdin, stdout and stderr that were closed (`>&-`).

    In this order each takes its own number, which else the next file would, and with it what a library prints.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


# ---- parsing ---------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Reports a mistake as one line; argparse would print the usage before it and end the process."""

    def __init__(self, **settings: Any):
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, exit_on_error=True, **settings
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see: {self.prog} --help")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parses the words after `jaxretr`.

    Returns:
      The arguments, with `command` and, for train, the overrides of the configuration in `overrides`.

    Raises:
      UsageError: anything misspelt, missing or superfluous.
      SystemExit: --help or --version was asked for and printed.
    """
    from jaxretr.commands import train_options

    parser, commands = build_parser()
    if not words:
        raise UsageError("no command; see: jaxretr --help")
    if not words[0].startswith("-") and words[0] not in commands:
        hint = did_you_mean(words[0], (name for name in commands if " " not in name))
        there = ", ".join(name for name in commands if " " not in name)
        raise UsageError(f"{words[0]}: no such command{hint or f' (there are {there})'}")
    if words[0].startswith("--") and words[0] not in parser._option_string_actions:
        hint = did_you_mean(words[0], parser._option_string_actions)
        raise UsageError(f"{words[0]}: no such option{hint or '; see: jaxretr --help'}")
    # A command beside `jaxretr mine`, whose required options argparse would want of an action of it, too.
    if list(words[:2]) == ["mine", "lexical"]:
        words = ["mine lexical", *words[2:]]
    if words[0] in commands:
        # Before argparse looks: it would report the option that is missing, not the one that is misspelt.
        command = _named(words, commands)
        _check_options(command, commands[command], words[1:])
    if words[0] == "train" and {"-h", "--help"} & set(words):
        with contextlib.suppress(UsageError):  # Without a config it is the command's own help that is wanted.
            args, args.overrides = parser.parse_known_args([word for word in words if word not in ("-h", "--help")])
            args.command = "train settings"
            args.command_help = commands["train"].format_help()
            return args
    args, rest = parser.parse_known_args(words)
    if args.command == "train":
        args.overrides = rest
        args.command = train_options.command_of(args)
    elif rest:
        raise UsageError(f"{rest[0]}: not expected here; see: jaxretr {args.command} --help")
    return args


def _named(words: Sequence[str], commands: dict[str, argparse.ArgumentParser]) -> str:
    """The command's name, of two words where it has actions of its own."""
    actions = [name.split()[1] for name in commands if name.startswith(f"{words[0]} ")]
    if len(words) < 2 or not actions or words[1].startswith("-"):
        return words[0]
    if words[1] not in actions:
        hint = did_you_mean(words[1], actions) or f" (there are {', '.join(actions)})"
        raise UsageError(f"{words[1]}: no such action of {words[0]}{hint}")
    return f"{words[0]} {words[1]}"


def _check_options(command: str, parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    known = [name for name in parser._option_string_actions if name.startswith("--")]
    sections: list[str] = []
    if command == "train":
        from jaxretr.config import KINDS, all_settings, nearest_setting

        sections = [f"--{field.name}" for kind in KINDS.values() for field in dataclasses.fields(kind)]
    for word in words:
        if not word.startswith("--") or word == "--":
            continue
        name = word.split("=", 1)[0]
        # train's settings, --section.key, are looked at when the config is there.
        setting = "." in name or name.replace("-", "_").replace("__", "--", 1) in sections
        if name not in known and not (command == "train" and setting):
            if command == "train":
                hint = nearest_setting(name[2:].replace("_", "-"), all_settings(), [*known, *sections])
            else:
                hint = did_you_mean(name, known)
            raise UsageError(f"{name}: no such option of {command}{hint or f'; see: jaxretr {command} --help'}")


def _at_least_one(text: str) -> int:
    value = int(text) if text.lstrip("+-").isdecimal() and len(text) < 1000 else 0
    if not 1 <= value < 2**31:
        raise argparse.ArgumentTypeError(
            f"'{text[:40]}' is no whole number from 1{f' to {2**31 - 1}' if value > 0 else ''}"
        )
    return value


def _ranks(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    short = max(len(first), len(last)) < 10
    if not (short and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"'{text}' is no window of ranks; give FIRST:LAST, from 1, for instance 1:100")
    return int(first), int(last)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError("no metric is named; give for instance ndcg@10,recall@100")
    return names


def build_parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Returns the parser, and each command's."""
    from jaxretr.commands import (
        analyse_options,
        combination_options,
        data_options,
        domain_options,
        encode_options,
        evaluate_options,
        export_options,
        mine_options,
        process_options,
        search_options,
        train_options,
        typo_options,
        update_options,
    )

    parser = _Parser(
        prog="jaxretr",
        description="Train, evaluate and serve dense passage retrievers in JAX.",
        epilog="First steps: jaxretr quickstart. Help on a command: jaxretr COMMAND --help.",
    )
    parser.add_argument("--version", action="version", version=f"jaxretr {__version__}")
    _add_debug(parser)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    commands: dict[str, argparse.ArgumentParser] = {}

    def command(name: str, what: str, example: str) -> argparse.ArgumentParser:
        commands[name] = subparsers.add_parser(
            name, help=what.split(";")[0], description=what, epilog=f"example:\n  {example}"
        )
        _add_debug(commands[name])
        return commands[name]

    add = command(
        "quickstart",
        "ART from questions alone on the embedded data: before, after, control, an index, three searches.",
        "jaxretr quickstart --workdir runs/quickstart",
    ).add_argument
    add("--workdir", metavar="DIR", default="runs/quickstart", help="where everything goes (default: %(default)s)")
    add("--seed", type=int, default=0, help="of the questions' order and of the control (default: %(default)s)")
    add("--steps", type=_at_least_one, help="training steps of each run (default: the config's)")

    parser_of = command(
        "train",
        "Train by a config; resumes automatically if DIR contains a checkpoint. Any setting of the config can be\n"
        "overridden as --section.key VALUE; jaxretr train CONFIG --help lists them with their meaning and value.",
        "jaxretr train dpr_small --data scifact --workdir runs/scifact\n"
        "  jaxretr train configs/art_small.py --workdir runs/art --optimizer.learning-rate 1e-4 --train.steps 400\n"
        "  jaxretr train configs/art_nq_t0_3b.py --plan --topology v5e:4x4",
    )
    train_options.add_options(parser_of, _at_least_one)

    command(
        "configs",
        "List the configs that come with the library, which jaxretr train finds by name.",
        "jaxretr configs",
    )

    parser_of = command(
        "encode",
        "Encode a corpus into a folder of shards; an interrupted run goes on where it was. Of several processes each\n"
        "encodes its share.",
        "jaxretr encode runs/art --corpus corpus.jsonl --out runs/art/embeddings",
    )
    _add_model(parser_of)
    encode_options.add_options(parser_of, _at_least_one)
    process_options.add_options(parser_of)

    parser_of = command(
        "search",
        "Exact search over what encode wrote, or over a saved exact index; approximate search over a ScaNN folder. Of\n"
        "several processes each searches its share of what encode wrote.",
        "jaxretr search runs/art --index runs/art/embeddings --queries queries.jsonl -k 100 --out run.trec\n"
        "  jaxretr search runs/art --index emb --queries q.jsonl --out run.trec --corpus c.jsonl --where language=en",
    )
    _add_model(parser_of)
    search_options.add_options(parser_of)
    _add_run(parser_of)
    process_options.add_options(parser_of)

    parser_of = command(
        "evaluate",
        "Measure a run (recall, MRR, nDCG or Acc@k), or a model on a BEIR folder or a suite of them; paired tests with\n"
        "--baseline, and with --typos what typos in the questions cost a model, beside BM25 and other models.",
        "jaxretr evaluate --run run.trec --qrels qrels/test.tsv --baseline bm25.trec --plot curves.pdf\n"
        "  jaxretr evaluate --run run.trec --answers questions.tsv --corpus corpus.tsv\n"
        "  jaxretr evaluate runs/art --beir scifact --split test\n"
        "  jaxretr evaluate runs/art --suite beir --out runs/art/beir --format latex\n"
        "  jaxretr evaluate runs/dpr --beir nq --split dev,test --typos --and-model runs/robust --plot typos.png\n"
        "  jaxretr evaluate runs/dpr --beir nq --typos dictionary --typo-queries people=typed.jsonl",
    )
    _add_model(parser_of, optional=True)
    evaluate_options.add_options(parser_of, _at_least_one, _names)

    parser_of = command(
        "bm25",
        "Search a corpus with BM25, the lexical baseline.",
        "jaxretr bm25 --corpus corpus.jsonl --queries queries.jsonl -k 100 --out bm25.trec",
    )
    parser_of.add_argument("--corpus", metavar="FILE", required=True, help="passages, as for encode")
    _add_run(parser_of)
    add = parser_of.add_argument
    add("--k1", type=float, default=0.9, help="how fast repeated words saturate (default: %(default)s)")
    add("--b", type=float, default=0.4, help="how much long passages are held back (default: %(default)s)")
    add("--stemmer", choices=("english", "none"), default="english", help="(default: %(default)s)")

    parser_of = command(
        "mine",
        "Hard negatives for training questions: passages that BM25 (or a run) ranks high, filtered, with a report.\n"
        "Writes Tevatron jsonl with ids of the corpus, one row a question; training sets of ids for a\n"
        "model that imitates BM25 (SPAR) are made by jaxretr mine lexical.",
        "jaxretr mine --corpus corpus.jsonl --train nq --out mined.jsonl --report mined.json\n"
        "  jaxretr mine --corpus corpus.jsonl --train train.jsonl --run dense.trec --relative-margin 0.05 --out mined.jsonl",
    )
    mine_options.add_options(parser_of, _at_least_one, _ranks)

    parser_of = command(
        "mine lexical",
        "A training set for a dense model that imitates BM25 (or a run, or another model): sentences of the corpus or\n"
        "given queries, with the first ranks as positives and some later ones as negatives, as ids.",
        "jaxretr mine lexical --corpus psgs_w100.tsv --out wiki_lexical --dev 5000\n"
        "  jaxretr mine lexical --corpus psgs_w100.tsv --queries paq.tsv --teacher bm25 --teacher model:runs/dpr --out paq",
    )
    mine_options.add_lexical_options(parser_of, _at_least_one, _ranks)

    combination_options.add_commands(command, _at_least_one)
    domain_options.add_commands(command, _at_least_one)
    typo_options.add_commands(command, _at_least_one)
    update_options.add_commands(command)

    export_options.add_command(command, lambda parser: _add_model(parser, encodes=False), _at_least_one)

    parser_of = command(
        "verify",
        "Check an exported folder: recompute its golden vectors from its files, and compare hashes and settings.",
        "jaxretr verify exports/dpr\n  jaxretr verify exports/dpr --with sentence-transformers",
    )
    add = parser_of.add_argument
    add("folder", metavar="DIR", help="what jaxretr export wrote")
    add(
        "--with",
        dest="library",
        choices=("sentence-transformers", "transformers"),
        help="let that library compute the vectors as well",
    )

    parser_of = command(
        "data",
        "Training sets and other data files: convert, inspect, validate.",
        "jaxretr data validate train.jsonl --corpus corpus.jsonl",
    )
    for name, parser_of_action in data_options.add_actions(parser_of, _at_least_one).items():
        commands[f"data {name}"] = parser_of_action
        _add_debug(parser_of_action)

    parser_of = command(
        "analyse",
        "What a model has learnt: the overlap of its ranking with BM25's, and what the order of words is worth to it.",
        "jaxretr analyse overlap bm25.trec lexical.trec",
    )
    for name, parser_of_action in analyse_options.add_actions(parser_of, _at_least_one, _names, _add_model).items():
        commands[f"analyse {name}"] = parser_of_action
        _add_debug(parser_of_action)

    parser_of = command(
        "debug",
        "A training run that went wrong.",
        "jaxretr debug replay runs/dpr",
    )
    actions = parser_of.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    what = "Runs a step again from the checkpoint before it; by default the last that failed, since its loss was no\nnumber or had jumped. Prints every step's figures, and which parameters were no numbers before and after."
    replay = actions.add_parser(
        "replay",
        help=what.split(";")[0],
        description=what,
        epilog="example:\n  jaxretr debug replay runs/dpr --step 1200",
    )
    replay.add_argument("workdir", metavar="WORKDIR", help="of the training run")
    replay.add_argument("--step", type=_at_least_one, metavar="N", help="the step, counted from 1")
    process_options.add_options(replay)
    commands["debug replay"] = replay
    _add_debug(replay)
    return parser, commands


def _add_debug(parser: argparse.ArgumentParser) -> None:
    # Read by `main` wherever it stands; here for the help.
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
    )


def _add_model(parser: argparse.ArgumentParser, optional: bool = False, encodes: bool = True) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?" if optional else None, help=_MODEL)
    group = parser.add_argument_group("of MODEL")
    add = group.add_argument
    add("--passage-model", metavar="MODEL2", help="the second tower, where it comes apart (DPR's context encoder)")
    add("--tokenizer", metavar="DIR", help="a folder or hub name, where MODEL has none")
    add("--pooling", choices=("cls", "mean"), help="of a folder that does not state it (default there: cls)")
    add(
        "--truncate-dim",
        type=_at_least_one,
        metavar="N",
        help="keep the first N dimensions of the embeddings, as Matryoshka models are trained for",
    )
    if not encodes:
        return
    add(
        "--compute",
        choices=get_args(EncodeDtype),
        default="auto",
        help="of the matmuls; auto: bfloat16 where this machine is faster at it (default: %(default)s)",
    )
    add("--batch-size", type=_at_least_one, metavar="N", help="texts a batch (default: what suits the device)")


def _add_run(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--queries", metavar="FILE", required=True, help="BEIR jsonl or folder, DPR tsv, id<TAB>text, or .txt lines")
    add("-k", type=_at_least_one, default=100, help="passages a question (default: %(default)s)")
    add("--out", metavar="RUN", required=True, help="the run to write")
    add("--format", choices=("trec", "dpr", "jsonl"), default="trec", help="of the run (default: %(default)s)")
