"""How well a scorer orders passages, and how fast: nDCG@10 when it re-orders BM25's first hits, against BM25's own order.

    python benchmarks/scorer_reranking.py SCORER BEIR_FOLDER --split dev --questions 300
    python benchmarks/scorer_reranking.py smollm2 notebooks/medquad --split test --questions 128 --depth 8 --rounds 3

With --rounds a causal language model orders them so many times more, in turns: reading a passage once for all of its questions,
as it does, and once for each. Prints how many times faster the first is, in each round.
"""

import argparse
import random
import time
from unittest.mock import patch

from encode import spread
from machine import describe

from jaxretr import load_scorer, rerank
from jaxretr.data.readers import read_beir
from jaxretr.evaluate import metrics
from jaxretr.evaluate.significance import compare
from jaxretr.indexes.bm25 import Bm25Index
from jaxretr.models.scorers import shared_passages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scorer", help="a T5, a cross-encoder or a causal language model")
    parser.add_argument("beir")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--questions", type=int, default=300, help="drawn at random with seed 0")
    parser.add_argument("--depth", type=int, default=32, help="hits that are re-ordered")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=0, help="of reading shared passages once, and again")
    args = parser.parse_args()

    beir = read_beir(args.beir, args.split)
    questions = random.Random(0).sample(beir.questions, min(args.questions, len(beir.questions)))
    scores, rows = Bm25Index.build(beir.corpus).search([question.text for question in questions], args.depth)
    bm25 = {
        question.id: {
            beir.corpus.ids[row]: float(score)
            for row, score in zip(found, given, strict=True)
            if row >= 0  # Behind the last hit there is none.
        }
        for question, found, given in zip(questions, rows, scores, strict=True)
    }
    scorer = load_scorer(args.scorer, max_length=args.max_length)

    def timed(shared: bool = True) -> tuple[float, dict[str, dict[str, float]]]:
        """Return the seconds that it takes, and the run."""
        began = time.monotonic()
        with patch.object(shared_passages, "_WORTH", shared_passages._WORTH if shared else 1):
            ordered = rerank(scorer, bm25, queries=questions, corpus=beir.corpus, depth=args.depth)
        return time.monotonic() - began, ordered

    seconds, ordered = timed()
    shuffled = random.Random(1)
    runs = {
        "BM25": bm25,
        "random order": {
            id: dict(zip(hits, shuffled.sample(range(len(hits)), len(hits)), strict=True)) for id, hits in bm25.items()
        },
        "scorer": ordered,
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
    print(
        f"{len(questions) / seconds:.3g} questions a second of {args.depth} hits each, compiling included; {describe()}"
    )
    if args.rounds:
        timed(shared=False)  # The first time compiles.
        pairs = [(id, hit) for id, hits in bm25.items() for hit in list(hits)[: args.depth]]
        ratios = []
        for number in range(args.rounds):
            taken = {shared: timed(shared) for shared in (True, False)[:: 1 if number % 2 else -1]}
            ratios.append(taken[False][0] / taken[True][0])
        apart = max(abs(taken[True][1][id][hit] - taken[False][1][id][hit]) for id, hit in pairs)
        print(
            f"{len(pairs)} pairs of {len({hit for _, hit in pairs})} passages: reading a passage once is {spread(ratios)} times "
            f"as fast; scores differ by at most {apart:.1g}"
        )


if __name__ == "__main__":
    main()
