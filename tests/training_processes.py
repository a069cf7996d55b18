"""Tiny training runs (train_tiny.py) in one or several processes, which tests disturb and compare."""

import json
import subprocess
import time
from pathlib import Path

import numpy as np
import processes
from safetensors.numpy import load_file

from jaxretr.training.metrics_log import read_metrics

PROGRAM = Path(__file__).with_name("train_tiny.py").read_text()


def start(kind: str, models: Path, workdir: Path, count: int, devices: int, changes: dict | None = None, **variables):
    """Starts a run; `changes` are those of train_tiny.py."""
    words = ["-c", PROGRAM, kind, str(models), str(workdir), json.dumps(changes or {})]
    return processes.start(words, count, devices, **variables)


def reported(workdir: Path) -> int:
    """The last step of metrics.jsonl, 0 before the first; a line that is being written does not count."""
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return max((json.loads(line)["step"] for line in lines if line.endswith("\n")), default=0)


def wait_for_step(workdir: Path, step: int, run: list[subprocess.Popen]) -> bool:
    """Waits until a run has reported so many steps; False if it has ended well before."""
    while reported(workdir) < step:
        codes = [process.poll() for process in run]
        if None not in codes:
            assert not any(codes), [process.communicate()[1][-2000:] for process in run]
            return False
        time.sleep(0.005)
    return True


def batches(workdir: Path) -> dict[int, list[int]]:
    """The questions of each step; all processes took the same, and so did those of an earlier part of the run."""
    found: dict[int, list[int]] = {}
    for path in workdir.glob("batches-*.jsonl"):
        for line in path.read_text().splitlines():
            step, questions = json.loads(line)
            assert found.setdefault(step, questions) == questions, f"step {step}"
    return found


def same_model(one: Path, other: Path) -> None:
    """The models of two runs are equal to the bit."""
    expected, found = (load_file(folder / "model/model.safetensors") for folder in (one, other))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def same_losses(one: Path, other: Path, tolerance: float) -> None:
    """Each step was reported once, and the losses differ by this part at most; 0: not at all."""
    # Small losses are differences of numbers of order 1, which is where float32 rounds.
    rounding = 2e-7 if tolerance else 0.0
    expected, found = (
        [(line["step"], line["loss"]) for line in read_metrics(folder) if "loss" in line] for folder in (one, other)
    )
    assert [step for step, _ in found] == [step for step, _ in expected]
    values = ([loss for _, loss in run] for run in (found, expected))
    np.testing.assert_allclose(*values, rtol=tolerance, atol=rounding)
