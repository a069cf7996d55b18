"""A run goes on with other devices and processes than it began with, and is asked to stop in all processes at once."""

import shutil
import signal
from pathlib import Path

import processes
import pytest
from training_processes import batches, reported, same_losses, start, wait_for_step

from jaxretr.parallel.hosts import EXIT_AGAIN

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
