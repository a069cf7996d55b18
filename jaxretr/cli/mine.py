"""`jaxretr mine`: hard negatives for training questions."""

import argparse
import logging
import os
from typing import TYPE_CHECKING, get_args

from jaxretr.cli.parsing import Commands, Parser, add_scorer, given
from jaxretr.config import EncodeDtype
from jaxretr.runtime.errors import UsageError

if TYPE_CHECKING:
    from jaxretr.indexes.bm25.words import Bm25Settings

log = logging.getLogger(__name__)

MINE = "jaxretr.mining.mining:mine"


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "mine",
        "Hard negatives for training questions: passages that BM25, a model or a run ranks high, filtered, with a report.\n"
        "Writes Tevatron jsonl with ids of the corpus, one row per question. For training sets of a model that\n"
        "imitates BM25 (SPAR), see jaxretr mine lexical; for an ART run's teacher, jaxretr mine scores.",
        "jaxretr mine --corpus corpus.jsonl --train nq --out mined.jsonl --report mined.json\n"
        "  jaxretr mine --corpus corpus.jsonl --train train.jsonl --run dense.trec --relative-margin 0.05 --out mined.jsonl\n"
        "  jaxretr mine --corpus corpus.jsonl --train nq --model runs/dpr --relative-margin 0.05 --out mined.jsonl\n"
        "  jaxretr mine --corpus corpus.jsonl --train nq --scorer reranker --max-score-share 0.95 --out mined.jsonl",
    )
    options = parser.options_of(MINE)
    options.add("corpus", "train", "split")
    parser.add_argument("--out", metavar="FILE", required=True, help="the training file to write")
    parser.add_argument("--report", metavar="FILE", help="write a JSON report of what was kept and filtered")
    options.add("run", metavar="RUN")
    options.add("model", metavar="MODEL")
    options.add("negatives", "ranks", "depth", "margin", "relative_margin", "answers", "skip_bad")
    add_bm25(parser)
    group = parser.add_argument_group(
        "scorer", "judges what passes the other filters; its raw scores are written, for --distillation.loss"
    )
    add_scorer(parser, group, "scorer")
    parser.options_of(MINE, to=group).add("max_score_share", "score_margin", "relabel_margin")
    help = "precision of the scorer, and of --model; int8: of --model alone (default: auto)"
    group.add_argument("--compute", choices=get_args(EncodeDtype), help=help)


def run(args: argparse.Namespace) -> None:
    """Mines, writes the training file, and prints the numbers of filtered passages."""
    from jaxretr.cli.model import scorer_loader
    from jaxretr.cli.outputs import say_written
    from jaxretr.mining.mining import mine
    from jaxretr.runtime.storage.files import atomic_write, check_output

    if args.report is not None:
        check_output(args.report, args.corpus, args.train, args.run)
        if os.path.realpath(args.report) == os.path.realpath(args.out):
            raise UsageError(f"--report {args.report} is --out as well; give the report a file of its own")
    own_precision = () if args.model else ("compute",)
    found = given(args, "mine")
    if args.model:  # It brings JAX along.
        from jaxretr.models.combined_encoder import load_encoder
        from jaxretr.models.hub.dual_encoder_folder import check_finished

        check_finished(args.model)
        found["model"] = lambda: load_encoder(args.model, dtype=args.compute or "auto")
    mined = mine(**found, out=args.out, bm25=bm25_settings(args), scorer=scorer_loader(args, "scorer", *own_precision))
    if args.report is not None:
        with atomic_write(args.report) as file:
            file.write(mined.to_json() + "\n")
    for line in mined.table().splitlines():
        log.info("%s", line)
    say_written(args.out, f"{len(mined.negatives.values)} negatives of {len(mined)} questions")


# ---- BM25's options, of `mine lexical` as well -----------------------------------------------------------------------


def add_bm25(parser: Parser, *more: str) -> None:
    """Add --k1, --b and --stemmer, and further settings."""
    options = parser.options_of("jaxretr.indexes.bm25.words:Bm25Settings", to=parser.add_argument_group("of BM25"))
    options.add("k1", "b", "stemmer", *more)


def bm25_settings(args: argparse.Namespace) -> "Bm25Settings | None":
    """BM25's settings, if any option of BM25 is given; otherwise None."""
    from jaxretr.indexes.bm25.words import Bm25Settings

    settings = given(args, "Bm25Settings")
    return Bm25Settings(**settings) if settings else None
