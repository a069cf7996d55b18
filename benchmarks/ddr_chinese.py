"""DDR in Chinese: a domain module alone, with a relevance module, and fine-tuned as a whole, beside BM25.

    python benchmarks/ddr_chinese.py --data DATA --runs runs/ddr_chinese --seeds 0

DATA holds cmrc2018_zh, a BEIR folder of 1,104 passages of Chinese Wikipedia with the splits trial (1,002 questions, trained
on) and dev (3,219, measured). For every seed it trains configs/ddr_small_chinese_dam.py, then from that encoder
configs/ddr_small_chinese_rem.py, and the same with the whole encoder trained (DR); finished runs are not repeated. The
encoder alone pools and compares as the others do. Prints recall@20, recall@100 and nDCG@10 on dev, mean and standard
deviation over the seeds, the seconds that each system's training took, and paired tests between systems on the questions'
means over the seeds. BM25 reads pairs of Chinese characters as words.
"""

import argparse
import csv
import dataclasses
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from once import last_of
from tables import cell

from jaxretr.config import ContrastiveConfig, load
from jaxretr.evaluate.significance import compare
from jaxretr.metrics_log import read_metrics
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.recipes.encoder_start import load_encoder

# metric -> question -> value
Values = dict[str, dict[str, float]]

CONFIGS = Path(__file__).parents[1] / "configs"
METRICS = ("recall@20", "recall@100", "ndcg@10")
COMPARED = (("DAM + REM", "DAM alone"), ("DAM + REM", "DR"), ("BM25", "DAM + REM"))


def jaxretr(*words: str | Path, **environment: str) -> None:
    """Runs a command of the package; its standard output is not shown."""
    command = [sys.executable, "-m", "jaxretr", *map(str, words)]
    subprocess.run(command, check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)


def train(config: Path, workdir: Path, args: argparse.Namespace, *settings: str, **environment: str) -> Path:
    """Trains by a config file, unless that has been done; returns the model's folder."""
    seconds = workdir / "seconds"
    if not seconds.exists():
        begin = time.monotonic()
        words = last_of(("--data.token-cache", args.runs / "tokens", *settings))
        jaxretr("train", config, "--workdir", workdir, *words, JAXRETR_DATA=str(args.data), **environment)
        steps = json.loads((workdir / "config.json").read_text())["train"]["steps"]
        if (reached := read_metrics(workdir)[-1]["step"]) < steps:
            raise SystemExit(
                f"{workdir}: interrupted at step {reached} of {steps}; run the same command again to go on"
            )
        seconds.write_text(f"{time.monotonic() - begin:.1f}")
    return workdir / "model"


def whole_encoder(args: argparse.Namespace) -> Path:
    """A config file like the relevance module's, but without adapters: all of the encoder is trained."""
    path = args.runs / "dr.py"
    path.write_text(
        "import dataclasses, runpy\n\n\ndef config():\n"
        f"    rem = runpy.run_path({str(CONFIGS / 'ddr_small_chinese_rem.py')!r})['config']()\n"
        "    encoder = dataclasses.replace(rem.encoder, adapter=None)\n"
        "    return dataclasses.replace(rem, name='ddr_small_chinese_dr', encoder=encoder)\n"
    )
    return path


def alone(dam: Path, folder: Path, args: argparse.Namespace) -> Path:
    """A model of the encoder as the relevance module's run begins with it."""
    if not folder.exists():
        config = load(CONFIGS / "ddr_small_chinese_rem.py", args.rem_settings)
        assert isinstance(config, ContrastiveConfig)
        model: DualEncoder = load_encoder(dataclasses.replace(config.encoder, path=str(dam), adapter=None))
        model.save(folder)
    return folder


def measure(kept: Path, *words: str | Path) -> Values:
    """`jaxretr evaluate` with these arguments; the questions' values are kept in a file."""
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        jaxretr("evaluate", *words, "--metrics", ",".join(METRICS), "--per-query", kept)
    with kept.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    question = next(iter(rows[0]))
    return {metric: {row[question]: float(row[metric]) for row in rows} for metric in METRICS}


def bm25(beir: Path, args: argparse.Namespace) -> Values:
    run = args.runs / "bm25.trec"
    if not run.exists():
        jaxretr("bm25", "--corpus", beir, "--queries", beir, "-k", "100", "--out", run)
    return measure(args.runs / "measured/bm25.tsv", "--run", run, "--qrels", beir / "qrels/dev.tsv")


def line(name: str, of_seeds: list[Values], seconds: list[float]) -> str:
    """One row of the table, in percent."""
    cells = []
    for metric in METRICS:
        means = [100 * statistics.fmean(values[metric].values()) for values in of_seeds]
        cells.append(cell(means))
    cells.append(f"{statistics.fmean(seconds):.0f}" if seconds else "")
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("JAXRETR_DATA", "data")))
    parser.add_argument("--runs", type=Path, default=Path("runs/ddr_chinese"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    settings = "overrides, in one word: --dam-settings='--train.steps 9'"
    parser.add_argument("--dam-settings", type=shlex.split, default=[], help=settings)
    parser.add_argument("--rem-settings", type=shlex.split, default=[], help="of the relevance module and of DR")
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    beir = args.data / "cmrc2018_zh"

    found: dict[str, list[Values]] = {"BM25": [bm25(beir, args)]}
    seconds: dict[str, list[float]] = {}
    for number in args.seeds:
        seed = f"--train.seed={number}"
        folder = {name: args.runs / f"{name}_{number}" for name in ("dam", "alone", "rem", "dr")}
        dam = train(CONFIGS / "ddr_small_chinese_dam.py", folder["dam"], args, seed, *args.dam_settings)
        settings = (seed, *args.rem_settings)
        config = CONFIGS / "ddr_small_chinese_rem.py"
        models = {
            "DAM alone": alone(dam, folder["alone"], args),
            "DAM + REM": train(config, folder["rem"], args, *settings, JAXRETR_DAM=str(dam)),
            "DR": train(whole_encoder(args), folder["dr"], args, *settings, JAXRETR_DAM=str(dam)),
        }
        for name, model in models.items():
            kept = args.runs / f"measured/{model.parent.name if name != 'DAM alone' else model.name}.tsv"
            found.setdefault(name, []).append(measure(kept, model, "--beir", beir, "--split", "dev"))
        for name, run in (("DAM alone", "dam"), ("DAM + REM", "rem"), ("DR", "dr")):
            seconds.setdefault(name, []).append(float((folder[run] / "seconds").read_text()))

    print("| | " + " | ".join(METRICS) + " | seconds |\n|---|" + "---|" * (len(METRICS) + 1))
    for name, values in found.items():
        print(line(name, values, seconds.get(name, [])))
    (args.runs / "means.json").write_text(
        json.dumps(
            {name: [{m: statistics.fmean(v[m].values()) for m in METRICS} for v in of] for name, of in found.items()}
        )
    )
    print()
    for one, other in COMPARED:
        for metric in METRICS:
            first, second = (
                {
                    question: float(np.mean([values[metric][question] for values in found[name]]))
                    for question in found[name][0][metric]
                }
                for name in (one, other)
            )
            result = compare(first, second)
            print(
                f"{one} - {other}, {metric}: {100 * result.difference:+.1f} points, 95% interval "
                f"{100 * result.low:+.1f} to {100 * result.high:+.1f}, p = {result.p_value:.4f}"
            )


if __name__ == "__main__":
    main()
