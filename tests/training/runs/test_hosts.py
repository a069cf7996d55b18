"""Several processes train as one would; one that differs, fails, dies or never comes is named, and the rest ends."""

import hashlib
import json
import socket
import time
from pathlib import Path

import numpy as np
import processes
import pytest
from processes import ended, last_error
from safetensors.numpy import load_file
from training_processes import PROGRAM, start

from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel import hosts
from jaxretr.runtime.parallel.hosts import EXIT_AGAIN
from jaxretr.training.metrics_log import read_metrics


@pytest.fixture(scope="module", params=["art", "contrastive"])
def alone(request: pytest.FixtureRequest, tiny_models: Path, tmp_path_factory: pytest.TempPathFactory):
    """(objective, the folder of its run in one process with 8 devices)."""
    workdir = tmp_path_factory.mktemp(request.param) / "run"
    processes.finish(start(request.param, tiny_models, workdir, 1, 8))
    return request.param, workdir


@pytest.mark.parametrize(("count", "devices"), [(2, 4), pytest.param(4, 2, marks=pytest.mark.slow)])
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
        assert said.format(host=socket.gethostname()) in last_error(errors)
    assert not (tmp_path / "run/config.json").exists()


def with_lines(*lines: str) -> str:
    """PROGRAM with lines that process 1 runs before the command."""
    block = "".join(f"    {line}\n" for line in lines)
    return PROGRAM.replace("# Lines of a test come here.\n", f"if process == 1:\n{block}")


def test_other_data_are_named(tiny_models: Path, tmp_path: Path) -> None:
    """The same path, and a passage less behind it on one host."""
    program = with_lines(
        "from jaxretr.data.corpus import Corpus",
        "from jaxretr.training.runs import art_texts",
        "read = art_texts.mapped_corpus",
        "art_texts.mapped_corpus = lambda path, root: Corpus.from_passages(list(read(path, root))[:-1])",
    )
    words = ["-c", program, "art", str(tiny_models), str(tmp_path / "run"), "{}"]
    for code, errors in ended(processes.start(words, 2, 1)):
        assert code == 1, errors
        assert "the first step: process 1" in last_error(errors) and "another corpus" in last_error(errors)


def test_another_code_is_named(tiny_models: Path, tmp_path: Path) -> None:
    """A host on which a file of the package was edited, or was not."""
    program = with_lines(
        "facts = train.program_facts",
        "train.program_facts = lambda: {**facts(), 'code of jaxretr': 'edited'}",
    )
    words = ["-c", program, "art", str(tiny_models), str(tmp_path / "run"), "{}"]
    for code, errors in ended(processes.start(words, 2, 1)):
        assert code == 1, errors
        assert "the beginning: process 1" in last_error(errors) and "another code of jaxretr" in last_error(errors)


def test_a_host_that_comes_late_is_waited_for(tiny_models: Path, tmp_path: Path) -> None:
    program = with_lines("time.sleep(8)")
    words = ["-c", program, "contrastive", str(tiny_models), str(tmp_path / "run"), "{}"]
    outputs = processes.finish(processes.start(words, 2, 1))
    assert "model:" in outputs[0][0]


def test_no_thread_talks_to_the_coordinator_when_the_interpreter_ends(tiny_models: Path, tmp_path: Path) -> None:
    """An interpreter that ends under a call of the coordinator's client aborts, with all work done."""
    # Registered before JAX's own handlers, and hence called after them.
    first = "import atexit, threading\natexit.register(lambda: print([each.name for each in threading.enumerate()]))\n"
    words = ["-c", first + PROGRAM, "contrastive", str(tiny_models), str(tmp_path / "run"), "{}"]
    for output, _ in processes.finish(processes.start(words, 2, 1)):
        assert "'MainThread'" in output and "jaxretr-watch" not in output


def test_a_host_that_never_comes(tiny_models: Path, tmp_path: Path) -> None:
    run = start("art", tiny_models, tmp_path / "run", 2, 1, JAXRETR_JOIN_SECONDS="5")
    run[1].kill()
    run[1].communicate()
    began = time.monotonic()
    ((code, errors),) = ended(run[:1])
    assert code == EXIT_AGAIN and time.monotonic() - began < 60
    assert "not all processes have come within 5 seconds (JAXRETR_JOIN_SECONDS)" in last_error(errors)


def test_a_host_that_fails_ends_the_others(tiny_models: Path, tmp_path: Path) -> None:
    """One cannot read its scorer; the others would wait for it."""
    program = with_lines("from jaxretr.training.runs import art", "art.load_teacher = None")
    words = ["-c", program, "art", str(tiny_models), str(tmp_path / "run"), "{}"]
    began = time.monotonic()
    (code, errors), (failed, reason) = ended(processes.start(words, 2, 1))
    assert failed == 1 and "NoneType" in last_error(reason)
    # The same code: another start alone would not help.
    assert code == 1 and "process 1 failed: " in last_error(errors) and "fix that" in last_error(errors)
    assert time.monotonic() - began < 120


# ---- without processes: what each of them does with what the others wrote --------------------------------------------


class Store(dict[str, str]):
    """The coordinator's key-value store, as processes see it."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        assert allow_overwrite or key not in self
        self[key] = value

    def key_value_dir_get(self, prefix: str) -> list[tuple[str, str]]:
        return [(key, value) for key, value in self.items() if key.startswith(prefix)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """This process is number 0 of three."""
    found = Store()
    monkeypatch.setattr(hosts, "_client", lambda: found)
    monkeypatch.setattr("jax.process_count", lambda: 3)
    monkeypatch.setattr("jax.process_index", lambda: 0)
    return found


def agrees(store: Store, monkeypatch: pytest.MonkeyPatch, *others: dict[str, str]) -> None:
    """Compares {"config": "a"} with what the others have."""
    monkeypatch.setattr(hosts, "_visits", iter([7]))
    for process, facts in enumerate(others, start=1):
        digests = {name: hashlib.sha256(value.encode()).hexdigest() for name, value in facts.items()}
        store[f"{hosts._FACTS}/the start/7/{process}"] = json.dumps({"host": f"host{process}", "facts": digests})
    hosts.agree("the start", {"config": "a"})


def test_facts_that_differ_are_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^the start: process 2 \(host2\) has another config than the rest"):
        agrees(store, monkeypatch, {"config": "a"}, {"config": "b"})


def test_equal_facts_pass(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    agrees(store, monkeypatch, {"config": "a"}, {"config": "a"})


def test_a_process_that_does_not_come_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRETR_JOIN_SECONDS", "1")
    with pytest.raises(UserError, match="process 2 of 3 has not come to the start"):
        agrees(store, monkeypatch, {"config": "a"})


@pytest.mark.parametrize(
    ("said", "why", "code"),
    [
        (f"{hosts._FAILED}1 no such file", "process 1 failed: no such file", 1),
        ("12", "process 1 has given no sign of life for 0 seconds", EXIT_AGAIN),
    ],
)
def test_a_process_that_failed_or_is_silent_ends_the_others(
    store: Store, monkeypatch: pytest.MonkeyPatch, said: str, why: str, code: int
) -> None:
    class Ended(BaseException):
        pass

    def leave(reason: str, code: int = EXIT_AGAIN) -> None:
        raise Ended(reason, code)

    monkeypatch.setattr(hosts, "leave", leave)
    monkeypatch.setattr(hosts, "_pause", lambda: 0.01)
    monkeypatch.setattr(hosts.distributed.global_state, "process_id", 0)
    store[f"{hosts._ALIVE}/1"] = said
    with pytest.raises(Ended) as ended_by:
        hosts._Watch(0).run()
    assert ended_by.value.args == (why, code)
