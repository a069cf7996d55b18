"""`jaxretr evaluate`: figures of a run, or of a model on a BEIR folder or a suite of them, and paired tests."""

import argparse
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxretr.commands import metric_curves
from jaxretr.commands.evaluate_options import check_baselines, check_typos
from jaxretr.commands.pictures import check_ending
from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_beir, read_corpus, read_qrels, read_questions
from jaxretr.errors import UsageError, UserError
from jaxretr.evaluate import metrics
from jaxretr.evaluate.beir import BM25, Measure, by_qrels, model_run, read_baselines, report_of, with_bm25
from jaxretr.evaluate.measuring import OF_ANSWERS, OF_QRELS, Run, cut_of_answers, depth, of_answers
from jaxretr.evaluate.runs import read_run
from jaxretr.storage.files import check_output

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Attributes:
      find: gives its run.
      measure: the values of any run.
      corpus, questions: that BM25 searches; empty where it is not asked for.
    """

    find: Callable[[], Run]
    measure: Measure
    corpus: Corpus
    questions: Sequence[Question]


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
    baselines = read_baselines(args.baseline or ())
    if BM25 in (args.baseline or ()) and Path(BM25).is_file():
        log.warning("--baseline bm25 is BM25 over the corpus; write ./bm25 for the file of that name")
    subject = (of_model if args.model is not None else of_file)(args, names)
    found = subject.find()
    compared = with_bm25(baselines, subject.corpus, subject.questions, depth(names))
    report = report_of([(args.model or args.run, found), *compared], subject.measure, names)
    if args.per_query is not None:
        report.write_per_query(Path(args.per_query).expanduser())
    if args.plot is not None:
        place = Path(args.plot).expanduser()
        measure = subject.measure
        metric_curves.draw(report.systems, lambda each, cuts: measure(each, cuts, "the run"), names, place)
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
        if args.qrels or args.answers or args.corpus or args.queries:
            raise UsageError(
                "--qrels, --answers, --corpus and --queries belong to --run; with MODEL the --beir folder has them"
            )
    else:
        if args.beir is not None or args.suite is not None:
            option = "--suite" if args.beir is None else "--beir"
            raise UsageError(f"{option} needs MODEL; a --run is measured with --qrels or --answers")
        if (args.qrels is None) == (args.answers is None):
            raise UsageError("--run needs either --qrels FILE or --answers FILE")
        if args.answers is not None and args.corpus is None:
            raise UsageError("--answers are looked for in the passages' texts: give --corpus FILE as well")
        check_baselines(args)
    if args.answers is not None and args.relevance_level != 1:
        raise UsageError("--relevance-level is for judgements; --answers have no grades, leave it out")
    for option, value in (
        ("--index", args.index),
        ("--keep", args.keep),
        ("--plot", args.plot),
        ("--baseline", args.baseline),
    ):
        if value is not None and args.suite is not None:
            raise UsageError(f"{option} is for one data set; with --suite leave it out")
    if args.beir is None and (args.index is not None or args.keep is not None):
        option = "--index" if args.keep is None else "--keep"
        raise UsageError(f"{option} is for what MODEL makes of the --beir folder's corpus; a --run needs none")
    if args.index is not None and args.keep is not None:
        raise UsageError("--index is there already and --keep writes what is missing; give one of them")
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


def of_model(args: argparse.Namespace, names: Sequence[str]) -> Subject:
    """Reads the BEIR folder, which is searched with MODEL."""
    from jaxretr.commands.model import load_model
    from jaxretr.stores.opening import open_store

    index = None if args.index is None else open_store(args.index)
    data = read_beir(args.beir, args.split[0])

    def find() -> Run:
        return model_run(
            *(load_model(args), data, depth(names)),
            name=str(args.model),
            where=str(args.beir),
            index=index,
            keep=args.keep,
            keep_option="--keep",
            batch_size=args.batch_size,
        )

    return Subject(find, by_qrels(data.qrels, args.relevance_level), data.corpus, data.questions)


def of_file(args: argparse.Namespace, names: Sequence[str]) -> Subject:
    """Reads the run, and what it is measured with."""
    found = read_run(args.run)
    if args.qrels is not None:
        qrels = read_qrels(args.qrels)
        # Both are there for BM25 alone.
        questions = [] if args.queries is None else read_questions(args.queries)
        corpus = Corpus([], [], []) if args.corpus is None else read_corpus(args.corpus)
        judged = [question for question in questions if question.id in qrels]
        if questions and not judged:
            raise UserError(f"{args.queries}: {args.qrels} judges none of its questions; check that the ids agree")
        return Subject(lambda: found, by_qrels(qrels, args.relevance_level), corpus, judged)
    questions, corpus = read_questions(args.answers), read_corpus(args.corpus)
    if not any(question.answers for question in questions):
        raise UserError(f"{args.answers}: no question has answers; give a file with answers, or --qrels FILE")
    return Subject(
        lambda: found,
        lambda run, names, name: of_answers(questions, corpus, run, names, args.match, name),
        corpus,
        questions,
    )
