"""How well a scorer orders passages: nDCG@10 when it re-orders BM25's top 32, against BM25's own order.

python benchmarks/scorer_reranking.py SCORER BEIR_FOLDER --split dev --questions 300
"""

import argparse
import random

from jaxretr import QuestionScorer, rerank
from jaxretr.data.readers import read_beir
from jaxretr.evaluate import metrics
from jaxretr.evaluate.significance import compare
from jaxretr.search.bm25 import Bm25Index

DEPTH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scorer")
    parser.add_argument("beir")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--questions", type=int, default=300, help="drawn at random with seed 0")
    parser.add_argument("--max-length", type=int, default=128)
    args = parser.parse_args()

    beir = read_beir(args.beir, args.split)
    questions = random.Random(0).sample(beir.questions, min(args.questions, len(beir.questions)))
    scores, rows = Bm25Index.build(beir.corpus).search([question.text for question in questions], DEPTH)
    bm25 = {
        question.id: {
            beir.corpus.ids[row]: float(score)
            for row, score in zip(found, given, strict=True)
            if row >= 0  # Behind the last hit there is none.
        }
        for question, found, given in zip(questions, rows, scores, strict=True)
    }
    scorer = QuestionScorer.from_pretrained(args.scorer, max_length=args.max_length)
    shuffled = random.Random(1)
    runs = {
        "BM25": bm25,
        "random order": {
            id: dict(zip(hits, shuffled.sample(range(len(hits)), len(hits)), strict=True)) for id, hits in bm25.items()
        },
        "scorer": rerank(scorer, bm25, queries=questions, corpus=beir.corpus, depth=DEPTH),
    }

    qrels = {question.id: beir.qrels[question.id] for question in questions}
    values = {}
    for name, run in runs.items():
        means, by_question = metrics.evaluate(qrels, run, ["ndcg@10", "mrr@10"], per_query=True)
        values[name] = by_question["ndcg@10"]
        print(f"{name:14} nDCG@10 {means['ndcg@10']:.3f}  MRR@10 {means['mrr@10']:.3f}")
    difference = compare(values["scorer"], values["BM25"])
    print(
        f"{len(questions)} questions; scorer - BM25: {difference.difference:+.3f} "
        f"[{difference.low:+.3f}, {difference.high:+.3f}], p = {difference.p_value:.4f}"
    )


if __name__ == "__main__":
    main()
