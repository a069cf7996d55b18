"""Reading a corpus by name against reading its file: ir_datasets, TFDS and parquet, interleaved in one process.

    python benchmarks/named_data.py --corpus DATA/corpus.jsonl.gz --rounds 7

The passages are written as plain JSON lines and given to each source: an id of ir_datasets over those JSON lines, a data set
of `jaxretr data build`, and parquet. Every round reads all of them once, in another order. Printed are the passages a
second, and the ratio of each one's time to the plain file's of the same round: its median, lowest and highest. The bar is
1.5.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import ir_datasets
import pyarrow
import pyarrow.parquet
from ir_datasets.datasets.base import Dataset
from ir_datasets.datasets.beir import BeirDocs, BeirTitleDoc
from ir_datasets.util import LocalDownload
from machine import describe

from jaxretr.data.corpus import iter_passages
from jaxretr.data.tfds_builder import build_data

PLAIN = "plain JSON lines"


def write_sources(corpus: Path, folder: Path) -> dict[str, str]:
    """Writes the passages in each form; returns what names it."""
    rows = [{"_id": p.id, "title": p.title, "text": p.text} for _, p in iter_passages(corpus)]
    plain = folder / "corpus.jsonl"
    plain.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "corpus.parquet")
    began = time.perf_counter()
    built = build_data(plain, folder, name="passages")
    print(f"jaxretr data build: {len(rows) / (time.perf_counter() - began):,.0f} passages a second")
    # The class of BEIR's own ids, over our file instead of a download.
    ir_datasets.registry.register(
        "jaxretr-benchmark/beir", Dataset(BeirDocs("jaxretr-benchmark", LocalDownload(plain), BeirTitleDoc))
    )
    return {
        PLAIN: str(plain),
        f"the given {corpus.name}": str(corpus),
        "ir_datasets, BEIR": "ir_datasets:jaxretr-benchmark/beir",
        "tfds": f"tfds:{built.path}",
        "hf parquet": f"hf:{folder}/corpus.parquet",
    }


def seconds(name: str, passages: int) -> float:
    """How long reading takes, which must find all passages."""
    began = time.perf_counter()
    found = sum(1 for _ in iter_passages(name))
    taken = time.perf_counter() - began
    assert found == passages, (name, found)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    print(describe())
    draws = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        sources = write_sources(args.corpus, Path(folder))
        passages = sum(1 for _ in iter_passages(sources[PLAIN]))
        times: dict[str, list[float]] = {name: [] for name in sources}
        for name, source in sources.items():  # Checks sums, once.
            print(f"{name}: the first time {seconds(source, passages):.2f} s")
        for _ in range(args.rounds):
            for name in draws.sample(list(sources), len(sources)):
                times[name].append(seconds(sources[name], passages))
    print(f"{passages:,} passages, {args.rounds} rounds")
    for name, of_name in times.items():
        ratios = sorted(taken / plain for taken, plain in zip(of_name, times[PLAIN], strict=True))
        rate = passages / statistics.median(of_name)
        print(
            f"{name:<28}{rate:>10,.0f} passages/s   {statistics.median(ratios):.2f} of the plain file's time "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
