"""What can be typed behind `jaxretr mine` and `jaxretr mine lexical`."""

import argparse
from collections.abc import Callable

Number = Callable[[str], int]
Ranks = Callable[[str], tuple[int, int]]


def add_options(parser: argparse.ArgumentParser, number: Number, ranks: Ranks) -> None:
    """Adds the options of `jaxretr mine`.

    Args:
      parser: of `jaxretr mine`.
      number: reads a whole number from 1.
      ranks: reads a window of ranks.
    """
    add = parser.add_argument
    add("--corpus", metavar="FILE", required=True, help="passages, as for encode")
    add("--train", metavar="FILE", required=True, help="questions with positives: any training file, or a BEIR folder")
    add("--split", default="train", help="of a BEIR folder's qrels (default: %(default)s)")
    add("--out", metavar="FILE", required=True, help="the training file to write")
    add("--report", metavar="FILE", help="write what was kept and filtered there, as JSON")
    add("--run", metavar="RUN", help="a TREC run to mine from instead of BM25")
    add(
        "--negatives",
        type=number,
        default=30,
        metavar="N",
        help="a question, at most: where fewer hits pass the filters it gets those, or none (default: %(default)s)",
    )
    add("--ranks", type=ranks, default="1:100", metavar="A:B", help="the window to look in (default: %(default)s)")
    add("--depth", type=number, metavar="K", help="passages ranked, for the report (default: B of --ranks)")
    add("--margin", type=float, metavar="X", help="negatives score at most the best positive's score - X")
    add("--relative-margin", type=float, metavar="R", help="and at most its score less the share R of it")
    add(
        "--answers",
        choices=("string", "regex", "none"),
        default="string",
        help="how passages with an answer in their text are recognised and dropped; none: not (default: %(default)s)",
    )
    add(
        "--skip-bad", action="store_true", help="leave out bad rows and positives that the corpus lacks, and count them"
    )
    _add_bm25(parser)


def add_lexical_options(parser: argparse.ArgumentParser, number: Number, ranks: Ranks) -> None:
    """Adds the options of `jaxretr mine lexical`; see `add_options`."""
    add = parser.add_argument
    add(
        "--corpus",
        metavar="FILE",
        required=True,
        action="append",
        help="passages, as for encode; given several times, the rows of the files follow each other",
    )
    add("--out", metavar="DIR", required=True, help="new, empty, or the folder of an interrupted run")
    add(
        "--teacher",
        metavar="TEACHER",
        action="append",
        help="what ranks: bm25, run:FILE (a run of the --queries) or model:MODEL (a dense model, by exact search); "
        "may be given several times, and training draws one for each query (default: bm25)",
    )
    add("--positives", type=number, default=10, metavar="N", help="ranks 1 to N (default: %(default)s)")
    add(
        "--negative-ranks",
        type=ranks,
        default="46:50",
        metavar="A:B",
        help="the ranks of the negatives (default: %(default)s)",
    )
    add("--limit", type=number, metavar="N", help="at most so many queries, drawn evenly from all")
    add("--dev", type=number, metavar="N", help="hold out so many queries, drawn evenly, as a set in DIR/dev")
    add("--seed", type=_from_zero, default=0, metavar="N", help="of all that is drawn (default: %(default)s)")
    add("--skip-bad", action="store_true", help="leave out bad rows, and count them (default: stop at the first)")

    add = parser.add_argument_group("of the queries").add_argument
    add("--queries", metavar="FILE", help="these questions in place of sentences of the corpus")
    add(
        "--sampling",
        choices=("position", "uniform", "all"),
        help="which sentences of a passage: position: max(1, round(sentences / (base (i + 1)))) of the passage at "
        "position i of its document, from 0; uniform: as many of each; all (default: position)",
    )
    add("--base", type=float, metavar="X", help="of --sampling position (default: 1.2)")
    add("--per-passage", type=number, metavar="N", help="of --sampling uniform (default: 1)")
    add(
        "--documents",
        metavar="RULE",
        help="which passages are a document: title: neighbours with the same title; field:NAME: those with the same "
        "value of a field of the corpus's JSON; id:REGEX: those whose ids agree in group 1, as in id:(.+)-\\d+ "
        "(default: title)",
    )
    add = _add_bm25(parser).add_argument
    add("--quantise-lengths", action="store_true", help="round the passages' lengths to one byte, as Lucene does")
    add("--threads", type=number, metavar="N", help="queries ranked at a time (default: the number of processors)")
    add(
        "--shard-passages",
        type=number,
        default=1_000_000,
        metavar="N",
        help="passages whose words are in memory at a time, about 1 GB a million; the result is the same "
        "(default: %(default)s)",
    )


def _add_bm25(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("of BM25")
    group.add_argument("--k1", type=float, help="how fast repeated words saturate (default: 0.9)")
    group.add_argument("--b", type=float, help="how much long passages are held back (default: 0.4)")
    group.add_argument("--stemmer", choices=("english", "none"), help="(default: english)")
    return group


def _from_zero(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 0")
    return int(text)
