"""What a user waits for on this machine: commands of the library, each in a process of its own, and the same by a peer.

    python benchmarks/accelerator.py --as-user --out results/h100-user --model MINILM --teacher SMOLLM2    # JAXRETR_DATA=DIR
    JAX_PLATFORMS=cpu python benchmarks/accelerator.py --as-user --out /tmp/user --tiny

Trains an encoder on question-passage pairs, evaluates it, encodes the corpus, trains by ART with a language model as
teacher, and runs the quickstart: with one program for texts of all lengths (packed) and with padded rows, with an empty
folder of compiled programs (cold) and with what that left behind (warm). Beside them sentence-transformers' modules in a
loop of plain PyTorch. The data are MedQuAD of JAXRETR_DATA, without it the passages in the package. Rows run in the order
of their weight until --budget seconds are over; user.md and user.json are written after each, and what is in them is not
repeated. Evaluations take a half of a short run: the first is before the first step.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
# So many passages and questions has MedQuAD; the rest of its questions is trained on.
MEDQUAD, HELD_OUT = 16_350, 2_640
# Below this no row is begun.
LEAST = 20.0
PEER = "sentence-transformers"

# Runs `jaxretr` and says how many programs it needed, whichever way it ends.
COMMAND = """
import atexit, runpy, sys
def say():
    if module := sys.modules.get("jaxretr.runtime.parallel.programs"):
        print(module.programs(), "in all", file=sys.stderr)
atexit.register(say)
runpy.run_module("jaxretr", run_name="__main__")
"""
FIRST_STEP = "before and in the first step"
PROGRAMS = re.compile(r"(\d+) programs? compiled and (\d+) read from the cache in ([\d.]+) s in all")
# Of the summary at a run's end: `147.2 s: first step 70.6 s (48%), evaluation 41.9 s (28%), ...`
PART = re.compile(r"(?:: |, )([a-z ]+) ([\d.]+) s \(\d+%\)")


class Row(NamedTuple):
    """A line of the table."""

    job: str
    engine: str
    """A choice of JAXRETR_ENGINE, or the peer."""
    warm: bool = False

    @property
    def name(self) -> str:
        """In the table."""
        kept = "" if self.engine == PEER else f", {'warm' if self.warm else 'cold'}"
        return f"{self.job}, {self.engine}{kept}"


# The order is that of their weight: a call ends when its time does.
ROWS = (
    *(Row(job, "packed", warm) for job in ("train", "evaluate") for warm in (False, True)),
    *(Row(job, PEER) for job in ("train", "evaluate")),
    *(Row(job, "padded") for job in ("train", "evaluate")),
    Row("art", "packed"),
    Row("quickstart", "packed"),
    *(Row("encode", engine, warm) for engine in ("packed", "padded") for warm in (False, True)),
    Row("encode", PEER),
    *(Row(job, "packed", True) for job in ("art", "quickstart")),
    *(Row(job, "padded", True) for job in ("train", "evaluate")),
    *(Row(job, "padded", warm) for job in ("art", "quickstart") for warm in (False, True)),
)


def data_of(args: argparse.Namespace) -> Path:
    """A BEIR folder with the splits train, dev and test."""
    from parts import divided

    from jaxretr.assets import QUICKSTART

    if args.tiny:
        return divided(QUICKSTART, args.out / "data", 60, {"dev": 8, "test": 8}, "train", "train")
    if folder := os.environ.get("JAXRETR_DATA"):
        sizes = {"dev": HELD_OUT, "test": HELD_OUT}
        return divided(Path(folder) / "medquad", args.out / "data", MEDQUAD, sizes, "train")
    return QUICKSTART


def words_of(row: Row, data: Path, args: argparse.Namespace, workdir: Path) -> list[Any]:
    """The command line of a row, after `jaxretr`."""
    if row.job == "evaluate":
        return ["evaluate", args.model, "--beir", data, "--split", "test", "--compute", args.dtype]
    if row.job == "encode":
        return ["encode", args.model, "--corpus", data, "--out", workdir / "store", "--compute", args.dtype]
    if row.job == "quickstart":
        return ["quickstart", "--workdir", workdir, *(("--steps", 2) if args.tiny else ())]
    batch, length = (8, 32) if args.tiny else (128 if row.job == "train" else 64, 256)
    steps = 4 if args.tiny else 300 if row.job == "train" else 150
    shared = [
        *("--workdir", workdir, "--encoder.path", args.model, "--encoder.dtype", args.dtype),
        *("--encoder.max-passage-length", length, "--optimizer.learning-rate", "2e-5", "--data.token-cache", "None"),
        *("--data.dev-questions", data, "--data.dev-qrels", data / "qrels/dev.tsv", "--data.corpus", data),
        *(
            "--train.steps",
            steps,
            "--train.batch-size",
            batch,
            "--train.eval-every",
            steps,
            "--train.save-every",
            steps,
        ),
    ]
    if row.job == "art":
        teacher = ["--scorer.path", args.teacher, "--scorer.max-length", length, "--scorer.dtype", "bfloat16"]
        return ["train", "art_small", *shared, "--data.questions", data, *teacher]
    pairs = ["--data.train", data, "--data.dev", "None", "--negatives.retrieved", 0, "--contrastive.chunk", 64]
    return ["train", "dpr_small", *shared, *pairs]


def peer_words(row: Row, data: Path, args: argparse.Namespace) -> list[Any]:
    """The arguments of on_gpu/user_peer.py for the same job."""
    steps, batch, length = (4, 8, 32) if args.tiny else (300, 128, 256)
    return [row.job, args.model, data, "--steps", steps, "--batch", batch, "--length", length, "--dtype", args.dtype]


def measured(row: Row, data: Path, args: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Runs a row for so many seconds at most; returns what its process said of itself, and how long it took."""
    folder = args.out / f"{row.job}-{row.engine}"
    workdir = args.out / f"{row.name.replace(', ', '-')}-{time.time_ns()}"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "JAX_COMPILATION_CACHE_DIR": str(folder.resolve() / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
        "JAXRETR_CACHE": str(args.out.resolve() / "cache"),
        "JAXRETR_ENGINE": row.engine,
    }
    peer = row.engine == PEER
    words = peer_words(row, data, args) if peer else words_of(row, data, args, workdir)
    start = [str(ROOT / "benchmarks/on_gpu/user_peer.py")] if peer else ["-c", COMMAND]
    if not row.warm:  # A try that ran out of time has left programs behind.
        shutil.rmtree(folder, ignore_errors=True)
    print(f"$ JAXRETR_ENGINE={row.engine}", "jaxretr" if not peer else "peer", *words, flush=True)
    began = time.monotonic()
    lines: list[tuple[float, str]] = []
    process = subprocess.Popen(
        [sys.executable, *start, *map(str, words)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    # Its lines are read while it runs: the first step is known by when it is told of.
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append((time.monotonic() - began, line.rstrip()))
        code = process.wait()
    except BaseException:
        process.kill()
        raise
    finally:
        timer.cancel()
    (args.out / "logs").mkdir(exist_ok=True)
    log = args.out / "logs" / f"{row.name.replace(', ', '-')}.txt"
    log.write_text("".join(f"{at:7.2f} {line}\n" for at, line in lines))
    return {"seconds": time.monotonic() - began, "code": code, **told(lines)}


def told(lines: Sequence[tuple[float, str]]) -> dict[str, Any]:
    """What the lines of a log say, with the seconds after which they came: the one place that reads them.

    Returns:
      "first step" (seconds until it was over), "steps" and "evaluation" (seconds of all), "compiled", "cached" and
      "programs" (seconds of both, added up over threads), as far as they are there; "last", the last line.
    """
    found: dict[str, Any] = {"last": lines[-1][1] if lines else ""}
    for at, line in lines:
        if FIRST_STEP in line:
            found.setdefault("first step", at)
        for name, seconds in PART.findall(line) if "first step" in line and "else" in line else ():
            if name in ("steps", "evaluation"):
                found[name] = found.get(name, 0.0) + float(seconds)
        if counted := PROGRAMS.search(line):
            found |= {"compiled": int(counted[1]), "cached": int(counted[2]), "programs": float(counted[3])}
    return found


def table(results: dict[str, Any]) -> str:
    """All rows as Markdown."""
    from tables import markdown

    rows = {}
    for name, row in results["rows"].items():
        cells = [f"{row[key]:.1f}" if key in row else "-" for key in ("seconds", "first step", "steps", "evaluation")]
        cells += [str(row.get("compiled", "-")), str(row.get("cached", "-"))]
        cells.append(f"{row['programs']:.1f}" if "programs" in row else "-")
        done, skipped = row["code"] == 0, row["code"] == SKIPPED
        ended = (
            "" if done else "out of time" if row["code"] < 0 else f"{'skipped' if skipped else 'failed'}: {row['last']}"
        )
        rows[name] = [*cells, ended.replace("|", "/")[:160]]
    columns = (
        *("seconds in all", "until the first step", "steps", "evaluations"),
        *("programs compiled", "from the cache", "seconds of both, of all threads", "not done"),
    )
    facts = f"{results['machine']}; model {results['model']}, teacher {results['teacher']}, {results['dtype']}"
    return f"{facts}\n\n{markdown(columns, rows, 'job')}\n"


# The peer's exit code where it is not installed.
SKIPPED = 4


def facts() -> str:
    """Devices, versions and host, asked for in a process that gives the devices back."""
    code = (
        "import jax; d = jax.devices(); print(f'{len(d)} x {d[0].device_kind}, jax {jax.__version__}, ', end=''); "
        "from machine import describe; print(describe())"
    )
    where = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=where, check=False)
    if done.returncode:
        raise SystemExit(f"jax found no device: {done.stderr.strip().splitlines()[-1:]}; check the installation")
    return done.stdout.splitlines()[-1]


def main(words: Sequence[str]) -> None:
    """Runs what is not done yet, until the time is over."""
    from jaxretr.assets import ENCODER_SMALL, SCORER_SMALL

    parser = argparse.ArgumentParser(
        "accelerator.py --as-user", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of user.md, user.json and the runs")
    parser.add_argument("--budget", type=float, default=540, help="seconds of all rows (default: %(default)s)")
    parser.add_argument(
        "--model", type=Path, default=ENCODER_SMALL, help="a sentence-transformers folder (default: the package's)"
    )
    parser.add_argument(
        "--teacher",
        type=Path,
        default=SCORER_SMALL,
        help="a T5 or causal language model's folder (default: the package's)",
    )
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="of the encoder's products (default: %(default)s)",
    )
    parser.add_argument("--rows", nargs="+", choices=sorted({row.job for row in ROWS}), help="only these jobs")
    parser.add_argument("--again", action="store_true", help="also what is done, with empty folders of programs")
    parser.add_argument(
        "--tiny", action="store_true", help="a few steps on a few passages, to try the program on a CPU"
    )
    args = parser.parse_args(words)
    deadline = time.monotonic() + args.budget
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "user.json"
    about = {"machine": facts(), "model": args.model.name, "teacher": args.teacher.name, "dtype": args.dtype}
    results: dict[str, Any] = {**about, "rows": {}}
    if file.exists() and not args.again:
        results["rows"] = json.loads(file.read_text())["rows"]
    data = data_of(args)
    jobs = args.rows or ["train", "evaluate", "encode", "art", *([] if args.tiny else ["quickstart"])]
    for row in ROWS:
        if row.job not in jobs or results["rows"].get(row.name, {}).get("code") in (0, SKIPPED):
            continue
        if row.warm and results["rows"].get(row._replace(warm=False).name, {}).get("code") != 0:
            continue
        if (left := deadline - time.monotonic()) < LEAST:
            print(f"{row.name} and what follows: no time left; the same command goes on with it")
            break
        results["rows"][row.name] = measured(row, data, args, left)
        for path, text in ((file, json.dumps(results, indent=1)), (args.out / "user.md", table(results))):
            fresh = path.with_suffix(".new")
            fresh.write_text(text)
            fresh.replace(path)
        print(table(results), flush=True)
