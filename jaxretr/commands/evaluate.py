"""`jaxretr evaluate`: figures of a run, or of a model on a BEIR folder or a suite of them, and paired tests."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxretr.commands import metric_curves
from jaxretr.commands.evaluate_options import check_typos
from jaxretr.commands.evaluate_report import Measured, Report
from jaxretr.commands.hits import check_output
from jaxretr.commands.measuring import (
    OF_ANSWERS,
    OF_QRELS,
    Run,
    Values,
    cut_of_answers,
    dense_search,
    depth,
    of_answers,
    of_qrels,
    run_of,
    stored_search,
    warn_of_missing,
)
from jaxretr.commands.pictures import check_ending
from jaxretr.data.readers import read_beir, read_corpus, read_qrels, read_questions
from jaxretr.errors import UsageError, UserError
from jaxretr.evaluate import metrics
from jaxretr.evaluate.runs import read_run

Measure = Callable[[Run, Sequence[str], str], Values]
"""From a run, names of metrics and the run's name for errors to the values of every question."""


def run(args: argparse.Namespace) -> None:
    """Prints the figures, and writes and draws what was asked for."""
    check_arguments(args)
    if args.typos is not None or args.typo_queries:
        # Here, since that module and the next one stand on the same functions as this one.
        from jaxretr.commands import evaluate_typos

        evaluate_typos.run(args)
        return
    if args.suite is not None:
        from jaxretr.commands import evaluate_suite

        evaluate_suite.run(args)
        return
    names = args.metrics or (OF_QRELS if args.answers is None else OF_ANSWERS)
    # Everything that can be wrong is found before a model is loaded.
    check_metrics(args, names)
    for path in (args.per_query, args.plot):
        if path is not None:
            check_output(path)
    baselines = {path: read_run(path) for path in args.baseline or ()}
    found, measure = (found_by_model if args.model is not None else found_in_file)(args, names)

    def measured(path: str, each: Run) -> Measured:
        values = measure(each, names, path)
        warn_of_missing(next(iter(values.values())), each, path)
        return Measured(path, each, values)

    systems = [measured(args.model or args.run, found), *(measured(*baseline) for baseline in baselines.items())]
    report = Report.of(systems[0], systems[1:])
    if args.per_query is not None:
        report.write_per_query(Path(args.per_query).expanduser())
    if args.plot is not None:
        place = Path(args.plot).expanduser()
        metric_curves.draw(systems, lambda each, cuts: measure(each, cuts, "the run"), names, place)
    print(report.as_string(args.format or "table"))


def check_arguments(args: argparse.Namespace) -> None:
    """Raises UsageError unless the arguments say exactly one thing to do."""
    check_typos(args)
    if (args.model is None) == (args.run is None):
        raise UsageError("give either --run RUN with --qrels or --answers, or MODEL with --beir DIR or --suite DIR")
    if args.model is not None:
        if (args.beir is None) == (args.suite is None):
            raise UsageError(
                "MODEL needs --beir DIR, a folder with corpus, queries and qrels, or --suite DIR with many"
            )
        if args.qrels or args.answers or args.corpus:
            raise UsageError("--qrels, --answers and --corpus belong to --run; with MODEL the --beir folder has them")
    else:
        if args.beir is not None or args.suite is not None:
            option = "--suite" if args.beir is None else "--beir"
            raise UsageError(f"{option} needs MODEL; a --run is measured with --qrels or --answers")
        if (args.qrels is None) == (args.answers is None):
            raise UsageError("--run needs either --qrels FILE or --answers FILE")
        if args.answers is not None and args.corpus is None:
            raise UsageError("--answers are looked for in the passages' texts: give --corpus FILE as well")
    if args.answers is not None and args.relevance_level != 1:
        raise UsageError("--relevance-level is for judgements; --answers have no grades, leave it out")
    for option, value in (("--index", args.index), ("--plot", args.plot), ("--baseline", args.baseline)):
        if value is not None and args.suite is not None:
            raise UsageError(f"{option} is for one data set; with --suite leave it out")
    if args.index is not None and args.beir is None:
        raise UsageError("--index is what MODEL made of the --beir folder's corpus; a --run needs none")
    if args.out is not None and args.suite is None:
        raise UsageError("--out is where --suite keeps what it has measured; print to a file with > instead")
    if args.plot is not None:
        check_ending("--plot", args.plot)
    if len(args.baseline or ()) != len(set(args.baseline or ())):
        raise UsageError("--baseline names the same run twice; name each once")


def check_metrics(args: argparse.Namespace, names: Sequence[str]) -> None:
    """Raises UsageError for a misspelt metric, or for a picture of metrics without a cut."""
    for name in names:
        (metrics.parse if args.answers is None else cut_of_answers)(name)
    if args.plot is not None:
        metric_curves.deepest_cuts(names)


def found_by_model(args: argparse.Namespace, names: Sequence[str]) -> tuple[Run, Measure]:
    """Searches the BEIR folder with MODEL."""
    store = None
    if args.index is not None:
        from jaxretr.commands.stores import open_store

        store = open_store(args.index)
    beir = read_beir(args.beir, args.split[0])
    search = dense_search(args, beir.corpus) if store is None else stored_search(args, beir.corpus, store)
    return run_of(search, beir.questions, depth(names)), by_qrels(beir.qrels, args.relevance_level)


def found_in_file(args: argparse.Namespace, names: Sequence[str]) -> tuple[Run, Measure]:
    """Reads the run, and what it is measured with."""
    found = read_run(args.run)
    if args.qrels is not None:
        return found, by_qrels(read_qrels(args.qrels), args.relevance_level)
    questions, corpus = read_questions(args.answers), read_corpus(args.corpus)
    if not any(question.answers for question in questions):
        raise UserError(f"{args.answers}: no question has answers; give a file with answers, or --qrels FILE")
    return found, lambda each, names, name: of_answers(questions, corpus, each, names, args.match, name)


def by_qrels(qrels: metrics.Qrels, relevance_level: int) -> Measure:
    """Measures by judgements."""
    return lambda each, names, name: of_qrels(qrels, each, names, relevance_level, name)
