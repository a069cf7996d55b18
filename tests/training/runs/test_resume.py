"""A run that is killed goes on as if nothing had happened: of ART in packed rows, whose index is refreshed slice by slice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxretr.runtime.parallel.hosts import EXIT_AGAIN
from jaxretr.training.metrics_log import read_metrics

STEPS = 8
DETERMINISTIC = " --xla_gpu_deterministic_ops=true"

# A process of its own, for it gets killed. Its batches are noted, so that they can be compared.
PROGRAM = """
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[3]))
jax.config.update("jax_compilation_cache_dir", sys.argv[4])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
from pathlib import Path
import tiny
from jaxretr.training import runs as recipes, loop as train
from jaxretr.training.runs.art import ArtRun

step = ArtRun.step
def noted(run, state, number, batch):
    with open(Path(sys.argv[2]) / "batches.jsonl", "a") as file:
        file.write(json.dumps([number, run.batches.indices(number).tolist()]) + "\\n")
    return step(run, state, number, batch)
ArtRun.step = noted
config = tiny.art_config(
    Path(sys.argv[1]),
    train=dict(steps=STEPS, save_every=2, eval_every=100),
    index=dict(refresh="rolling", refresh_every=3),
    data=dict(dev_questions=None),
    # Some biases have no gradient but rounding noise; with the usual eps Adam would take full steps along it.
    optimizer=dict(eps=1e-5),
)
train.train(config, Path(sys.argv[2]))
""".replace("STEPS", str(STEPS))


def start(models: Path, workdir: Path, devices: int) -> subprocess.Popen:
    root = Path(__file__).parents[3]
    workdir.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(models), str(workdir), str(devices), str(root / ".jax_cache")],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(root), *sys.path]),
            # On GPUs, sums of several gradients for a row are taken in any order, unless XLA is told otherwise.
            "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + DETERMINISTIC * (jax.default_backend() == "gpu"),
            "JAXRETR_ENGINE": "packed",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> None:
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors[-2000:]


def batches(workdir: Path) -> dict[int, list[int]]:
    return dict(json.loads(line) for line in (workdir / "batches.jsonl").read_text().splitlines())


@pytest.fixture(scope="module")
def whole(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    workdir = tmp_path_factory.mktemp("whole")
    finish(start(tiny_models, workdir, devices=2))
    return workdir


def kill_at(process: subprocess.Popen, workdir: Path, step: int, number: int) -> None:
    """Sends a signal once the run has begun this step."""
    while process.poll() is None:
        if (workdir / "batches.jsonl").exists() and max(batches(workdir), default=-1) >= step:
            process.send_signal(number)
            return
        time.sleep(0.002)
    raise AssertionError(process.stderr.read()[-2000:])


@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_killed_run_ends_as_an_undisturbed_one(whole: Path, tiny_models: Path, tmp_path: Path, devices: int) -> None:
    if devices > 2 and jax.default_backend() == "gpu":
        pytest.skip("a process has all cards of a machine")
    seed = random.SystemRandom().randrange(1000)
    step = random.Random(seed).randrange(1, STEPS)
    print(f"killed at step {step} (seed {seed})")
    process = start(tiny_models, tmp_path, devices=2)
    kill_at(process, tmp_path, step, signal.SIGKILL)
    process.wait()
    finish(start(tiny_models, tmp_path, devices))

    assert batches(tmp_path) == batches(whole)
    expected, found = (load_file(folder / "model/model.safetensors") for folder in (whole, tmp_path))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        # On another number of devices sums are taken in another order, and near ties may fall otherwise.
        if devices == 2:
            np.testing.assert_array_equal(found[name], value, err_msg=name)  # bit for bit
    steps = [line["step"] for line in read_metrics(tmp_path)]
    assert steps == list(range(1, STEPS + 1)), "each step is reported once"


def test_sigterm_saves_the_step_and_exits_75(whole: Path, tiny_models: Path, tmp_path: Path) -> None:
    process = start(tiny_models, tmp_path, devices=2)
    kill_at(process, tmp_path, 2, signal.SIGTERM)
    _, errors = process.communicate(timeout=600)
    done = max(batches(tmp_path)) + 1
    assert process.returncode == (EXIT_AGAIN if done < STEPS else 0), errors[-2000:]
    if done < STEPS:
        assert (tmp_path / f"checkpoints/{done}").is_dir(), "the step that was interrupted is saved"
    finish(start(tiny_models, tmp_path, devices=2))
    assert len((tmp_path / "batches.jsonl").read_text().splitlines()) == STEPS, "no step was run twice"
    expected, found = (load_file(folder / "model/model.safetensors") for folder in (whole, tmp_path))
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
