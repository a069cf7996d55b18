"""The parts of the commands' options: parsers, types of values, and the options that several commands share.

Nothing here or in the options of a command imports JAX or numpy, so that help appears at once.
"""

import argparse
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, get_args

from jaxretr.config import EncodeDtype, EngineName, Pooling, ScorerKind
from jaxretr.runtime.errors import UsageError

MODEL = "a run directory, an exported folder, a Hugging Face, sentence-transformers or DPR folder, or a hub name"


class Parser(argparse.ArgumentParser):
    """A parser that reports a mistake as one line; argparse would print the usage first and end the process."""

    def __init__(self, **settings: Any):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        # `cli.main` reads it wherever it is given; it is here for the help.
        self.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show an error's traceback")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see: {self.prog} --help")

    @property
    def options(self) -> list[str]:
        """All options that the parser knows."""
        return list(self._option_string_actions)

    def taken_once(self, name: str) -> str | None:
        """The destination that an option sets, the same for all its names; None for an option that may be repeated."""
        action = self._option_string_actions[name]
        return None if isinstance(action, argparse._AppendAction | argparse._HelpAction) else action.dest


class Commands(dict[str, Parser]):
    """The parser of each command, in the order of the help; a name of two words is a command's action."""

    def command(self, name: str, description: str, example: str, module: str | None = None) -> Parser:
        """Add a command.

        Args:
          name: the command's name, such as "encode", or "data convert" for an action of the command "data".
          description: a sentence; the list of commands shows its beginning, up to a semicolon, colon or full stop.
          example: one or more lines that can be typed.
          module: the module of jaxretr.cli with the command's `run`; by default the one with the command's name.
        """
        parser = Parser(
            prog=f"jaxretr {name}",
            description=description,
            epilog=f"example:\n  {example}",
        )
        command, _, action = name.partition(" ")
        parser.set_defaults(
            command=command, module=module or name.replace(" ", "_"), **({"action": action} if action else {})
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


OF_MODEL = (
    *("passage_model", "tokenizer", "pooling", "normalise", "passage_template"),
    *("query_prompt", "passage_prompt", "truncate_dim"),
)
"""The options that say how to read MODEL, by their names in the parsed arguments."""


def add_model(parser: Parser, *, optional: bool = False, encodes: bool = True) -> None:
    """Add MODEL and the options of reading it; with `encodes` also those of computing."""
    parser.add_argument("model", metavar="MODEL", nargs="?" if optional else None, help=MODEL)
    add = parser.add_argument_group("of MODEL").add_argument
    add("--passage-model", metavar="MODEL2", help="the passage encoder, if it is a folder of its own (DPR's)")
    add("--tokenizer", metavar="DIR", help="a folder or hub name, if MODEL has no tokenizer")
    add("--pooling", choices=get_args(Pooling), help="if the folder does not state it (default: cls)")
    add(
        "--normalise", action=argparse.BooleanOptionalAction, help="vectors of length 1 (default: what the folder says)"
    )
    template = "[CLS] title [SEP] text, or title and text joined by a space (default: what the folder says)"
    add("--passage-template", choices=("pair", "joined"), help=template)
    prompt = "put before every {}: a text, or the name of a prompt of MODEL's (default: what MODEL says; '' for none)"
    add("--query-prompt", metavar="TEXT", help=prompt.format("question"))
    add("--passage-prompt", metavar="TEXT", help=prompt.format("passage"))
    add(
        "--truncate-dim",
        type=at_least_one,
        metavar="N",
        help="keep the first N dimensions of the embeddings, for models trained with Matryoshka losses",
    )
    if encodes:
        add_compute(add)


def add_compute(add: Callable[..., Any]) -> None:
    """Add --compute and --batch-size."""
    add_precision(add)
    add("--batch-size", type=at_least_one, metavar="N", help="texts per batch (default: chosen for the device)")


def add_precision(add: Callable[..., Any], default: EncodeDtype | None = "auto") -> None:
    """Add --compute; without a default, None means that it was not given, and stands for auto."""
    add(
        "--compute",
        choices=get_args(EncodeDtype),
        default=default,
        help=f"precision of the matmuls; auto: bfloat16 where this machine runs it faster (default: {default or 'auto'})",
    )


def add_engine(add: Callable[..., Any], help: str) -> None:
    """Add --engine, for a certified index."""
    add("--engine", choices=get_args(EngineName), help=help)


def add_scorer(add: Callable[..., Any], prefix: str = "") -> None:
    """Add --kind and --max-length, with a prefix where the scorer is not the command's MODEL."""
    add(
        f"--{prefix}kind",
        choices=get_args(ScorerKind),
        default=None if prefix else "auto",
        help="t5: log p(question | passage); causal_lm: the same by a decoder; cross_encoder: also a decoder that answers "
        "yes or no without saying so in its folder, such as Qwen3-Reranker (default: auto, what the folder says)",
    )
    add(
        f"--{prefix}max-length",
        type=at_least_one,
        metavar="N",
        help="tokens of a question and a passage together (default: a cross-encoder's own limit, 512 for others)",
    )


def add_rerank(parser: Parser) -> None:
    """Add --rerank and the options that belong to it; `commands.reranking.options` reads them."""
    add = parser.add_argument_group(
        "re-ranking", "a scorer orders the first hits of each question; it computes as --compute says"
    ).add_argument
    add("--rerank", metavar="SCORER", help="a cross-encoder, causal language model or T5: a folder or hub name")
    add(
        "--depth",
        type=at_least_one,
        metavar="N",
        help="hits of a question that are re-ranked; those behind them are dropped (default: 100)",
    )
    add_scorer(add, "rerank-")


def add_run(parser: Parser) -> None:
    """Add the questions to search for and the run to write."""
    add = parser.add_argument
    add("--queries", metavar="FILE", required=True, help="BEIR jsonl or folder, DPR tsv, id<TAB>text, or .txt lines")
    add("-k", type=at_least_one, default=100, help="passages per question (default: %(default)s)")
    add("--out", metavar="RUN", required=True, help="the run to write")
    add("--format", choices=("trec", "dpr", "jsonl"), default="trec", help="of the run (default: %(default)s)")


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
