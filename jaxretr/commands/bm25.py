"""`jaxretr bm25`: the lexical baseline as a run."""

import argparse
import logging
import os

import numpy as np

from jaxretr.commands.hits import check_output, write_hits
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.evaluate.runs import Hits
from jaxretr.progress import Progress
from jaxretr.search.bm25 import Bm25Index

log = logging.getLogger(__name__)

# Questions between two signs of life.
_BLOCK = 256


def run(args: argparse.Namespace) -> None:
    """Indexes the corpus, searches, and writes the run."""
    check_output(args.out)
    questions = read_questions(args.queries)
    corpus = read_corpus(args.corpus)
    log.info("indexing %d passages", len(corpus))
    index = Bm25Index.build(corpus, k1=args.k1, b=args.b, stemmer=None if args.stemmer == "none" else args.stemmer)
    scores: list[np.ndarray] = []
    rows: list[np.ndarray] = []
    with Progress(len(questions), "question", "searched") as progress:
        for start in range(0, len(questions), _BLOCK):
            texts = [question.text for question in questions[start : start + _BLOCK]]
            found = index.search(texts, args.k, threads=os.cpu_count() or 1)
            scores.extend(found[0])
            rows.extend(found[1])
            progress.advance(len(texts))
    hits = [
        Hits(question.id, [corpus.ids[row] for row in found], of_question)
        for question, found, of_question in zip(questions, rows, scores, strict=True)
    ]
    write_hits(args.out, args.format, hits, questions, corpus)
