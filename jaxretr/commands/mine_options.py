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
        "Writes Tevatron jsonl with ids of the corpus, one row per question; training sets of ids for a\n"
        "model that imitates BM25 (SPAR) are made by jaxretr mine lexical.",
        "jaxretr mine --corpus corpus.jsonl --train nq --out mined.jsonl --report mined.json\n"
        "  jaxretr mine --corpus corpus.jsonl --train train.jsonl --run dense.trec --relative-margin 0.05 --out mined.jsonl",
    )
    add = parser.add_argument
    add("--corpus", metavar="FILE", required=True, help="passages, as for encode")
    add("--train", metavar="FILE", required=True, help="questions with positives: any training file, or a BEIR folder")
    add("--split", default="train", help="of a BEIR folder's qrels (default: %(default)s)")
    add("--out", metavar="FILE", required=True, help="the training file to write")
    add("--report", metavar="FILE", help="write what was kept and filtered there, as JSON")
    add("--run", metavar="RUN", help="a TREC run to mine from instead of BM25")
    add(
        "--negatives",
        type=at_least_one,
        default=30,
        metavar="N",
        help="a question, at most: where fewer hits pass the filters it gets those, or none (default: %(default)s)",
    )
    add("--ranks", type=_ranks, default="1:100", metavar="A:B", help="the window to look in (default: %(default)s)")
    add("--depth", type=at_least_one, metavar="K", help="passages ranked, for the report (default: B of --ranks)")
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
    add("--positives", type=at_least_one, default=10, metavar="N", help="ranks 1 to N (default: %(default)s)")
    add(
        "--negative-ranks",
        type=_ranks,
        default="46:50",
        metavar="A:B",
        help="the ranks of the negatives (default: %(default)s)",
    )
    add("--limit", type=at_least_one, metavar="N", help="at most so many queries, drawn evenly from all")
    add("--dev", type=at_least_one, metavar="N", help="hold out so many queries, drawn evenly, as a set in DIR/dev")
    add("--seed", type=from_zero, default=0, metavar="N", help="of all that is drawn (default: %(default)s)")
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
    add("--per-passage", type=at_least_one, metavar="N", help="of --sampling uniform (default: 1)")
    add(
        "--documents",
        metavar="RULE",
        help="which passages are a document: title: neighbours with the same title; field:NAME: those with the same "
        "value of a field of the corpus's JSON; id:REGEX: those whose ids agree in group 1, as in id:(.+)-\\d+ "
        "(default: title)",
    )
    add = _add_bm25(parser).add_argument
    add("--quantise-lengths", action="store_true", help="round the passages' lengths to one byte, as Lucene does")
    add(
        "--threads", type=at_least_one, metavar="N", help="queries ranked at a time (default: the number of processors)"
    )
    add(
        "--shard-passages",
        type=at_least_one,
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
