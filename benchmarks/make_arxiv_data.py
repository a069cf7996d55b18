"""Cuts the two small arXiv domains that ship with the package: `python benchmarks/make_arxiv_data.py ARXIV_FOLDER`.

2,500 abstracts of cs.CV (computer vision) and as many of cs.CL (language), each a BEIR folder whose questions are the
abstracts' titles: a change of domain inside one collection. Abstracts are cut at 120 words; no model here reads more.
"""

import random
import sys
from pathlib import Path

from make_quickstart_data import write_lines

from jaxretr.data.readers import read_beir

OUT = Path(__file__).parent.parent / "jaxretr/assets/arxiv"
WORDS = 120
# Questions of each split; the corpus is their abstracts.
SPLITS = {"cv": {"train": 1800, "dev": 200, "test": 500}, "cl": {"train": 1800, "dev": 200, "test": 500}}


def main() -> None:
    for field, splits in SPLITS.items():
        folder = OUT / field
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        texts, titles = {}, {}
        for split, size in splits.items():
            beir = read_beir(sys.argv[1], f"{field}-{split}")
            questions = random.Random(0).sample(beir.questions, size)
            gold = {question.id: next(iter(beir.qrels[question.id])) for question in questions}
            for question in questions:
                passage = beir.corpus[beir.corpus.row(gold[question.id])]
                titles[question.id], texts[passage.id] = question.text, " ".join(passage.text.split()[:WORDS])
            rows = "".join(f"{question}\t{passage}\t1\n" for question, passage in gold.items())
            (folder / f"qrels/{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
        write_lines(folder / "corpus.jsonl.gz", [{"_id": i, "title": "", "text": text} for i, text in texts.items()])
        write_lines(folder / "queries.jsonl.gz", [{"_id": i, "text": title} for i, title in titles.items()])
        print(field, len(texts), "abstracts", len(titles), "titles")


if __name__ == "__main__":
    main()
