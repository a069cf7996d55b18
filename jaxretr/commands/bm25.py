"""`jaxretr bm25`: the lexical baseline as a run."""

import argparse
import logging

from jaxretr.commands.outputs import write_hits
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.evaluate.runs import Hits
from jaxretr.evaluate.searches import bm25_search
from jaxretr.storage.files import check_output

log = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> None:
    """Indexes the corpus, searches, and writes the run."""
    check_output(args.out)
    questions = read_questions(args.queries, trec_ids=args.format == "trec")
    corpus = read_corpus(args.corpus, trec_ids=args.format == "trec")
    search = bm25_search(corpus, k1=args.k1, b=args.b, stemmer=None if args.stemmer == "none" else args.stemmer)
    scores, ids = search(questions, args.k)
    hits = [
        Hits(question.id, list(found), of_question[: len(found)])
        for question, found, of_question in zip(questions, ids, scores, strict=True)
    ]
    if without := [found.question_id for found in hits if not found.ids]:
        log.warning(
            "%d of %d questions share no word with any passage and have no hits (%s, ...): evaluate counts them as 0",
            *(len(without), len(hits), without[0]),
        )
    write_hits(args.out, args.format, hits, questions, corpus)
