"""The parts of the commands' options: parsers, types of values, and the options that several commands share.

Nothing here or in the options of a command imports JAX or numpy, so that help appears at once.
"""

import argparse
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NoReturn

from jaxretr.cli import signatures
from jaxretr.runtime.errors import UsageError

SCORER = "a cross-encoder, causal language model or T5"
MODEL = "a run directory, an exported folder, a Hugging Face, sentence-transformers or DPR folder, or a hub name"


class Parser(argparse.ArgumentParser):
    """A parser that reports a mistake as one line; argparse would print the usage first and end the process."""

    def __init__(self, has_options: bool = True, **settings: Any):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        self._has_options = has_options
        # `cli.main` reads it wherever it is given; it is here for the help.
        self.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show an error's traceback")

    def format_help(self) -> str:
        """The help, in which parameters that the functions' descriptions mention are those that the user types."""
        words = self.words

        def typed(name: re.Match[str]) -> str:
            return words.get(name[1]) or re.sub(r"^jaxretr\.(?=\w+$)", "jaxretr ", name[1])

        for action in self._actions:
            action.help = re.sub("`([^`]*)`", typed, action.help or "")
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see: {self.prog} --help")

    def options_of(self, *functions: str, to: argparse._ActionsContainer | None = None) -> "Options":
        """Return what adds parameters of functions, such as "jaxretr.mining.mining:mine", to the parser or a group."""
        return Options(self, functions if self._has_options else (), to or self)

    @property
    def words(self) -> dict[str, str]:
        """The words that the user types for the parameters of the functions that the command calls, by the parameters' names."""
        shown = {action.dest: _shown(action) for action in self._actions}
        taken = (self.get_default("taken") or {}).values()
        return shown | {parameter: shown[dest] for each in taken for parameter, dest in each.items()}

    @property
    def options(self) -> list[str]:
        """All options that the parser knows."""
        return list(self._option_string_actions)

    def taken_once(self, name: str) -> str | None:
        """The destination that an option sets, the same for all its names; None for an option that may be repeated."""
        action = self._option_string_actions[name]
        return None if isinstance(action, argparse._AppendAction | argparse._HelpAction) else action.dest


class Options:
    """Adds options that are parameters of functions, described and typed as they are there; `given` reads them.

    A parameter that several functions share is one option, as the first of them describes it.
    """

    def __init__(self, parser: Parser, functions: tuple[str, ...], to: argparse._ActionsContainer):
        self._functions, self._to = functions, to
        self._taken: dict[str, dict[str, str]] = parser.get_default("taken")
        for function in functions:
            self._taken.setdefault(function, {})

    def add(self, *names: str, option: str | tuple[str, ...] = (), **settings: Any) -> None:
        """Add parameters as options.

        Args:
          option: the words to type, where they differ from the parameter's name.
          settings: those of argparse's `add_argument` that differ from what the signature says.
        """
        for name in names if self._functions else ():
            parameter = self._parameter(name)
            words = (option,) if isinstance(option, str) else option or (f"--{name.replace('_', '-')}",)
            several = {"action": "append"} if parameter.is_sequence else {}
            required = {"required": True} if parameter.default is signatures.REQUIRED else {}
            self._add(name, words, {**several, **required, **settings})

    def argument(self, name: str, metavar: str, **settings: Any) -> None:
        """Add a parameter as a word without an option."""
        if self._functions:
            several = {"nargs": "+"} if self._parameter(name).is_sequence else {}
            self._add(name, (name,), {"metavar": metavar, **several, **settings})

    def _parameter(self, name: str) -> signatures.Parameter:
        found = [signatures.parameters(function) for function in self._functions]
        return next((parameters for parameters in found if name in parameters), found[0])[name]

    def _add(self, name: str, words: tuple[str, ...], settings: dict[str, Any]) -> None:
        parameter = self._parameter(name)
        read = {} if "choices" in settings else _read_as(name, parameter)
        repeated = "; repeat for several" if settings.get("action") == "append" else ""
        read["help"] = _described(parameter, settings.get("default", parameter.default), repeated)
        action = self._to.add_argument(*words, **{**read, **settings})
        for function in self._functions:
            if name in signatures.parameters(function):
                self._taken[function][name] = action.dest


def _read_as(name: str, parameter: signatures.Parameter) -> dict[str, Any]:
    """argparse's settings for a parameter's type."""
    if parameter.choices:
        return {"choices": parameter.choices}
    match parameter.kind:
        case "bool":
            return {"action": "store_false" if parameter.default else "store_true", "default": None}
        case "int":
            return {"type": int if parameter.default == 0 else at_least_one, "metavar": "N"}
        case "float":
            return {"type": float, "metavar": "X"}
        case "window":
            return {"type": window(name.replace("_", " "), "1:100"), "metavar": "A:B"}
        case kind:
            return {"metavar": "FILE" if kind == "path" else "NAME"}


def _described(parameter: signatures.Parameter, default: Any, more: str) -> str:
    """The first sentence of a parameter's description, something more, and the default."""
    text = re.sub(r"\"([^\" ]*)\"", r"\1", re.split(r"(?<!\.)\.(?: |$)", parameter.text)[0])
    text = text.replace("None", "none") if "none" in parameter.choices else text
    if isinstance(default, tuple):
        default = (":" if parameter.kind == "window" else ",").join(map(str, default))
    stated = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    default = f"{default:g}" if isinstance(default, float) else default
    return (text + more + (f" (default: {default})" if stated else "")).replace("%", "%%")


def given(args: argparse.Namespace, function: str | None = None) -> dict[str, Any]:
    """The arguments that the user gave for a function; for the others it has its defaults.

    Args:
      function: the end of the function's name, needed if the command takes options from several.
    """
    place = next(place for place in args.taken if function is None or place.endswith(f":{function}"))
    taken, parameters = args.taken[place], signatures.parameters(place)
    values = {name: getattr(args, dest) for name, dest in taken.items()}
    return {
        name: None if value == "none" and value in parameters[name].choices and parameters[name].default else value
        for name, value in values.items()
        if value is not None
    }


def spoken(message: str, words: Mapping[str, str], settings: Collection[str] = ()) -> str:
    """Return an error of a function with the words that the user types in place of its parameters.

    `margin=1.5` becomes `--margin 1.5`, `margin=` becomes `--margin`, and `normalise=False` becomes `--no-normalise`.
    In the remedy, behind the first semicolon, a setting `train.batch_size=8` of a config becomes `--train.batch-size 8`;
    before it, it may be the config that says so.

    Args:
      words: what is typed for each parameter.
      settings: names of the config's settings that have a section.
    """

    def typed(found: re.Match[str]) -> str:
        name, value = found[1], found[2] or ""
        option = words.get(name) or f"--{name.replace('_', '-')}"
        if value == "False" and not option.startswith("--no-"):
            option = f"--no-{option.removeprefix('--')}"
        return option + (f" {value}" if value not in ("", "True", "False") else "")

    def named(names: Iterable[str], equals: str) -> str:
        # Not within another word, a path or an address.
        return rf"(?<![\w./?&=-])({'|'.join(map(re.escape, names))})(?![\w.]){equals}"

    message = re.sub(named(words, r"=([^\s;:,)]*)"), typed, message)
    what, semicolon, remedy = message.partition("; ")
    return what + semicolon + (re.sub(named(settings, r"(?:=([^\s;:,)]*))?"), typed, remedy) if settings else remedy)


def _shown(action: argparse.Action) -> str:
    long = [word for word in action.option_strings if word.startswith("--")]
    return (long or action.option_strings or [str(action.metavar)])[0]


class Commands(dict[str, Parser]):
    """The parser of each command, in the order of the help; a name of two words is a command's action.

    Without `has_options` the parsers lack the options of functions, whose source then need not be read.
    """

    def __init__(self, has_options: bool = True):
        super().__init__()
        self._has_options = has_options

    def command(self, name: str, description: str, example: str, module: str | None = None) -> Parser:
        """Add a command.

        Args:
          name: the command's name, such as "encode", or "data convert" for an action of the command "data".
          description: a sentence; the list of commands shows its beginning, up to a semicolon, colon or full stop.
          example: one or more lines that can be typed.
          module: the module of jaxretr.cli with the command's `run`; by default the one with the command's name.
        """
        parser = Parser(
            self._has_options, prog=f"jaxretr {name}", description=description, epilog=f"example:\n  {example}"
        )
        command, _, action = name.partition(" ")
        parser.set_defaults(
            command=command,
            module=module or name.replace(" ", "_"),
            taken={},
            **({"action": action} if action else {}),
        )
        self[name] = parser
        return parser

    def actions(self, command: str) -> list[str]:
        """The names of a command's actions."""
        return [name.split()[1] for name in self if name.startswith(f"{command} ")]

    def listed(self, names: Iterable[str], last_word: bool = False) -> str:
        """The commands `names` with one line each, as help shows them."""
        lines = []
        for name in names:
            what = re.split(r"[;.:](?: |$)", " ".join((self[name].description or "").split()))[0]
            shown = f"    {name.split()[-1] if last_word else name:<14}"
            lines += textwrap.wrap(what, 110, initial_indent=shown, subsequent_indent=" " * len(shown))
        return "\n".join(lines)


# ---- values ----------------------------------------------------------------------------------------------------------


def at_least_one(text: str) -> int:
    """Read a whole number from 1."""
    value = int(text) if text.lstrip("+-").isdecimal() and len(text) < 1000 else 0
    if not 1 <= value < 2**31:
        raise argparse.ArgumentTypeError(
            f"'{text[:40]}' is not a whole number from 1{f' to {2**31 - 1}' if value > 0 else ''}"
        )
    return value


def from_zero(text: str) -> int:
    """Read a whole number from 0."""
    if not text.isdecimal() or len(text) > 10 or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a whole number from 0 to {2**31 - 1}")
    return int(text)


def window(what: str, example: str) -> Callable[[str], tuple[int, int]]:
    """Return a reader of FIRST:LAST, counted from 1."""

    def read(text: str) -> tuple[int, int]:
        first, _, last = text.partition(":")
        short = max(len(first), len(last)) < 10
        if not (short and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
            raise argparse.ArgumentTypeError(
                f"'{text}' is not a window of {what}; give FIRST:LAST, from 1, such as {example}"
            )
        return int(first), int(last)

    return read


def names(what: str, example: str) -> Callable[[str], tuple[str, ...]]:
    """Return a reader of names separated by commas, each once."""

    def read(text: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not found:
            raise argparse.ArgumentTypeError(f"no {what} is named; give for instance {example}")
        return found

    return read


metric_names = names("metric", "ndcg@10,recall@100")
splits = names("split", "dev,test")


# ---- options that several commands share -----------------------------------------------------------------------------


MODEL_READER = "jaxretr.models.dual_encoder:DualEncoder.from_pretrained"
SCORER_READER = "jaxretr.models.any_scorer:load_scorer"


def add_model(parser: Parser, *, optional: bool = False, encodes: bool = True) -> None:
    """Add MODEL and the options of reading it; with `encodes` also its precision."""
    parser.add_argument("model", metavar="MODEL", nargs="?" if optional else None, help=MODEL)
    options = parser.options_of(MODEL_READER, to=parser.add_argument_group("of MODEL"))
    options.add("passage_path", option="--passage-model", metavar="MODEL2")
    options.add("tokenizer", metavar="DIR")
    options.add("pooling")
    options.add("normalise", action=argparse.BooleanOptionalAction)
    options.add("passage_template")
    options.add("query_prompt", "passage_prompt", metavar="TEXT")
    options.add("truncate_dim")
    if encodes:
        options.add("dtype", option="--compute", default="auto")


def add_scorer(parser: Parser, to: argparse._ActionsContainer, name: str) -> None:
    """Add the options of reading the scorer that --NAME names; `cli.model.scorer_loader` reads them."""
    to.add_argument(f"--{name}", metavar="SCORER", help=f"{SCORER}: a folder or hub name")
    options = parser.options_of(SCORER_READER, to=to)
    options.add("kind", option=f"--{name}-kind", default=None)
    options.add("max_length", option=f"--{name}-max-length")


def add_rerank(parser: Parser, *functions: str) -> None:
    """Add --rerank and the options that belong to it, for the functions that re-rank."""
    group = parser.add_argument_group(
        "re-ranking",
        "a scorer orders the first hits of each question; it computes as --compute says, with int8 as with auto",
    )
    add_scorer(parser, group, "rerank")
    parser.options_of(*functions, to=group).add("depth")


def add_run(parser: Parser, options: Options) -> None:
    """Add the questions to search for, with the options of the function that searches, and the run to write."""
    options.add("queries", action="store")
    options.add("k", option="-k")
    parser.add_argument("--out", metavar="RUN", required=True, help="the run to write")
    parser.add_argument(
        "--format", choices=("trec", "dpr", "jsonl"), default="trec", help="of the run (default: %(default)s)"
    )
    parser.add_argument(
        "--documents",
        action="store_true",
        help="write documents, each by its best passage, where files:PATH[words=N] cut them: DOCUMENT#3 is of DOCUMENT; "
        "they are fewer than the -k passages",
    )


def check_documents(args: argparse.Namespace) -> None:
    """Raise UsageError for documents in a format that shows their passages' texts."""
    if args.documents and args.format != "trec":
        raise UsageError(f"--format {args.format} shows passages: leave --documents out, or write a TREC run")


def add_processes(parser: Parser) -> None:
    """Add --coordinator, --processes and --process-id."""
    add = parser.add_argument_group(
        "several processes",
        "run the same command on every host, or once for every GPU. On TPU pods, with Slurm and with Open MPI set "
        "JAXRETR_DISTRIBUTED=1 instead: JAX finds the rest",
    ).add_argument
    add("--coordinator", metavar="HOST:PORT", help="address of process 0, which listens there")
    add("--processes", type=int, metavar="N", help="number of processes")
    add("--process-id", type=int, metavar="I", help="number of this process, from 0")
