"""A loss that is no number, or that jumps, stops the run before anything of it is saved, and can be replayed."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jaxretr import cli
from jaxretr.runtime.errors import UserError
from jaxretr.training.loop import train
from jaxretr.training.loss_watch import LossWatch
from jaxretr.training.runs.contrastive import ContrastiveRun


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_first_loss_that_is_no_number_is_found(bad: float) -> None:
    watch = LossWatch(None)
    for step, loss in enumerate([3.0, 1.0, 500.0, bad, bad], start=11):
        watch.note(step, jnp.float32(loss))
    found = watch.check()
    assert found is not None and (found.step, found.usual) == (14, 3.0)


def test_a_jump_is_judged_by_the_median_and_only_if_asked() -> None:
    losses = [*np.linspace(2, 1, 40), 4.4, 4.6]
    for factor, expected in ((None, None), (3.0, 42), (2.9, 41)):
        watch, found = LossWatch(factor), None
        for step, loss in enumerate(losses, start=1):
            watch.note(step, jnp.float32(loss))
            found = found or watch.check()
        assert (found and found.step) == expected
    early = LossWatch(2.0)
    for step, loss in enumerate([1.0] * 10 + [9.0], start=1):
        early.note(step, jnp.float32(loss))
    assert early.check() is None, "ten losses do not say what is usual"


@pytest.mark.parametrize("usual", [0.0, -5.0])
def test_no_loss_is_a_jump_from_a_median_without_size(usual: float) -> None:
    """A margin loss is 0 in most batches, and a loss of one's own may be negative."""
    watch = LossWatch(3.0)
    for step, loss in enumerate([usual] * 30 + [0.01, usual / 2], start=1):
        watch.note(step, jnp.float32(loss))
    assert watch.check() is None


def test_a_run_stops_keeps_the_batch_and_is_replayed(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From step 5 on the loss and the parameters are no numbers."""
    config = tiny.contrastive_config(
        tiny_models, train={"steps": 12, "log_every": 3, "save_every": 2, "eval_every": 100, "keep": 10}
    )
    step = ContrastiveRun.step

    def failing(run: ContrastiveRun, state, number: int, batch: Any):
        state, values = step(run, state, number, batch)
        if number >= 4:
            broken = jax.tree.map(lambda x: x * jnp.nan, state.train.params)
            state = state._replace(train=dataclasses.replace(state.train, params=broken))
            values = {**values, "loss": jnp.float32(jnp.nan)}
        return state, values

    monkeypatch.setattr(ContrastiveRun, "step", failing)
    workdir = tmp_path / "run"
    with pytest.raises(UserError, match=rf"the loss of step 5 is nan \(usually .*jaxretr debug replay {workdir}"):
        train(config, workdir)
    # Step 6 would have been saved, with parameters that are no numbers.
    assert sorted(int(path.name) for path in (workdir / "checkpoints").iterdir()) == [0, 2, 4]
    report = json.loads((workdir / "failed/step-5.json").read_text())
    assert (report["step"], report["loss"], report["checkpoint"]) == (5, "nan", 4)

    capsys.readouterr()
    assert cli.main(["debug", "replay", str(workdir)]) == 0
    printed = capsys.readouterr().out
    assert "from the checkpoint of step 4" in printed and "step 5  " in printed
    assert "the batch of step 5 is the one that failed" in printed
    assert "before the step: all parameters are finite" in printed and "NOT the run's own steps" not in printed
    assert re.search(r"after the step: NaN or infinity in params\.\S+, .* and \d+ more", printed)

    path = workdir / "failed/step-5.npz"
    with np.load(path) as kept:
        arrays = dict(kept)
    name = max(arrays, key=lambda name: arrays[name].size)
    arrays[name] = arrays[name] + 1
    np.savez(path, **arrays)
    assert cli.main(["debug", "replay", str(workdir), "--step", "5"]) == 0
    assert "ANOTHER than the one that failed" in capsys.readouterr().out

    # The batch has the passages' rows, and does not tell that their texts were edited since.
    record = workdir / "inputs.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "passages": "others", "encoder": "another"}))
    assert cli.main(["debug", "replay", str(workdir), "--step", "5"]) == 0
    names = r"(another passages, another encoder|another encoder, another passages)"
    assert re.search(rf"NOT the run's own steps: it began with {names}\n", capsys.readouterr().out)
    for step, message in (("13", "the run has 12 steps"), ("0", "is not a whole number from 1")):
        assert cli.main(["debug", "replay", str(workdir), "--step", step]) == 2
        assert message in capsys.readouterr().err


def test_what_cannot_be_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["debug", "replay", str(tmp_path)]) == 1
    assert f"{tmp_path}/config.json: cannot be read" in capsys.readouterr().err
    assert cli.main(["debug", "replai", str(tmp_path)]) == 2
    assert "did you mean 'replay'" in capsys.readouterr().err


def test_a_factor_that_every_loss_exceeds_is_refused(tiny_models: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.stop_factor=0\.5: must be above 1"):
        train(tiny.contrastive_config(tiny_models, train={"stop_factor": 0.5}), tmp_path / "run")
