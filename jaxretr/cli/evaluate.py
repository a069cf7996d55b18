"""`jaxretr evaluate`: metrics of a run, or of a model on a BEIR folder or a suite, with or without typos."""

import argparse
import logging
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from jaxretr.cli.model import model_loader, scorer_loader
from jaxretr.cli.parsing import MODEL_READER, Commands, add_model, add_rerank, given, metric_names, names, splits
from jaxretr.config import TypoProfile
from jaxretr.evaluate.tables import FORMATS
from jaxretr.runtime.errors import UsageError

if TYPE_CHECKING:
    from jaxretr.evaluate.report import Report
    from jaxretr.evaluate.suite import SuiteReport
    from jaxretr.evaluate.typo_report import TypoReport

log = logging.getLogger(__name__)

_FUNCTIONS = (
    "jaxretr.evaluate.evaluating:evaluate_run",
    "jaxretr.evaluate.evaluating:evaluate_model",
    "jaxretr.evaluate.suite:evaluate_suite",
    "jaxretr.evaluate.typo_robustness:evaluate_typos",
)


def add_commands(commands: Commands) -> None:
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
    options = parser.options_of(*_FUNCTIONS)
    options.add("run", required=False, metavar="RUN")
    options.add("qrels", "answers")
    parser.options_of(_FUNCTIONS[0]).add("corpus", "queries", "match")
    options.add("beir", required=False, metavar="DIR")
    parser.add_argument(
        "--split",
        type=splits,
        default=("test",),
        metavar="NAME",
        help="split of the BEIR folder's qrels; several, separated by commas, with typos; with --suite the first that a "
        "folder has (default: test)",
    )
    options.add("suite", required=False, metavar="DIR")
    options.add("out", "keep", metavar="DIR")
    options.add("index", metavar="PLACE")
    options.add("baselines", option="--baseline", metavar="RUN2")
    options.add("metrics", type=metric_names, action="store", metavar="NAMES")
    options.add("relevance_level", "batch_size")
    add = parser.add_argument
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

    add_rerank(parser, *_FUNCTIONS)
    group = parser.add_argument_group("typos: MODEL with the original questions and with typos in them")
    add = group.add_argument
    add(
        "--typos",
        type=names("profile", "dictionary,spacing, or nothing for all"),
        nargs="?",
        const=(),
        metavar="PROFILES",
        help=f"make typos with these profiles, separated by commas: {', '.join(get_args(TypoProfile))} (default: all)",
    )
    options = parser.options_of(_FUNCTIONS[3], to=group)
    options.add("draws", "seed", "keyboard", "misspellings")
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
    options.add("bm25", option="--no-bm25", help="leave out BM25, which is measured by default")


# The things to measure: a --run, or MODEL on a --beir folder, on a --suite of them, or with typos in the questions.
_RUN, _BEIR, _SUITE, _TYPOS = "--run", "--beir", "--suite", "--typos"


def _readers(args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the things to measure that read each option: those whose function takes it."""
    readers = {"plot": [_RUN, _BEIR, _TYPOS], "rerank": [_RUN, _BEIR], "and_model": [_TYPOS]}
    for subject, function in zip((_RUN, _BEIR, _SUITE, _TYPOS), _FUNCTIONS, strict=True):
        for dest in args.taken[function].values():
            readers.setdefault(dest, []).append(subject)
    return readers


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
    read = (
        args.run,
        args.qrels,
        args.answers,
        args.corpus,
        args.queries,
        args.baseline,
        args.misspellings,
        args.typo_queries,
        args.beir,
        args.suite,
    )
    for path in (args.per_query, args.plot):
        if path is not None:
            check_output(path, *read)
    if (
        args.per_query is not None
        and args.plot is not None
        and Path(args.per_query).resolve() == Path(args.plot).resolve()
    ):
        raise UsageError(f"--per-query {args.per_query} is --plot as well; give the plot a file of its own")
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
    for name, readers in _readers(args).items():
        if subject not in readers and getattr(args, name) is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} belongs to {' or '.join(readers)}, not to {subject}; leave it out"
            )
    for name in ("draws", "seed", "keyboard", "misspellings"):
        if args.typos is None and getattr(args, name) is not None:
            raise UsageError(f"--{name} is for the typos that --typos generates: give --typos as well, or leave it out")
    scorer_loader(args, "rerank", "depth")
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
    return evaluate_run(
        **given(args, "evaluate_run"), dtype=args.compute, rerank=scorer_loader(args, "rerank", "depth")
    )


def _of_model(args: argparse.Namespace) -> "Report":
    from jaxretr.evaluate.evaluating import evaluate_model

    _warn_of_bm25_file(args)
    return evaluate_model(
        model_loader(args),
        **given(args, "evaluate_model"),
        split=args.split[0],
        dtype=args.compute,
        rerank=scorer_loader(args, "rerank", "depth"),
    )


def _of_suite(args: argparse.Namespace) -> "SuiteReport":
    from jaxretr.evaluate.suite import evaluate_suite

    return evaluate_suite(model_loader(args), **given(args, "evaluate_suite"), splits=args.split)


def _of_typos(args: argparse.Namespace) -> "TypoReport":
    from jaxretr.evaluate.typo_robustness import evaluate_typos

    # Options that say how to read MODEL; the other models are read as they are.
    of_first = {**dict.fromkeys(args.taken[MODEL_READER].values()), "compute": args.compute}
    others = [argparse.Namespace(**{**vars(args), **of_first, "model": model}) for model in args.and_model or ()]
    queries: defaultdict[str, list[str]] = defaultdict(list)
    for kind, path in args.typo_queries or ():
        queries[kind].append(path)
    return evaluate_typos(
        [model_loader(each) for each in (args, *others)],
        **given(args, "evaluate_typos"),
        splits=args.split,
        profiles=() if args.typos is None else args.typos or get_args(TypoProfile),
        queries=queries,
    )


def _warn_of_bm25_file(args: argparse.Namespace) -> None:
    if "bm25" in (args.baseline or ()) and Path("bm25").is_file():
        log.warning("--baseline bm25 is BM25 over the corpus; write ./bm25 for the file of that name")


def _named_file(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name.strip() and equals and path) or not name.isprintable():
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=FILE; give for instance people=typed.jsonl")
    return name.strip(), path
