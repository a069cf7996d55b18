"""One of several processes is killed at random, ten times: the others end soon, say why, and the run goes on."""

import random
import time
from pathlib import Path

import processes
import pytest
from training_processes import reported, same_losses, same_model, start, wait_for_step

pytestmark = pytest.mark.slow

SEED = 20261122
LOST_SECONDS = 3


def test_training_killed_ten_times_ends_as_an_undisturbed_run(tiny_models: Path, tmp_path: Path) -> None:
    draws = random.Random(SEED)
    changes = {"train": {"steps": 80, "eval_every": 1000, "save_every": 3}}
    processes.finish(start("contrastive", tiny_models, tmp_path / "whole", 2, 1, changes))
    longest = 0.0
    for kill in range(10):
        victim = draws.randrange(2)
        run = start(
            "contrastive",
            tiny_models,
            tmp_path / "run",
            2,
            1,
            changes | {"pause": 0.02},
            **processes.impatient(LOST_SECONDS),
        )
        # Twice while it starts, and else some steps behind the kill before.
        steps = 0 if kill % 5 == 2 else reported(tmp_path / "run") + draws.randrange(1, 8)
        assert wait_for_step(tmp_path / "run", steps, run)
        time.sleep(draws.uniform(0, 8) if not steps else draws.uniform(0, 0.05))
        longest = max(longest, processes.kill_one(run, victim, LOST_SECONDS))
    print(f"seed {SEED}: the other process ended within {longest:.1f} s")
    processes.finish(start("contrastive", tiny_models, tmp_path / "run", 2, 1, changes))
    same_model(tmp_path / "whole", tmp_path / "run")
    same_losses(tmp_path / "whole", tmp_path / "run", 0)
