"""Cuts the quickstart's corpus and questions from wiki_qa: `python benchmarks/make_quickstart_data.py WIKI_QA_FOLDER`.

5,000 passages that answer real Google questions (Natural Questions), and the questions asked about them, in three
parts that share no passage: train (used without their judgements), dev and test.
"""

import gzip
import json
import random
import sys
from pathlib import Path

from jaxretr.data.readers import read_beir

PASSAGES, DEV_PASSAGES, TEST_PASSAGES = 5000, 400, 1000
OUT = Path(__file__).parent.parent / "jaxretr/assets/quickstart"


def write_lines(path: Path, values: list[dict]) -> None:
    # Without name and time in the header, so that the same content gives the same file.
    with path.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=9, mtime=0, filename="") as file:
        file.writelines((json.dumps(value, ensure_ascii=False) + "\n").encode() for value in values)


def main() -> None:
    beir = read_beir(sys.argv[1], "train")
    questions = [question for question in beir.questions if question.id.startswith("nq:")]
    gold = {question.id: next(iter(beir.qrels[question.id])) for question in questions}
    chosen = sorted(set(gold.values()))
    random.Random(0).shuffle(chosen)
    chosen = chosen[:PASSAGES]
    parts = {
        "test": chosen[:TEST_PASSAGES],
        "dev": chosen[TEST_PASSAGES : TEST_PASSAGES + DEV_PASSAGES],
        "train": chosen[TEST_PASSAGES + DEV_PASSAGES :],
    }
    part_of = {id: name for name, ids in parts.items() for id in ids}
    kept = [question for question in questions if gold[question.id] in part_of]
    write_lines(
        OUT / "corpus.jsonl.gz",
        [{"_id": p.id, "title": p.title, "text": p.text} for p in beir.corpus if p.id in part_of],
    )
    write_lines(
        OUT / "queries.jsonl.gz",
        [{"_id": q.id, "text": q.text, "metadata": {"answers": [a for a in q.answers if a.strip()]}} for q in kept],
    )
    for name in parts:
        rows = [f"{q.id}\t{gold[q.id]}\t1\n" for q in kept if part_of[gold[q.id]] == name]
        (OUT / f"qrels/{name}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
        print(name, len(rows), "questions")


if __name__ == "__main__":
    main()
