"""A run goes on with other devices and processes than it began with, and is asked to stop in all processes at once."""

import shutil
import signal
from pathlib import Path

import numpy as np
import processes
import pytest
from safetensors.numpy import load_file
from training_processes import batches, reported, same_losses, start, wait_for_step

from jaxretr.runtime.parallel.hosts import EXIT_AGAIN

STEPS = 24


@pytest.fixture(scope="module", params=["art", "contrastive"])
def stopped(request: pytest.FixtureRequest, tiny_models: Path, tmp_path_factory: pytest.TempPathFactory):
    """(objective, changes, an undisturbed run, one that SIGTERM to one of two processes has stopped halfway)."""
    folder = tmp_path_factory.mktemp(request.param)
    changes = {"train": {"steps": STEPS, "eval_every": 1000, "save_every": 100}, "pause": 0.2}
    if request.param == "contrastive":
        # With the index in the loss, and no choice among passages: of two whose scores differ by rounding alone, another
        # number of devices may choose the other one.
        changes |= {"negatives": {"retrieved": 0}, "contrastive": {"corpus_softmax": True}}
    processes.finish(start(request.param, tiny_models, folder / "whole", 2, 4, changes | {"pause": 0}))
    run = start(request.param, tiny_models, folder / "run", 2, 4, changes)
    assert wait_for_step(folder / "run", 4, run)
    run[1].send_signal(signal.SIGTERM)
    outcomes = processes.ended(run)
    for code, errors in outcomes:
        assert code == EXIT_AGAIN, errors[-2000:]
    done = reported(folder / "run")
    print(f"asked to stop after 4 steps, {done} were done")
    assert 4 <= done < STEPS
    assert f"interrupted: saved step {done}; run the same command again" in outcomes[0][1]
    assert (folder / f"run/checkpoints/{done}").is_dir()
    return request.param, changes | {"pause": 0}, folder / "whole", folder / "run"


@pytest.mark.parametrize("devices", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_saved_by_two_processes_with_eight_devices(stopped, tiny_models, tmp_path, devices: int) -> None:
    kind, changes, whole, begun = stopped
    shutil.copytree(begun, tmp_path / "run")
    outputs = processes.finish(start(kind, tiny_models, tmp_path / "run", 1, devices, changes))
    assert f"resuming from step {reported(begun)}" in outputs[0][1]
    assert batches(tmp_path / "run") == batches(whole)
    # Sums are taken in another order on another number of devices.
    same_losses(whole, tmp_path / "run", 1e-5)


def test_parameters_split_over_two_processes_are_whole_again_in_one(tiny_models: Path, tmp_path: Path) -> None:
    """Eight devices share parameters and moments; the model, and the run resumed on one device, are those of one device."""
    changes = {
        "data": {"dev_questions": None},
        "negatives": {"retrieved": 0},
        "contrastive": {"corpus_softmax": True},
        "optimizer": {"clip": 0.05},
    }
    one, split, resumed = (tmp_path / name for name in ("one", "split", "resumed"))
    processes.finish(start("contrastive", tiny_models, one, 1, 1, changes))
    processes.finish(start("contrastive", tiny_models, split, 2, 4, changes | {"mesh": {"shard_parameters": True}}))
    shutil.copytree(split, resumed)
    shutil.rmtree(resumed / "checkpoints/4")
    outputs = processes.finish(start("contrastive", tiny_models, resumed, 1, 1, changes))
    assert "resuming from step 2" in outputs[0][1]
    expected = load_file(one / "model/model.safetensors")
    for folder in (split, resumed):
        same_losses(one, folder, 1e-5)
        for name, value in load_file(folder / "model/model.safetensors").items():
            np.testing.assert_allclose(value, expected[name], atol=1e-5, err_msg=name)
