"""`jaxretr evaluate`: figures of a run, or of a model on a BEIR folder, and paired tests against a baseline."""

import argparse
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxretr.commands.evaluate_options import check_typos
from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_beir, read_corpus, read_qrels, read_questions
from jaxretr.errors import UsageError, UserError
from jaxretr.evaluate import metrics
from jaxretr.evaluate.answers import first_hits
from jaxretr.evaluate.runs import read_run
from jaxretr.evaluate.significance import Comparison, compare
from jaxretr.files import atomic_write

log = logging.getLogger(__name__)

Run = Mapping[str, Mapping[str, float]]
Search = Callable[[Sequence[Question], int], tuple[np.ndarray, Sequence[Sequence[str]]]]
"""From B questions and k to scores float32 [B, k] and ids of passages."""
Values = dict[str, dict[str, float]]
"""{metric: {question id: value}}"""

OF_QRELS = ("ndcg@10", "mrr@10", "recall@100")
_OF_ANSWERS = ("acc@1", "acc@5", "acc@20", "acc@100")


def run(args: argparse.Namespace) -> None:
    """Prints the figures, and writes those of each question if asked to."""
    check_arguments(args)
    if args.typos is not None or args.typo_queries:
        # Here, since that module stands on the functions of this one.
        from jaxretr.commands import evaluate_typos

        evaluate_typos.run(args)
        return
    baseline = None if args.baseline is None else read_run(args.baseline)
    if args.model is not None:
        beir = read_beir(args.beir, args.split[0])
        names = args.metrics or OF_QRELS
        found = run_of(dense_search(args, beir.corpus), beir.questions, depth(names))
        values, compared = (of_qrels(beir.qrels, each, names) for each in (found, baseline))
    elif args.qrels is not None:
        found, qrels = read_run(args.run), read_qrels(args.qrels)
        values, compared = (of_qrels(qrels, each, args.metrics or OF_QRELS) for each in (found, baseline))
    else:
        found, questions, corpus = read_run(args.run), read_questions(args.answers), read_corpus(args.corpus)
        if not any(question.answers for question in questions):
            raise UserError(f"{args.answers}: no question has answers; give a file with answers, or --qrels FILE")
        names = args.metrics or _OF_ANSWERS
        values, compared = (of_answers(questions, corpus, each, names, args.match) for each in (found, baseline))
    assert values is not None
    warn_of_missing(next(iter(values.values())), found, str(args.run or args.model))
    comparisons = None if compared is None else {name: compare(values[name], compared[name]) for name in values}
    if args.per_query is not None:
        write_per_query(args.per_query, values)
    print(as_json(values, comparisons) if args.json else as_table(values, comparisons))


def check_arguments(args: argparse.Namespace) -> None:
    """Raises UsageError unless the arguments say exactly one thing to do."""
    check_typos(args)
    if (args.model is None) == (args.run is None):
        raise UsageError("give either --run RUN with --qrels or --answers, or MODEL with --beir DIR")
    if args.model is not None:
        if args.beir is None:
            raise UsageError("MODEL needs --beir DIR, a folder with corpus, queries and qrels")
        if args.qrels or args.answers or args.corpus:
            raise UsageError("--qrels, --answers and --corpus belong to --run; with MODEL the --beir folder has them")
    else:
        if args.beir is not None:
            raise UsageError("--beir needs MODEL; a --run is measured with --qrels or --answers")
        if (args.qrels is None) == (args.answers is None):
            raise UsageError("--run needs either --qrels FILE or --answers FILE")
        if args.answers is not None and args.corpus is None:
            raise UsageError("--answers are looked for in the passages' texts: give --corpus FILE as well")


def dense_search(args: argparse.Namespace, corpus: Corpus) -> Search:
    """Encodes the corpus once; the returned function encodes questions and searches exactly."""
    from jaxretr.commands.model import encode, load_model
    from jaxretr.search.exact import ExactIndex

    encoder = load_model(args)
    index = ExactIndex(encode(encoder, corpus, args.batch_size), corpus.ids)
    return lambda questions, k: index.search(encode(encoder, questions, args.batch_size), k)


def run_of(search: Search, questions: Sequence[Question], k: int) -> dict[str, dict[str, float]]:
    """Searches a BEIR folder's corpus.

    Returns:
      {question id: {passage id: score}} with k passages a question.
    """
    # BEIR leaves out a passage that is the question itself (ArguAna, Quora): one more is looked for in its place.
    scores, ids = search(questions, k + 1)
    run = {}
    for question, names, values in zip(questions, ids, scores.tolist(), strict=True):
        found = [pair for pair in zip(names, values, strict=True) if pair[0] != question.id]
        run[question.id] = dict(found[:k])
    return run


def depth(names: tuple[str, ...]) -> int:
    """The number of passages that these metrics look at; at least 100, and 1000 for a metric without a cut."""
    cuts = [re.fullmatch(r"[^@]+@(\d+)", name) for name in names]
    return max(100, *(int(cut[1]) if cut else 1000 for cut in cuts))


def of_qrels(qrels: metrics.Qrels, run: Run | None, names: tuple[str, ...]) -> Values | None:
    """The metrics of each question, None without a run."""
    if run is None:
        return None
    if not qrels.keys() & run.keys():
        raise UserError(
            f"the run and the judgements have no question in common, for instance '{next(iter(run))}' and "
            f"'{next(iter(qrels))}'; give the judgements of the run's questions"
        )
    return metrics.evaluate(qrels, run, names, per_query=True)[1]


def of_answers(
    questions: list[Question], corpus: Corpus, run: Run | None, names: tuple[str, ...], match: str
) -> Values | None:
    """Acc@k of each question, 0 or 1; None without a run."""
    if run is None:
        return None
    cuts = {}
    for name in names:
        parsed = re.fullmatch(r"acc@([1-9]\d*)", name.lower())
        if parsed is None:
            raise UsageError(f"{name}: with --answers the metrics are acc@1, acc@20 and so on; others need --qrels")
        cuts[name] = int(parsed[1])
    if not run.keys() & {question.id for question in questions}:
        raise UserError(
            f"the run and the answers have no question in common, for instance '{next(iter(run))}' and "
            f"'{questions[0].id}'; give the answers of the run's questions"
        )
    texts = [ranked_texts(run.get(question.id, {}), corpus, max(cuts.values())) for question in questions]
    hits = first_hits([question.answers for question in questions], texts, match)  # pyright: ignore[reportArgumentType]
    return {
        name: {question.id: float(hit is not None and hit < cut) for question, hit in zip(questions, hits, strict=True)}
        for name, cut in cuts.items()
    }


def ranked_texts(scores: Mapping[str, float], corpus: Corpus, k: int) -> list[str]:
    """The texts of the k best passages, ranked as trec_eval ranks them."""
    single = metrics.single_precision(scores).tolist()
    ranked = [name for _, name in sorted(zip(single, scores, strict=True), reverse=True)[:k]]
    missing = next((name for name in ranked if name not in corpus), None)
    if missing is not None:
        raise UserError(f"passage '{missing}' of the run is not in the corpus; give the corpus that was searched")
    return [corpus.texts[corpus.row(name)] for name in ranked]


def warn_of_missing(values: Mapping[str, float], run: Run, name: str) -> None:
    """Says how many questions count as 0 because the run lacks them."""
    missing = [question_id for question_id in values if question_id not in run]
    if missing:
        log.warning(
            "%s lacks %d of %d questions (%s, ...): they count as 0", name, len(missing), len(values), missing[0]
        )


def write_per_query(path: str, values: Values) -> None:
    """Writes question-id and the metrics, by tabs, under a header."""
    with atomic_write(Path(path).expanduser()) as file:
        file.write("\t".join(["question-id", *values]) + "\n")
        for question_id in next(iter(values.values())):
            file.write("\t".join([question_id, *(f"{values[name][question_id]:.6g}" for name in values)]) + "\n")


def as_json(values: Values, comparisons: dict[str, Comparison] | None) -> str:
    """All figures as one JSON object."""
    content: dict[str, object] = {
        "questions": len(next(iter(values.values()))),
        "metrics": {name: metrics.mean(of_questions) for name, of_questions in values.items()},
    }
    if comparisons is not None:
        content["baseline"] = {name: comparison.as_json() for name, comparison in comparisons.items()}
    return json.dumps(content, indent=1)


def as_table(values: Values, comparisons: dict[str, Comparison] | None) -> str:
    """All figures as a table for people."""
    lines = [f"{'questions':<16}{len(next(iter(values.values()))):>10}"]
    if comparisons is None:
        return "\n".join(
            [*lines, *(f"{name:<16}{metrics.mean(of_questions):>10.4f}" for name, of_questions in values.items())]
        )
    lines.append(
        f"{'':<16}{'run':>10}{'baseline':>10}{'difference':>12}{'95% interval':>20}{'p':>10}{'p (t-test)':>12}"
        f"{'better/equal/worse':>20}"
    )
    for name, c in comparisons.items():
        interval = f"[{c.low:+.4f}, {c.high:+.4f}]"
        counts = f"{c.wins}/{c.ties}/{c.losses}"
        lines.append(
            f"{name:<16}{c.mean_a:>10.4f}{c.mean_b:>10.4f}{c.difference:>+12.4f}{interval:>20}{c.p_value:>10.4f}"
            f"{c.t_test_p_value:>12.4f}{counts:>20}"
        )
    return "\n".join(lines)
