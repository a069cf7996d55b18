"""Several processes train as one would; one that differs, fails, dies or never comes is named, and the rest ends."""

import json
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import processes
import pytest
from safetensors.numpy import load_file

from jaxretr.metrics_log import read_metrics
from jaxretr.parallel.hosts import EXIT_AGAIN

STEPS = 4

# `python -c PROGRAM KIND MODELS WORKDIR CHANGES`: CHANGES are of sections of the config, and for one process "only": N.
PROGRAM = """
import json, os, sys
from pathlib import Path
import tiny
from jaxretr import cli, config as configuration, train
kind, models, workdir, changes = sys.argv[1:5]
changes = json.loads(changes)
if changes.pop("only", None) not in (None, int(os.environ.get("JAX_PROCESS_ID", "0"))):
    changes = {}
base = {"train": {"steps": STEPS, "eval_every": 100, "save_every": 2}, "optimizer": {"eps": 1e-5}}
if kind == "art":
    make, more = tiny.art_config, {"art": {"refresh_every": 2}}
else:
    make, more = tiny.contrastive_config, {"negatives": {"retrieved": 1}, "data": {"corpus": str(tiny.DATA)}}
sections = {**base, **more}
for name, fields in changes.items():
    sections[name] = {**sections.get(name, {}), **fields}
made = make(Path(models), **sections)
configuration.load = lambda path, overrides: made
sys.exit(cli.main(["train", "no.py", "--workdir", workdir]))
""".replace("STEPS", str(STEPS))


def start(kind: str, models: Path, workdir: Path, count: int, devices: int, changes: dict | None = None, **variables):
    words = ["-c", PROGRAM, kind, str(models), str(workdir), json.dumps(changes or {})]
    return processes.start(words, count, devices, **variables)


@pytest.fixture(scope="module", params=["art", "contrastive"])
def alone(request: pytest.FixtureRequest, tiny_models: Path, tmp_path_factory: pytest.TempPathFactory):
    """(objective, the folder of its run in one process with 8 devices)."""
    workdir = tmp_path_factory.mktemp(request.param) / "run"
    processes.finish(start(request.param, tiny_models, workdir, 1, 8))
    return request.param, workdir


@pytest.mark.parametrize(("count", "devices"), [(2, 4), (4, 2)])
def test_processes_train_what_one_trains(alone, tiny_models: Path, tmp_path: Path, count: int, devices: int) -> None:
    kind, whole = alone
    outputs = processes.finish(start(kind, tiny_models, tmp_path / "run", count, devices))
    # The first one writes, and nobody twice.
    assert ["model:" in output for output, _ in outputs] == [True] * count
    expected, found = (load_file(folder / "model/model.safetensors") for folder in (whole, tmp_path / "run"))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    for ours, theirs in zip(read_metrics(tmp_path / "run"), read_metrics(whole), strict=True):
        assert ours.keys() == theirs.keys()
        for name in {"step", "loss", "acc@1", "acc@5"} & ours.keys():
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5)


def ended(run: list[subprocess.Popen], timeout: float = 240) -> list[tuple[int, str]]:
    try:
        outputs = [process.communicate(timeout=timeout)[1] for process in run]
    finally:
        for process in run:
            process.kill()
    return [(process.returncode, errors) for process, errors in zip(run, outputs, strict=True)]


def last_line(errors: str) -> str:
    return next(line for line in reversed(errors.splitlines()) if line.startswith("jaxretr: error:"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optimizer": {"learning_rate": 1e-2}}, "the beginning: process 1 ({host}) has another config.optimizer"),
        ({"train": {"seed": 3}}, "the beginning: process 1 ({host}) has another config.train"),
    ],
)
def test_another_config_is_named(tiny_models: Path, tmp_path: Path, changes: dict, said: str) -> None:
    for code, errors in ended(start("art", tiny_models, tmp_path / "run", 3, 1, {"only": 1, **changes})):
        assert code == 1, errors
        assert said.format(host=socket.gethostname()) in last_line(errors)
    assert not (tmp_path / "run/config.json").exists()


def with_lines(*lines: str) -> str:
    """PROGRAM with lines that process 1 runs before the command."""
    block = "".join(f"    {line}\n" for line in lines)
    return PROGRAM.replace("sys.exit(", f'if os.environ["JAX_PROCESS_ID"] == "1":\n{block}sys.exit(')


def test_other_data_are_named(tiny_models: Path, tmp_path: Path) -> None:
    """The same path, and a passage less behind it on one host."""
    program = with_lines(
        "from jaxretr.data.corpus import Corpus",
        "from jaxretr.recipes import art",
        "read = art.read_corpus",
        "art.read_corpus = lambda path: Corpus.from_passages(list(read(path))[:-1])",
    )
    words = ["-c", program, "art", str(tiny_models), str(tmp_path / "run"), "{}"]
    for code, errors in ended(processes.start(words, 2, 1)):
        assert code == 1, errors
        assert "the first step: process 1" in last_line(errors) and "another corpus" in last_line(errors)


def test_a_host_that_never_comes(tiny_models: Path, tmp_path: Path) -> None:
    run = start("art", tiny_models, tmp_path / "run", 2, 1, JAXRETR_JOIN_SECONDS="5")
    run[1].kill()
    run[1].communicate()
    began = time.monotonic()
    ((code, errors),) = ended(run[:1])
    assert code == 1 and time.monotonic() - began < 60
    assert "not all processes have come within 5 seconds (JAXRETR_JOIN_SECONDS)" in last_line(errors)


def test_a_host_that_fails_ends_the_others(tiny_models: Path, tmp_path: Path) -> None:
    """One cannot read its scorer; the others would wait for it."""
    program = with_lines("from jaxretr.recipes import art", "art.QuestionScorer = None")
    words = ["-c", program, "art", str(tiny_models), str(tmp_path / "run"), "{}"]
    began = time.monotonic()
    (code, errors), (failed, reason) = ended(processes.start(words, 2, 1))
    assert failed == 1 and "NoneType" in last_line(reason)
    assert code == EXIT_AGAIN and "process 1 failed" in last_line(errors)
    assert time.monotonic() - began < 120


def begun(workdir: Path, steps: int, run: list[subprocess.Popen]) -> None:
    """Waits for so many steps."""
    while all(process.poll() is None for process in run):
        if (workdir / "metrics.jsonl").exists() and len((workdir / "metrics.jsonl").read_text().splitlines()) >= steps:
            return
        time.sleep(0.01)
    raise AssertionError([process.communicate()[1][-2000:] for process in run])


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_host_ends_the_others_and_the_run_goes_on(tiny_models: Path, tmp_path: Path, victim: int) -> None:
    changes = {"train": {"steps": 60, "eval_every": 1000, "save_every": 5}}
    processes.finish(start("contrastive", tiny_models, tmp_path / "whole", 2, 1, changes))
    run = start("contrastive", tiny_models, tmp_path / "run", 2, 1, changes, JAXRETR_LOST_SECONDS="8")
    begun(tmp_path / "run", 12, run)
    run[victim].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    code, errors = ended(run)[1 - victim]
    seconds = time.monotonic() - killed
    assert seconds < 60
    if victim:
        assert code == EXIT_AGAIN and "process 1 has given no sign of life for 8 seconds" in last_line(errors)
    else:  # JAX's own words: its coordinator is gone
        assert code != 0 and "another task died" in errors
    print(f"the other process ended after {seconds:.1f} s with {code}")
    processes.finish(start("contrastive", tiny_models, tmp_path / "run", 2, 1, changes))
    expected, found = (load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "run"))
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    whole, again = ([line["step"] for line in read_metrics(tmp_path / name)] for name in ("whole", "run"))
    assert again == whole, "each step is reported once"
