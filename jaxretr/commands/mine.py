"""`jaxretr mine`: hard negatives for training questions, from BM25 or from a run."""

import argparse
import json
import logging
import math
import os
from collections.abc import Iterator, Sequence

import numpy as np

from jaxretr.commands.outputs import say_written
from jaxretr.data.corpus import Corpus, read_corpus
from jaxretr.data.questions import Question
from jaxretr.data.training_set import TrainingSet, load_training_set
from jaxretr.errors import UsageError, UserError
from jaxretr.evaluate.runs import read_trec
from jaxretr.mine.negatives import REASONS, Filters, Mined, MiningReport, Ranking, mine, rankings_of_run
from jaxretr.progress import Progress
from jaxretr.search.bm25 import Bm25Index
from jaxretr.storage.files import atomic_write, check_output

log = logging.getLogger(__name__)

# Questions between two signs of life.
_BLOCK = 256


def run(args: argparse.Namespace) -> None:
    """Mines, writes the training file, and says what was filtered."""
    filters = Filters(
        negatives=args.negatives,
        first_rank=args.ranks[0],
        last_rank=args.ranks[1],
        margin=args.margin,
        relative_margin=args.relative_margin,
        answers=None if args.answers == "none" else args.answers,
    )
    depth = filters.last_rank if args.depth is None else args.depth
    if depth < filters.last_rank:
        raise UsageError(f"--depth {depth} ends before the ranks {filters.first_rank}:{filters.last_rank}; raise it")
    of_bm25 = {"--k1": args.k1, "--b": args.b, "--stemmer": args.stemmer}
    superfluous = next((name for name, value in of_bm25.items() if value is not None), None)
    if args.run is not None and superfluous:
        raise UsageError(f"{superfluous} is BM25's, but --run gives the ranking; leave one of them out")
    check_output(args.out)
    if args.report is not None:
        check_output(args.report)
        if os.path.realpath(args.report) == os.path.realpath(args.out):
            raise UsageError(f"--report {args.report} is --out as well; give the report a file of its own")

    corpus = read_corpus(args.corpus)
    training = load_training_set(args.train, corpus, split=args.split, skip_bad=args.skip_bad)
    questions, positives = _known_to_the_corpus(args.train, training, args.skip_bad)
    if args.run is None:
        log.info("indexing %d passages", len(corpus))
        given = {name.removeprefix("--"): value for name, value in of_bm25.items() if value is not None}
        if given.get("stemmer") == "none":
            given["stemmer"] = None
        rankings = _rankings_of_bm25(Bm25Index.build(corpus, **given), questions, positives, depth)
    else:
        rankings = _rankings_of_run_file(args.run, questions, positives, corpus, depth)

    report = MiningReport(min(depth, len(corpus)))
    with atomic_write(args.out, "wb") as file, Progress(len(questions), "question", "mined") as progress:
        mined_of_all = mine(questions, positives, rankings, corpus, filters)
        for number, mined in enumerate(mined_of_all, start=1):
            file.write(_line(questions[number - 1], positives[number - 1], mined, corpus))
            report.add(mined)
            if number % _BLOCK == 0 or number == len(questions):
                progress.advance((number - 1) % _BLOCK + 1)
    found = report.as_dict()
    if args.report is not None:
        with atomic_write(args.report) as file:
            file.write(json.dumps(found, indent=2) + "\n")
    _log_report(found, filters)
    say_written(args.out, f"{found['negatives']['total']} negatives of {found['questions']} questions")


def _known_to_the_corpus(path: str, training: TrainingSet, skip_bad: bool) -> tuple[list[Question], list[list[int]]]:
    """Returns the questions and their positives' rows, without what has no id in the corpus."""
    rows = [training.positives[number].tolist() for number in range(len(training))]
    unknown = [number for number, of_one in enumerate(rows) if max(of_one) >= training.corpus_rows]
    if unknown:
        problem = (
            f"{path}: {len(unknown)} questions have a positive passage that the corpus lacks "
            f"(the first: '{training.questions[unknown[0]].id}')"
        )
        if not skip_bad:
            raise UserError(
                f"{problem}, and what is mined is written as ids of the corpus; "
                "give the corpus that the file was made from, or leave them out with --skip-bad"
            )
        rows = [[row for row in of_one if row < training.corpus_rows] for of_one in rows]
        left = sum(not of_one for of_one in rows)
        log.warning("%s; those positives are left out, and %d questions that have no other", problem, left)
        if left == len(rows):
            raise UserError(f"{path}: no positive passage is in the corpus; give the corpus that it was made from")
    kept = [number for number, of_one in enumerate(rows) if of_one]
    return [training.questions[number] for number in kept], [rows[number] for number in kept]


def _rankings_of_bm25(
    index: Bm25Index, questions: Sequence[Question], positives: Sequence[Sequence[int]], depth: int
) -> Iterator[Ranking]:
    for start in range(0, len(questions), _BLOCK):
        texts = [question.text for question in questions[start : start + _BLOCK]]
        wanted = positives[start : start + _BLOCK]
        scores, rows, of_positives = index.search_and_score(texts, depth, wanted, threads=os.cpu_count() or 1)
        yield from map(Ranking, rows, scores, of_positives)


def _rankings_of_run_file(
    path: str, questions: Sequence[Question], positives: Sequence[Sequence[int]], corpus: Corpus, depth: int
) -> Iterator[Ranking]:
    found = read_trec(path)
    without = [question.id for question in questions if question.id not in found]
    if len(without) == len(questions):
        raise UserError(
            f"{path}: has hits for none of the {len(questions)} training questions; check that the ids agree"
        )
    if without:
        log.warning(
            "%s: no hits for %d of %d questions (the first: '%s')", path, len(without), len(questions), without[0]
        )
    row_of_id = {id: row for row, id in enumerate(corpus.ids)}
    for question in questions:
        for id in found.get(question.id, ()):
            if id not in row_of_id:
                raise UserError(
                    f"{path}:{_line_of_hit(path, question.id, id)}: passage '{id}' is not in the corpus; "
                    "give the corpus that was searched"
                )
    return rankings_of_run(found, questions, positives, row_of_id, depth)


def _line_of_hit(path: str, question_id: str, passage_id: str) -> int:
    wanted = question_id.encode(), passage_id.encode()
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            fields = line.removeprefix(b"\xef\xbb\xbf").split()
            if fields and (fields[0], fields[2]) == wanted:
                return number
    raise AssertionError(f"{path} has changed while it was read")


def _line(question: Question, positives: Sequence[int], mined: Mined, corpus: Corpus) -> bytes:
    """Returns one row of Tevatron's second format; it reads the fields it knows and leaves the scores alone."""
    record = {
        "query_id": question.id,
        "query_text": question.text,
        "query_image": None,
        "positive_document_ids": [corpus.ids[row] for row in positives],
        "negative_document_ids": [corpus.ids[row] for row in mined.rows.tolist()],
        "positive_scores": _numbers(mined.positive_scores),
        "negative_scores": _numbers(mined.scores),
    }
    try:
        return json.dumps(record, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, as JSON input may hold: escaped, it survives
        return json.dumps(record).encode() + b"\n"


def _numbers(scores: np.ndarray) -> list[float | None]:
    """Returns float32 scores with the 9 digits that give them back; null where one is not known or infinite."""
    return [float(f"{score:.9g}") if math.isfinite(score) else None for score in scores.tolist()]


def _log_report(found: dict, filters: Filters) -> None:
    negatives = found["negatives"]
    full = negatives["questions_by_number"].get(str(filters.negatives), 0)
    log.info(
        "%d questions, %.2f negatives each: %d have all %d, %d have none",
        *(found["questions"], negatives["mean"], full, filters.negatives, found["questions_without_negatives"]),
    )
    for reason, meaning in REASONS.items():
        log.info("dropped: %d passages %s (%s)", found["dropped"][reason], meaning, reason)
    top = found["positive_in_top"]
    log.info("%.1f %% of the questions have a positive among the best %d", 100 * top["share"], top["depth"])
    if found["questions_without_positive_score"]:
        log.warning(
            "the positives of %d questions have no score in the run: with a margin nothing is kept for them",
            found["questions_without_positive_score"],
        )
