"""`jaxretr mine`: hard negatives for training questions."""

import argparse
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from jaxretr.cli.parsing import Commands, Parser, add_precision, add_scorer, at_least_one, window
from jaxretr.runtime.errors import UsageError

if TYPE_CHECKING:
    from jaxretr.indexes.bm25.words import Bm25Settings
    from jaxretr.models.any_scorer import Scorer

log = logging.getLogger(__name__)

ranks = window("ranks", "1:100")


def add_commands(commands: Commands) -> None:
    """Add the command."""
    parser = commands.command(
        "mine",
        "Hard negatives for training questions: passages that BM25 (or a run) ranks high, filtered, with a report.\n"
        "Writes Tevatron jsonl with ids of the corpus, one row per question. For training sets of a model that\n"
        "imitates BM25 (SPAR), see jaxretr mine lexical; for an ART run's teacher, jaxretr mine scores.",
        "jaxretr mine --corpus corpus.jsonl --train nq --out mined.jsonl --report mined.json\n"
        "  jaxretr mine --corpus corpus.jsonl --train train.jsonl --run dense.trec --relative-margin 0.05 --out mined.jsonl\n"
        "  jaxretr mine --corpus corpus.jsonl --train nq --scorer reranker --max-score-share 0.95 --out mined.jsonl",
    )
    add = parser.add_argument
    add("--corpus", metavar="FILE", required=True, help="passages, as for encode")
    add("--train", metavar="FILE", required=True, help="questions with positives: any training file, or a BEIR folder")
    add("--split", default="train", help="of a BEIR folder's qrels (default: %(default)s)")
    add("--out", metavar="FILE", required=True, help="the training file to write")
    add("--report", metavar="FILE", help="write a JSON report of what was kept and filtered")
    add("--run", metavar="RUN", help="a run to mine from instead of BM25")
    add(
        "--negatives",
        type=at_least_one,
        default=30,
        metavar="N",
        help="negatives per question, at most; fewer if fewer hits pass the filters (default: %(default)s)",
    )
    add(
        "--ranks",
        type=ranks,
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
    add_bm25(parser)
    add = parser.add_argument_group(
        "scorer", "judges what passes the other filters; its raw scores are written, for --distillation.loss"
    ).add_argument
    add("--scorer", metavar="MODEL", help="a cross-encoder, causal language model or T5: a folder or hub name")
    add(
        "--max-score-share",
        type=float,
        metavar="S",
        help="negatives have at most this share of the best positive's probability: sigmoid(logit) of a cross-encoder, "
        "exp(mean log-likelihood) of a language model; NV-Retriever's is 0.95",
    )
    add("--score-margin", type=float, metavar="X", help="negatives have at most the best positive's raw score - X")
    add_scorer(add, "scorer-")
    add_precision(add, default=None)


def run(args: argparse.Namespace) -> None:
    """Mines, writes the training file, and prints the numbers of filtered passages."""
    from jaxretr.cli.outputs import say_written
    from jaxretr.mining.mining import mine
    from jaxretr.runtime.storage.files import atomic_write, check_output

    check_output(args.out)
    if args.report is not None:
        check_output(args.report)
        if os.path.realpath(args.report) == os.path.realpath(args.out):
            raise UsageError(f"--report {args.report} is --out as well; give the report a file of its own")
    names = (
        "max_score_share",
        "score_margin",
        "corpus",
        "split",
        "run",
        "negatives",
        "ranks",
        "depth",
        "margin",
        "relative_margin",
        "skip_bad",
    )
    mined = mine(
        args.train,
        **{name: vars(args)[name] for name in names},
        answers=None if args.answers == "none" else args.answers,
        bm25=bm25_settings(args),
        scorer=_scorer_loader(args),
    )
    mined.save(args.out)
    if args.report is not None:
        with atomic_write(args.report) as file:
            file.write(mined.to_json() + "\n")
    for line in mined.table().splitlines():
        log.info("%s", line)
    say_written(args.out, f"{len(mined.negatives.values)} negatives of {len(mined)} questions")


def _scorer_loader(args: argparse.Namespace) -> "Callable[[], Scorer] | None":
    if args.scorer is None:
        for name in ("scorer_kind", "scorer_max_length", "compute"):
            if getattr(args, name) is not None:
                raise UsageError(
                    f"--{name.replace('_', '-')} is for --scorer MODEL: give that as well, or leave it out"
                )
        return None

    def load() -> "Scorer":
        from jaxretr.models.any_scorer import load_scorer

        return load_scorer(
            args.scorer,
            kind=args.scorer_kind or "auto",
            max_length=args.scorer_max_length,
            dtype=args.compute or "auto",
        )

    return load


# ---- BM25's options, of `mine lexical` as well -----------------------------------------------------------------------


def add_bm25(parser: Parser) -> argparse._ArgumentGroup:
    """Add --k1, --b and --stemmer."""
    group = parser.add_argument_group("of BM25")
    group.add_argument("--k1", type=float, help="saturation of repeated words (default: 0.9)")
    group.add_argument("--b", type=float, help="length normalisation (default: 0.4)")
    group.add_argument("--stemmer", choices=("english", "none"), help="(default: english)")
    return group


def bm25_settings(args: argparse.Namespace) -> "Bm25Settings | None":
    """BM25's settings, if any option of BM25 is given; otherwise None."""
    from jaxretr.indexes.bm25.words import Bm25Settings

    quantise_lengths: bool = vars(args).get("quantise_lengths", False)
    if args.k1 is args.b is args.stemmer is None and not quantise_lengths:
        return None
    return Bm25Settings(
        k1=0.9 if args.k1 is None else args.k1,
        b=0.4 if args.b is None else args.b,
        stemmer=None if args.stemmer == "none" else "english",
        quantise_lengths=quantise_lengths,
    )
