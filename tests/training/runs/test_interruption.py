"""A run that is asked to stop in an evaluation stops there, and resumes as if nothing had happened."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import pytest
import tiny
from test_best_is_start import Measured

from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel.hosts import EXIT_AGAIN
from jaxretr.training import loop as program
from jaxretr.training.metrics_log import read_metrics


class Stopped(Measured):
    """A run that is asked to stop in the evaluations with these numbers, of those that begin."""

    def __init__(self, config: Any, values: list[float], stops: tuple[int, ...] = (), before: bool = False):
        super().__init__(config, values)
        self.stops, self.before, self.begun = stops, before, 0

    def abstract_state(self) -> Any:
        return jax.eval_shape(self.init)

    def refreshed(self, state: Any, number: int) -> Any:
        if self.before and self.begun in self.stops:
            os.kill(os.getpid(), signal.SIGTERM)
        return state

    def evaluate(self, state: Any) -> dict[str, float]:
        number, self.begun = self.begun, self.begun + 1
        if number in self.stops:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        return super().evaluate(state)


def run(monkeypatch: Any, workdir: Path, made: Stopped) -> Any:
    monkeypatch.setattr(program, "build", lambda *_: made)
    return program.train(made.config, workdir)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("stop", [1, 2])
def test_an_evaluation_that_is_interrupted_is_made_when_the_run_resumes(
    stop: int, before: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    """In the middle and after the last step; where the signal came before the evaluation, too."""
    config = tiny.contrastive_config(
        tmp_path, train={"steps": 4, "eval_every": 2, "save_every": 4, "best_metric": "mrr"}
    )
    values = [0.1, 0.3, 0.2]
    whole = run(monkeypatch, tmp_path / "whole", Stopped(config, values))
    began = time.monotonic()
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, tmp_path / "run", Stopped(config, values, (stop,), before))
    assert stopped.value.code == EXIT_AGAIN and time.monotonic() - began < 30
    assert (tmp_path / f"run/checkpoints/{2 * stop}").is_dir()
    resumed = run(monkeypatch, tmp_path / "run", Stopped(config, values[stop:]))
    assert (resumed.best, dict(resumed)) == (whole.best, dict(whole))
    measured = [[(line["step"], line["mrr"]) for line in read_metrics(f) if "mrr" in line] for f in
                (tmp_path / "whole", tmp_path / "run")]  # fmt: skip
    assert measured[0] == measured[1] == [(0, 0.1), (2, 0.3), (4, 0.2)]


def test_the_evaluation_before_the_first_step_is_announced_and_ends_at_once(
    tmp_path: Path, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny.contrastive_config(tmp_path, train={"steps": 1, "best_metric": "mrr"})
    with caplog.at_level(logging.INFO), pytest.raises(SystemExit) as stopped:
        run(monkeypatch, tmp_path / "run", Stopped(config, [0.1], (0,)))
    assert stopped.value.code == EXIT_AGAIN
    lines = [record.getMessage() for record in caplog.records]
    assert any("before the first step: 2 questions" in line for line in lines)
    assert run(monkeypatch, tmp_path / "run", Stopped(config, [0.1, 0.2]))["mrr"] == 0.2


def test_two_runs_do_not_write_one_folder(tmp_path: Path, monkeypatch: Any) -> None:
    """They deleted each other's checkpoints, and wrote lines of metrics in turn."""
    config = tiny.contrastive_config(tmp_path, train={"steps": 1, "best_metric": "mrr"})
    monkeypatch.setattr(program, "build", lambda *_: Stopped(config, [0.1, 0.2]))

    def again(*_: Any) -> None:
        with pytest.raises(UserError, match="another process is training in this folder"):
            program.train(config, tmp_path / "run")

    assert program.train(config, tmp_path / "run", on_step=again)["mrr"] == 0.2
    assert program.train(config, tmp_path / "run")["mrr"] == 0.2, "it is free again"


# In a compiled program no handler of Python's runs.
IN_C = """
import hashlib, os, signal, threading
from jaxretr.training.interruption import Interruption
with Interruption() as interruption:
    for seconds in (0.0, 1.0):
        with interruption.ends_at_once():
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM)).start() if seconds else None
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 300_000_000 if seconds else 1)
"""


def test_a_signal_in_a_compiled_program_ends_the_process() -> None:
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", IN_C], capture_output=True, text=True, timeout=300, env={
        **os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path]), "JAX_PLATFORMS": "cpu"
    })  # fmt: skip
    assert done.returncode == EXIT_AGAIN, done.stderr
    assert time.monotonic() - began < 60
