"""--profile-steps writes a trace that the viewers open, and the metrics say where the time went."""

import gzip
import json
import logging
import time
from pathlib import Path

import pytest
import tiny
from test_cli import run as run_command

from jaxretr.runtime.errors import UsageError
from jaxretr.training.loop import train
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.profiling import StepTrace, Stopwatch

NO_EVALUATION = {"train": {"steps": 5, "eval_every": 100, "save_every": 2}}


def test_the_steps_asked_for_are_traced(tiny_models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tiny.contrastive_config(tiny_models, negatives={"retrieved": 1}, data={"corpus": str(tiny.DATA)})
    with caplog.at_level(logging.INFO, "jaxretr"):
        train(config, tmp_path / "run", profile_steps=(3, 4))
    (space,) = (tmp_path / "run/profile").rglob("*.xplane.pb")
    assert space.stat().st_size > 10_000
    (trace,) = (tmp_path / "run/profile").rglob("perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    steps = {event["args"]["step_num"] for event in events if event.get("name") == "train"}
    assert steps == {"3", "4"}, "these steps and no others"
    assert f"{tmp_path}/run/profile: the trace of steps 3 to 4" in caplog.text


def test_an_option_of_the_command(tiny_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("4", "0:2", "3:2", "a:b"):
        assert run_command("train", "x.py", "--workdir", tmp_path / "run", "--profile-steps", wrong) == 2
        assert f"'{wrong}' is not a window of steps" in capsys.readouterr().err
    config = tiny.contrastive_config(tiny_models)
    with pytest.raises(UsageError, match=r"profile_steps=6:7: the run has steps 1 to 6"):
        train(config, tmp_path / "run", profile_steps=(6, 7))


def test_a_run_that_goes_on_traces_what_is_left(tmp_path: Path) -> None:
    """The same command is given again after a preemption, and must not be wrong then."""
    for start, traced in ((4, [5, 6]), (5, [6]), (6, [])):
        trace, begun = StepTrace((3, 6), tmp_path / str(start), start, 9), []
        for number in range(start + 1, 10):
            with trace.step(number):
                begun += [number] if trace._traced else []
            trace.end(number, ())
        trace.close()
        assert begun == traced
        assert len(list((tmp_path / str(start)).rglob("*.xplane.pb"))) == bool(traced)


def test_a_trace_ends_with_the_run(tmp_path: Path) -> None:
    """Else the next one of this process could not begin."""
    for folder in ("one", "two"):  # The traces' own names are the seconds in which they end.
        trace = StepTrace((1, 9), tmp_path / folder, 0, 9)
        with trace.step(1):
            pass
        trace.close()
    assert len(list(tmp_path.rglob("*.xplane.pb"))) == 2


def test_the_metrics_say_what_took_how_long(
    tiny_models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    with caplog.at_level(logging.INFO, "jaxretr"):
        train(tiny.contrastive_config(tiny_models, **NO_EVALUATION), tmp_path / "run")
    whole = time.monotonic() - began
    lines = [line for line in read_metrics(tmp_path / "run") if "loss" in line]
    parts = {name for line in lines for name in line if name.startswith("seconds/")}
    assert parts == {
        f"seconds/{name}" for name in ("start", "input", "first_step", "steps", "evaluation", "checkpoints")
    }
    told = sum(line.get(name, 0) for line in lines for name in parts)
    assert 0.3 * whole < told < whole, "compiling and reading the data come on top"
    # The first step compiles; its time is not that of the steps behind it.
    assert sum(line["seconds/first_step"] for line in lines) > max(line["seconds/steps"] for line in lines)
    assert "first step" in caplog.text and "checkpoints" in caplog.text
    assert "seconds/" not in capsys.readouterr().err, "the progress line stays short"


def test_a_stopwatch_counts_each_part_once() -> None:
    clock = Stopwatch()
    with clock.part("a"):
        time.sleep(0.05)
    assert clock.news()["a"] == pytest.approx(0.05, abs=0.04)
    with clock.part("b"), pytest.raises(ValueError):
        raise ValueError
    news = clock.news()
    assert news["a"] == 0 and news["b"] < 0.04
    assert clock.summary().split(": ", 1)[1].startswith("a 0.")
