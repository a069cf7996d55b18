"""Command-line options of `mine` and `mine lexical`."""

import argparse

from jaxretr.commands.parsing import Commands, at_least_one, from_zero, window

_ranks = window("ranks", "1:100")


def add_commands(commands: Commands) -> None:
    """Adds `mine` and `mine lexical`."""
    _add_negatives(commands)
    _add_lexical(commands)


def _add_negatives(commands: Commands) -> None:
    parser = commands.command(
        "mine",
        "Hard negatives for training questions: passages that BM25 (or a run) ranks high, filtered, with a report.\n"
        "Writes Tevatron jsonl with ids of the corpus, one row per question. For training sets of a model that\n"
        "imitates BM25 (SPAR), see jaxretr mine lexical.",
        "jaxretr mine --corpus corpus.jsonl --train nq --out mined.jsonl --report mined.json\n"
        "  jaxretr mine --corpus corpus.jsonl --train train.jsonl --run dense.trec --relative-margin 0.05 --out mined.jsonl",
    )
    add = parser.add_argument
    add("--corpus", metavar="FILE", required=True, help="passages, as for encode")
    add("--train", metavar="FILE", required=True, help="questions with positives: any training file, or a BEIR folder")
    add("--split", default="train", help="of a BEIR folder's qrels (default: %(default)s)")
    add("--out", metavar="FILE", required=True, help="the training file to write")
    add("--report", metavar="FILE", help="write a JSON report of what was kept and filtered")
    add("--run", metavar="RUN", help="a TREC run to mine from instead of BM25")
    add(
        "--negatives",
        type=at_least_one,
        default=30,
        metavar="N",
        help="negatives per question, at most; fewer if fewer hits pass the filters (default: %(default)s)",
    )
    add(
        "--ranks",
        type=_ranks,
        default="1:100",
        metavar="A:B",
        help="window of ranks to draw from (default: %(default)s)",
    )
    add("--depth", type=at_least_one, metavar="K", help="passages to rank, for the report (default: B of --ranks)")
    add("--margin", type=float, metavar="X", help="negatives score at most the best positive's score - X")
    add("--relative-margin", type=float, metavar="R", help="and at most (1 - R) times that score")
    add(
        "--answers",
        choices=("string", "regex", "none"),
        default="string",
        help="how passages that contain an answer are recognised, and dropped; none: keep them (default: %(default)s)",
    )
    add("--skip-bad", action="store_true", help="skip and count bad rows, and positives that the corpus lacks")
    _add_bm25(parser)


def _add_lexical(commands: Commands) -> None:
    parser = commands.command(
        "mine lexical",
        "A training set for a dense model that imitates BM25 (or a run, or another model): sentences of the corpus or\n"
        "given queries, with the first ranks as positives and some later ones as negatives, as ids.",
        "jaxretr mine lexical --corpus psgs_w100.tsv --out wiki_lexical --dev 5000\n"
        "  jaxretr mine lexical --corpus psgs_w100.tsv --queries paq.tsv --teacher bm25 --teacher model:runs/dpr --out paq",
    )
    add = parser.add_argument
    add(
        "--corpus",
        metavar="FILE",
        required=True,
        action="append",
        help="passages, as for encode; repeat for further files of the corpus",
    )
    add("--out", metavar="DIR", required=True, help="a new or empty folder, or that of an interrupted run")
    add(
        "--teacher",
        metavar="TEACHER",
        action="append",
        help="ranks the passages: bm25, run:FILE (a run of the --queries) or model:MODEL (a dense model, by exact "
        "search); repeat for several, of which training draws one for each query (default: bm25)",
    )
    add("--positives", type=at_least_one, default=10, metavar="N", help="ranks 1 to N (default: %(default)s)")
    add(
        "--negative-ranks",
        type=_ranks,
        default="46:50",
        metavar="A:B",
        help="the ranks of the negatives (default: %(default)s)",
    )
    add("--limit", type=at_least_one, metavar="N", help="draw at most this many queries, evenly")
    add("--dev", type=at_least_one, metavar="N", help="hold out this many queries, drawn evenly, as a set in DIR/dev")
    add("--seed", type=from_zero, default=0, metavar="N", help="of all draws (default: %(default)s)")
    add("--skip-bad", action="store_true", help="skip and count bad rows (default: stop at the first)")

    add = parser.add_argument_group("of the queries").add_argument
    add("--queries", metavar="FILE", help="these questions instead of sentences of the corpus")
    add(
        "--sampling",
        choices=("position", "uniform", "all"),
        help="sentences per passage; position: max(1, round(sentences / (base (i + 1)))) of the passage at position i of "
        "its document, from 0; uniform: the same number of each; all (default: position)",
    )
    add("--base", type=float, metavar="X", help="base for --sampling position (default: 1.2)")
    add("--per-passage", type=at_least_one, metavar="N", help="number for --sampling uniform (default: 1)")
    add(
        "--documents",
        metavar="RULE",
        help="which passages are a document: title: neighbours with the same title; field:NAME: those with the same "
        "value of a field of the corpus's JSON; id:REGEX: those whose ids agree in group 1, as in id:(.+)-\\d+ "
        "(default: title)",
    )
    add = _add_bm25(parser).add_argument
    add("--quantise-lengths", action="store_true", help="round passage lengths to one byte, like Lucene")
    add(
        "--threads",
        type=at_least_one,
        metavar="N",
        help="queries ranked in parallel (default: the number of processors)",
    )
    add(
        "--shard-passages",
        type=at_least_one,
        default=1_000_000,
        metavar="N",
        help="passages in memory at a time, about 1 GB per million; does not change the result (default: %(default)s)",
    )


def _add_bm25(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("of BM25")
    group.add_argument("--k1", type=float, help="saturation of repeated words (default: 0.9)")
    group.add_argument("--b", type=float, help="length normalisation (default: 0.4)")
    group.add_argument("--stemmer", choices=("english", "none"), help="(default: english)")
    return group
