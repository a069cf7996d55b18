"""Mining hard negatives with a dense model: `jaxretr.mine(model=)` against sentence-transformers' mine_hard_negatives.

    pip install sentence-transformers datasets
    python benchmarks/mine.py --data wiki_qa --model models/minilm     # a BEIR folder and a sentence-transformers folder

Each side runs in a process of its own, by turns: files read, all questions and passages encoded, searched exactly, the
first four negatives of 100 hits a question that score 0.05 less than its positive (no first rank: sentence-transformers counts the
ranks of what the margin leaves). Prints the seconds of each round without imports and the loading of the model, by the clock and
of all cores together (which other work on the machine hardly changes), the process's peak of memory, and the share of the
questions' negatives that both found.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

NEGATIVES, LAST, MARGIN = 4, 100, 0.05


def texts(corpus: Any) -> dict[str, str]:
    """Id -> title and text, as the model reads them."""
    rows = zip(corpus.ids, corpus.titles, corpus.texts, strict=True)
    return {id: f"{title} {text}".strip() for id, title, text in rows}


def clocks() -> np.ndarray:
    """Seconds by the clock, and of the processor in all threads."""
    return np.array([time.perf_counter(), time.process_time()])


def ours(data: Path, model: Path) -> tuple[np.ndarray, dict[str, set[str]]]:
    """Seconds of both clocks, and question -> texts of its negatives."""
    import jaxretr
    from jaxretr.data.readers import read_corpus

    encoder = jaxretr.load_encoder(model, dtype="float32")
    start = clocks()
    corpus = read_corpus(data)
    mined = jaxretr.mine(
        data, corpus=corpus, model=encoder, negatives=NEGATIVES, ranks=(1, LAST), margin=MARGIN, answers=None
    )
    records = list(mined.records())
    seconds = clocks() - start
    text_of = texts(corpus)
    return seconds, {row["query_text"]: {text_of[id] for id in row["negative_document_ids"]} for row in records}


def theirs(data: Path, model: Path) -> tuple[np.ndarray, dict[str, set[str]]]:
    """The same of sentence-transformers."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import mine_hard_negatives

    from jaxretr.data.readers import read_corpus
    from jaxretr.data.training_set import load_training_set

    encoder = SentenceTransformer(str(model), device="cpu")
    start = clocks()
    corpus = read_corpus(data)
    text_of = texts(corpus)
    training = load_training_set(str(data), corpus, split="train")
    pairs = [
        {"anchor": question.text, "positive": text_of[id]}
        for question in training.questions
        for id, grade in training.qrels[question.id].items()
        if grade > 0
    ]
    found = mine_hard_negatives(
        Dataset.from_list(pairs),
        encoder,
        corpus=list(text_of.values()),
        range_max=LAST,
        absolute_margin=MARGIN,
        num_negatives=NEGATIVES,
        verbose=False,
    )
    seconds = clocks() - start
    negatives: dict[str, set[str]] = {}
    for row in found:
        negatives.setdefault(row["anchor"], set()).add(row["negative"])
    return seconds, negatives


def main() -> None:
    """Run one side as a child, or both by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        seconds, negatives = {"ours": ours, "theirs": theirs}[args.side](args.data, args.model)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        found = {question: sorted(texts) for question, texts in negatives.items()}
        print(json.dumps({"seconds": seconds.tolist(), "gib": peak, "negatives": found}))
        return
    print(describe())
    kept: dict[str, list[dict]] = {"ours": [], "theirs": []}
    for _ in range(args.rounds):
        for side, results in kept.items():
            words = [sys.executable, __file__, "--data", args.data, "--model", args.model, "--side", side]
            done = subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE, text=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
            clock, processor = results[-1]["seconds"]
            peak = f"{results[-1]['gib']:.2f} GiB at most"
            print(f"{side}: {clock:.1f} s, {processor:.1f} s of the processor, {peak}", flush=True)
    one, other = (results[-1]["negatives"] for results in kept.values())
    shared = [len(set(one[q]) & set(other[q])) / max(len(one[q]), len(other[q])) for q in one if q in other and one[q]]
    for number, clock in enumerate(("the clock", "the processor")):
        ratios = [b["seconds"][number] / a["seconds"][number] for a, b in zip(*kept.values(), strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"theirs / ours: {spread} times the seconds of {clock}")
    print(f"negatives that both found: {statistics.mean(shared):.3f} of {len(shared)} questions")


if __name__ == "__main__":
    main()
