"""`jaxretr evaluate`: metrics of a run, or of a model on a BEIR folder or a suite, with or without typos."""

import argparse
import logging
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from jaxretr.cli import reranking
from jaxretr.cli.parsing import OF_MODEL, Commands, add_model, add_rerank, at_least_one, metric_names, names, splits
from jaxretr.cli.typos import add_sources
from jaxretr.config import TypoProfile
from jaxretr.evaluate.tables import FORMATS
from jaxretr.runtime.errors import UsageError

if TYPE_CHECKING:
    from jaxretr.evaluate.report import Report
    from jaxretr.evaluate.suite import SuiteReport
    from jaxretr.evaluate.typo_report import TypoReport

log = logging.getLogger(__name__)


def add_commands(commands: Commands) -> None:
    """Add the command."""
    parser = commands.command(
        "evaluate",
        "Measure a run (recall, MRR, nDCG or Acc@k), or a model on a BEIR folder or a suite of them; paired tests with\n"
        "--baseline. With --typos, measure what typos in the questions cost a model, next to BM25 and other models.",
        "jaxretr evaluate --run run.trec --qrels qrels/test.tsv --baseline bm25.trec --plot curves.pdf\n"
        "  jaxretr evaluate --run run.trec --answers questions.tsv --corpus corpus.tsv\n"
        "  jaxretr evaluate runs/art --beir scifact --split test\n"
        "  jaxretr evaluate runs/art --beir scifact --rerank cross-encoder/ms-marco-MiniLM-L6-v2 --depth 100\n"
        "  jaxretr evaluate runs/art --suite beir --out runs/art/beir --format latex\n"
        "  jaxretr evaluate runs/dpr --beir nq --split dev,test --typos --and-model runs/robust --plot typos.png\n"
        "  jaxretr evaluate runs/dpr --beir nq --typos dictionary --typo-queries people=typed.jsonl",
    )
    add_model(parser, optional=True)
    add = parser.add_argument
    add("--run", metavar="RUN", help="a run of search or bm25, or results in MS MARCO's or DPR's format")
    add("--qrels", metavar="FILE", help="judgements in BEIR's or TREC's format")
    add("--answers", metavar="FILE", help="questions with answers: Acc@k by DPR's matching, in the texts of --corpus")
    add(
        "--corpus",
        metavar="FILE",
        help="the passages of the run, for --answers, --rerank and baselines that search; with --queries, a passage that is "
        "the question itself does not count as found",
    )
    add(
        "--queries",
        metavar="FILE",
        help="the questions of the run, for --qrels with --corpus, or a run without their ids (DPR's)",
    )
    add("--match", choices=("string", "regex"), default="string", help="how answers are matched (default: %(default)s)")
    add("--beir", metavar="DIR", help="a folder with corpus, queries and qrels, for MODEL")
    add(
        "--split",
        type=splits,
        default=("test",),
        metavar="NAME",
        help="split of the BEIR folder's qrels; several, separated by commas, with typos; with --suite the first that a "
        "folder has (default: test)",
    )
    add("--suite", metavar="DIR", help="for MODEL: every BEIR folder below DIR, and the average")
    add(
        "--out",
        metavar="DIR",
        help="with --suite: folder for the results of each data set; an interrupted suite resumes there",
    )
    add(
        "--index", metavar="PLACE", help="with --beir: an index of its corpus made with MODEL, of any kind (see search)"
    )
    add(
        "--keep",
        metavar="DIR",
        help="with --beir: keep the embeddings of its corpus there and reuse them; an interrupted evaluation resumes "
        "with them",
    )
    add(
        "--baseline",
        metavar="RUN2",
        action="append",
        help="a run to compare with, question by question, or a model, as a folder or hub name; bm25 is BM25 (write ./bm25 "
        "for a file of that name). Models and BM25 search the same corpus: with --run, give --corpus and --queries. Repeat "
        "for more; all tests are Holm-corrected together",
    )
    add(
        "--metrics",
        type=metric_names,
        metavar="NAMES",
        help="separated by commas: ndcg, mrr, map, recall, precision, success, recall_cap, holes with @k, rprec, bpref (default: "
        "ndcg@10,mrr@10,recall@100, or acc@1,acc@5,acc@20,acc@100 with --answers)",
    )
    add(
        "--relevance-level",
        type=at_least_one,
        metavar="N",
        help="the lowest grade that counts as relevant, except for ndcg (default: 1)",
    )
    add("--per-query", metavar="FILE", help="write the values of every question to this tab-separated file")
    add(
        "--plot",
        metavar="FILE",
        help="plot the metrics against k for the run and the baselines; with typos, bars of clean queries and of each "
        "kind of typos: a .png, .pdf or .svg",
    )
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--format", choices=FORMATS, help="output format (default: table)")
    forms.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")

    add_rerank(parser)
    add = parser.add_argument_group("typos: MODEL with the original questions and with typos in them").add_argument
    add(
        "--typos",
        type=names("profile", "dictionary,spacing, or nothing for all"),
        nargs="?",
        const=(),
        metavar="PROFILES",
        help=f"make typos with these profiles, separated by commas: {', '.join(get_args(TypoProfile))} (default: all)",
    )
    add("--draws", type=at_least_one, metavar="N", help="query variants per question and profile (default: 10)")
    add("--seed", type=int, metavar="N", help="of the typos (default: 0)")
    add_sources(add)
    add(
        "--typo-queries",
        type=_named_file,
        action="append",
        metavar="NAME=FILE",
        help="other questions with typos and the same ids, as one more kind; repeat for another kind, or with the same "
        "NAME for another draw",
    )
    add(
        "--and-model",
        action="append",
        metavar="MODEL2",
        help="another model for the same table, compared with MODEL; repeat for more. It shares MODEL's --compute and "
        "--batch-size",
    )
    add("--no-bm25", action="store_true", default=None, help="leave out BM25, which is measured by default")


# The things to measure: a --run, or MODEL on a --beir folder, on a --suite of them, or with typos in the questions.
_RUN, _BEIR, _SUITE, _TYPOS = "--run", "--beir", "--suite", "--typos"

# For each option that not all of these read: which do, and why the others refuse it. The parser has no defaults for
# them, so that an option that would be ignored is seen.
_OF_A_RUN = "belongs to --run; with MODEL the --beir folder has it"
_OF_GENERATED = "is for the typos that --typos generates: give --typos as well, or leave it out"
_OF_TYPOS = "is for metrics with typos: give --typos or --typo-queries as well, or leave it out"
_READ_BY: dict[str, tuple[tuple[str, ...], str]] = {
    "qrels": ((_RUN,), _OF_A_RUN),
    "answers": ((_RUN,), _OF_A_RUN),
    "corpus": ((_RUN,), _OF_A_RUN),
    "queries": ((_RUN,), _OF_A_RUN),
    "index": ((_BEIR,), "is for MODEL's embeddings of the --beir folder's corpus; leave it out"),
    "keep": ((_BEIR,), "is for MODEL's embeddings of the --beir folder's corpus; leave it out"),
    "baseline": ((_RUN, _BEIR), "is for one data set and its original questions; leave it out"),
    "rerank": ((_RUN, _BEIR), "is for one data set and its original questions; leave it out"),
    "plot": ((_RUN, _BEIR, _TYPOS), "is for one data set; leave it out"),
    "relevance_level": ((_RUN, _BEIR, _SUITE), "is for the original questions; leave it out"),
    "out": ((_SUITE,), "is where --suite keeps its results; print to a file with > instead"),
    "draws": ((_TYPOS,), _OF_GENERATED),
    "seed": ((_TYPOS,), _OF_GENERATED),
    "keyboard": ((_TYPOS,), _OF_GENERATED),
    "misspellings": ((_TYPOS,), _OF_GENERATED),
    "and_model": ((_TYPOS,), _OF_TYPOS),
    "no_bm25": ((_TYPOS,), _OF_TYPOS),
}


def run(args: argparse.Namespace) -> None:
    """Measure, write and plot as the arguments ask, and print the report."""
    subject = check_arguments(args)
    from jaxretr.evaluate import measuring, plots
    from jaxretr.runtime.storage.files import check_output

    # Find every error of the arguments before a model is loaded.
    if args.plot is not None:
        plots.check_ending(args.plot)
        if subject in (_RUN, _BEIR):
            plots.deepest_cuts(args.metrics or (measuring.OF_QRELS if args.answers is None else measuring.OF_ANSWERS))
    for path in (args.per_query, args.plot):
        if path is not None:
            check_output(path)
    report = {_RUN: _of_run, _BEIR: _of_model, _SUITE: _of_suite, _TYPOS: _of_typos}[subject](args)
    if args.per_query is not None:
        report.write_per_query(args.per_query)
    if args.plot is not None:
        report.plot(args.plot)
    form = args.format or "table"
    print(report.to_json() if form == "json" else report.table(form))


def check_arguments(args: argparse.Namespace) -> str:
    """Return the thing to measure.

    Raises:
      UsageError: the arguments do not name exactly one thing to measure, or an option would be ignored.
    """
    if args.typos and args.model is None:
        raise UsageError(f"--typos took '{','.join(args.typos)}' for its profiles: write MODEL before --typos")
    typos = "--typos" if args.typos is not None else "--typo-queries" if args.typo_queries else None
    if typos and args.model is None:
        raise UsageError(f"{typos} needs MODEL with --beir DIR: the questions are searched again with typos in them")
    if typos and args.suite is not None:
        raise UsageError(f"--suite does not go with {typos}; leave it out")
    if (args.model is None) == (args.run is None):
        raise UsageError("give either --run RUN with --qrels or --answers, or MODEL with --beir DIR or --suite DIR")
    if args.model is None and (option := "--beir" if args.beir else "--suite" if args.suite else None):
        raise UsageError(f"{option} needs MODEL; a --run is measured with --qrels or --answers")
    if args.model is not None and (args.beir is None) == (args.suite is None):
        raise UsageError("MODEL needs --beir DIR, a folder with corpus, queries and qrels, or --suite DIR with many")
    if args.run is not None and (args.qrels is None) == (args.answers is None):
        raise UsageError("--run needs either --qrels FILE or --answers FILE")
    if args.answers is not None and args.corpus is None:
        raise UsageError("--answers are matched in the texts of the passages: give --corpus FILE as well")
    subject = _TYPOS if typos else _SUITE if args.suite is not None else _BEIR if args.model is not None else _RUN
    for name, (readers, why) in _READ_BY.items():
        ignored = subject not in readers or (why == _OF_GENERATED and args.typos is None)
        if ignored and getattr(args, name) is not None:
            if typos and why != _OF_GENERATED:
                why = f"does not go with {typos}; leave it out"
            raise UsageError(f"--{name.replace('_', '-')} {why}")
    reranking.options(args)
    if args.rerank is not None and args.qrels is not None and None in (args.corpus, args.queries):
        raise UsageError("--rerank reads the texts of a run: give --corpus FILE and --queries FILE as well")
    if subject in (_RUN, _BEIR) and len(args.split) > 1:
        raise UsageError(
            f"--split {','.join(args.split)}: name one split; several, by commas, go with typos or --suite only"
        )
    return subject


def _of_run(args: argparse.Namespace) -> "Report":
    from jaxretr.evaluate.evaluating import evaluate_run

    _warn_of_bm25_file(args)
    options = ("qrels", "answers", "corpus", "queries", "match", "batch_size")
    return evaluate_run(args.run, **{name: vars(args)[name] for name in options}, **_shared(args))


def _of_model(args: argparse.Namespace) -> "Report":
    from jaxretr.cli.model import model_loader
    from jaxretr.evaluate.evaluating import evaluate_model
    from jaxretr.evaluate.measuring import OF_QRELS

    _warn_of_bm25_file(args)
    options = ("beir", "index", "keep", "batch_size")
    return evaluate_model(
        model_loader(args),
        **{name: vars(args)[name] for name in options},
        split=args.split[0],
        **{**_shared(args), "metrics": args.metrics or OF_QRELS},
    )


def _of_suite(args: argparse.Namespace) -> "SuiteReport":
    from jaxretr.cli.model import model_loader
    from jaxretr.evaluate.measuring import OF_QRELS
    from jaxretr.evaluate.suite import evaluate_suite

    options = ("suite", "out", "batch_size")
    return evaluate_suite(
        model_loader(args),
        **{name: vars(args)[name] for name in options},
        splits=args.split,
        metrics=args.metrics or OF_QRELS,
        relevance_level=args.relevance_level or 1,
    )


def _of_typos(args: argparse.Namespace) -> "TypoReport":
    from jaxretr.cli.model import model_loader
    from jaxretr.evaluate.measuring import OF_QRELS
    from jaxretr.evaluate.typo_robustness import evaluate_typos

    # Options that say how to read MODEL; the other models are read as they are.
    of_first = dict.fromkeys(OF_MODEL)
    others = [argparse.Namespace(**{**vars(args), **of_first, "model": model}) for model in args.and_model or ()]
    queries: defaultdict[str, list[str]] = defaultdict(list)
    for kind, path in args.typo_queries or ():
        queries[kind].append(path)
    return evaluate_typos(
        [model_loader(each) for each in (args, *others)],
        beir=args.beir,
        splits=args.split,
        profiles=() if args.typos is None else args.typos or get_args(TypoProfile),
        draws=args.draws or 10,
        seed=args.seed or 0,
        keyboard=args.keyboard,
        misspellings=args.misspellings,
        queries=queries,
        metrics=args.metrics or OF_QRELS,
        bm25=not args.no_bm25,
        batch_size=args.batch_size,
    )


def _shared(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments that measuring a run and measuring a model on one data set share."""
    return {
        "baselines": args.baseline or (),
        "metrics": args.metrics,
        "relevance_level": args.relevance_level or 1,
        "dtype": args.compute,
        **reranking.options(args),
    }


def _warn_of_bm25_file(args: argparse.Namespace) -> None:
    if "bm25" in (args.baseline or ()) and Path("bm25").is_file():
        log.warning("--baseline bm25 is BM25 over the corpus; write ./bm25 for the file of that name")


def _named_file(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name.strip() and equals and path) or not name.isprintable():
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=FILE; give for instance people=typed.jsonl")
    return name.strip(), path
