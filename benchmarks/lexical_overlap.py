"""What keeps a dense model from ranking as BM25 does: bags of word pieces, exact and projected, and encoders' starts.

    python benchmarks/lexical_overlap.py DATA/scifact --split test --tokenizer DATA/tokenizers/bert-base-uncased
    python benchmarks/lexical_overlap.py DATA/wiki_qa --split squad --passages 5000 --tokenizer ...

First the rank-biased overlap with BM25 (p = .9, depth 100) of scores of bags that need no training: each leaves out one
part of BM25's formula, without any projection, which is the limit of an encoder of that form. Then the same of random
projections to D dimensions, and of encoders as `lexical_start` makes them, with and without a layer, with the time that
they take for the passages. `--also NAME=MODEL` measures trained ones.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from parts import part_of
from tables import markdown

from jaxretr.data.readers import read_beir
from jaxretr.data.tokens import load_tokenizer
from jaxretr.evaluate.rank_overlap import find_shared, rank_biased_overlap
from jaxretr.indexes.bm25 import Bm25Index
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig
from jaxretr.models.starts import lexical_start

DEPTH = 100
QUESTIONS = 500
K1, B = 0.9, 0.4
LONGEST = 256


class Overlap:
    """BM25's ranking of a corpus for some questions, and how near others come."""

    def __init__(self, folder: Path, split: str):
        beir = read_beir(folder, split)
        self.passages = list(beir.corpus)
        self.questions = [question.text for question in beir.questions[:QUESTIONS]]
        ranked = Bm25Index.build(beir.corpus).search(self.questions, DEPTH)[1].tolist()
        self.bm25 = [[row for row in rows if row >= 0] for rows in ranked]

    def of(self, scores: np.ndarray) -> str:
        """The overlap of a ranking by scores [B, N]."""
        rows = np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH].tolist()
        return f"{rank_biased_overlap(find_shared(rows, self.bm25)).base.mean():.3f}"


class Bags:
    """Counts of stemmed word pieces, as an encoder reads them."""

    def __init__(self, overlap: Overlap, tokenizer):
        import Stemmer

        stemmer, stems = Stemmer.Stemmer("english"), {}
        pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        words = [piece if piece.startswith("##") else stemmer.stemWord(piece) for piece in pieces]
        self.group = np.array([stems.setdefault(word, len(stems)) for word in words])
        self.tokenizer, self.size = tokenizer, len(stems)
        self.passages = self._counts([f"{p.title} {p.text}".strip() for p in overlap.passages])
        self.questions = self._counts(overlap.questions)
        count, found = len(overlap.passages), np.asarray((self.passages > 0).sum(axis=0)).ravel()
        self.idf = np.log(1 + (count - found + 0.5) / (found + 0.5))
        self.lengths = np.asarray(self.passages.sum(axis=1)).ravel()

    def _counts(self, texts: list[str]) -> sp.csr_matrix:
        ids = self.tokenizer(texts, add_special_tokens=False, truncation=True, max_length=LONGEST - 2)["input_ids"]
        rows = np.repeat(np.arange(len(ids)), [len(row) for row in ids])
        columns = self.group[np.concatenate([np.asarray(row, np.int64) for row in ids])]
        return sp.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(texts), self.size))

    def saturated(self, bags: sp.csr_matrix, lengths: np.ndarray | None = None) -> sp.csr_matrix:
        """tf / (tf + k1), and with lengths BM25's k1 (1 - b + b length / mean length) in its place."""
        found = bags.tocoo()
        norm = K1 if lengths is None else K1 * (1 - B + B * lengths[found.row] / lengths.mean())
        return sp.csr_matrix((found.data / (found.data + norm), (found.row, found.col)), shape=bags.shape)


def unit(rows):
    """Rows of length 1, sparse or not."""
    if sp.issparse(rows):
        lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
        return sp.diags(1 / np.maximum(lengths, 1e-9)) @ rows
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def exact_bags(overlap: Overlap, bags: Bags) -> dict[str, list[str]]:
    """What each part of BM25's formula is worth."""
    idf, half = sp.diags(bags.idf), sp.diags(np.sqrt(bags.idf))
    q, p = bags.questions, bags.passages
    scores = {
        "BM25 of word pieces": q @ idf @ bags.saturated(p, bags.lengths).T,
        "the same, cosine instead of the length's part": bags.saturated(q) @ half @ unit(bags.saturated(p) @ half).T,
        "the same without saturation: cosine of tf-idf": q @ half @ unit(p @ half).T,
        "without any length: sum of saturated idf": q @ idf @ bags.saturated(p).T,
        "mean of tf-idf": q @ idf @ (sp.diags(1 / np.maximum(bags.lengths, 1)) @ p).T,
    }
    return {name: [overlap.of(np.asarray(values.todense()))] for name, values in scores.items()}


def projected_bags(overlap: Overlap, bags: Bags, sizes: list[int]) -> dict[str, list[str]]:
    """The cosines with and without saturation, by the number of dimensions."""
    half = sp.diags(np.sqrt(bags.idf))
    rows: dict[str, list[str]] = {"cosine of tf-idf": [], "cosine of saturated idf": []}
    for size in sizes:
        directions = unit(np.random.default_rng(0).normal(size=(bags.size, size)))
        for name, change in (("cosine of tf-idf", lambda x: x), ("cosine of saturated idf", bags.saturated)):
            q, p = (np.asarray(change(of) @ half @ directions) for of in (bags.questions, bags.passages))
            rows[name].append(overlap.of(q @ unit(p).T))
    return rows


def started(overlap: Overlap, bags: Bags, size: int, layers: int) -> DualEncoder:
    """An encoder as `jaxretr train configs/spar_small*.py` begins with it."""
    tokenizer = bags.tokenizer
    vocabulary = len(tokenizer)
    ids = tokenizer([f"{p.title} {p.text}" for p in overlap.passages], truncation=True, max_length=LONGEST)["input_ids"]
    frequencies = np.bincount(np.concatenate([np.unique(row) for row in ids]), minlength=vocabulary)
    bert = BertConfig(
        vocab_size=vocabulary, hidden_size=size, num_hidden_layers=layers, num_attention_heads=8, intermediate_size=256
    )
    pieces = tokenizer.convert_ids_to_tokens(list(range(vocabulary)))
    params = lexical_start(
        bert, pieces, frequencies, len(overlap.passages), tokenizer.all_special_ids, tokenizer.cls_token_id, 0
    )
    settings = DualEncoderConfig(
        bert, shared=True, pooling="mean", normalise=True, max_question_length=64, max_passage_length=LONGEST
    )
    return DualEncoder(settings, {"shared": {"bert": params}}, tokenizer)


def measured(overlap: Overlap, model: DualEncoder) -> list[str]:
    began = time.monotonic()
    passages = model.encode_passages(overlap.passages)
    seconds = time.monotonic() - began
    overlapping = overlap.of(model.encode_queries(overlap.questions) @ passages.T)
    return [overlapping, str(passages.shape[1]), f"{len(passages) / seconds:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a BEIR folder")
    parser.add_argument("--split", default="test")
    parser.add_argument("--passages", type=int, default=0, help="the judged ones and others, so many (0: all)")
    parser.add_argument("--runs", type=Path, default=Path("runs/lexical_overlap"))
    parser.add_argument("--tokenizer", required=True, help="a folder or hub name of a WordPiece tokenizer")
    parser.add_argument("--sizes", type=int, nargs="+", default=[768, 1024, 2048, 4096])
    parser.add_argument("--starts", nargs="*", default=["768x0", "1024x1"], metavar="WIDTHxLAYERS")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=MODEL")
    args = parser.parse_args()
    folder = part_of(args.folder, args.runs / f"{args.folder.name}_{args.split}", [args.split], args.passages)
    overlap = Overlap(folder, args.split)
    bags = Bags(overlap, load_tokenizer(args.tokenizer))
    print(
        f"{len(overlap.questions)} questions of {args.folder.name}'s {args.split}, {len(overlap.passages)} passages\n"
    )
    print(markdown(["overlap"], exact_bags(overlap, bags), "bags, exact") + "\n")
    print(
        markdown([f"D = {size}" for size in args.sizes], projected_bags(overlap, bags, args.sizes), "projected") + "\n"
    )
    models = {}
    for each in args.starts:
        size, layers = map(int, each.split("x"))
        models[f"untrained, width {size}, layers {layers}"] = measured(overlap, started(overlap, bags, size, layers))
    for each in args.also:
        name, model = each.split("=", 1)
        models[name] = measured(overlap, DualEncoder.from_pretrained(model))
    print(markdown(["overlap", "D", "passages/s"], models, "encoders"))


if __name__ == "__main__":
    main()
