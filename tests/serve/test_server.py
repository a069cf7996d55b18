"""The process: how it starts, what it refuses, and how it ends under load."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jaxretr.cli import main
from jaxretr.models.dual_encoder import DualEncoder


class Process:
    """A `jaxretr serve` of its own, or another program that takes the same options."""

    def __init__(self, *options: str, log: Path, program: Sequence[str] = ("-m", "jaxretr")):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, *program, "serve", *options, "--port", str(self.port)]
        self.log = log
        self.process = subprocess.Popen(command, stderr=log.open("w"), env=environment)

    def ask(self, method: str, path: str, body: Any = None, timeout: float = 60) -> tuple[int, Any]:
        """Status and JSON of an answer, over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            connection.request(
                method, path, None if body is None else json.dumps(body), {"content-type": "application/json"}
            )
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def wait(self, until: int = 200) -> list[str]:
        """Waits for /health to have that status; returns what it said on the way."""
        said, end = [], time.monotonic() + 180
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError):
                status, answer = self.ask("GET", "/health", timeout=5)
                said.append(answer["status"])
                if status == until:
                    return said
            time.sleep(0.1)
        raise AssertionError(f"it did not get ready: {self.log.read_text()}")

    def lines(self) -> list[dict[str, Any]]:
        """The log."""
        ended, _, _ = self.log.read_text().rpartition("\n")  # The last line may be half written.
        return [json.loads(line) for line in ended.splitlines()]


@pytest.fixture(scope="module")
def model(encoder: DualEncoder) -> str:
    assert encoder.source is not None
    return encoder.source


@pytest.fixture
def process(model: str, tmp_path: Path) -> Iterator[Process]:
    # Batches of a text each, so that many requests are under way for some time.
    options = ("--index", f"notes={tmp_path / 'notes'}", "--max-batch-tokens", "16", "--compute", "float32")
    made = Process(model, *options, log=tmp_path / "log")
    yield made
    made.process.kill()
    made.process.wait()


@pytest.mark.parametrize("reason", ["an older model", "a tokenizer", "a re-ranker"])
def test_transformers_does_not_import_torch(reason: str, model: str, tiny_cross_encoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    if reason == "an older model":
        content = json.loads((folder / "jaxretr.json").read_text())
        del content["tokenizer"]
        (folder / "jaxretr.json").write_text(json.dumps(content))
    options = {"a tokenizer": ("--tokenizer", model), "a re-ranker": ("--reranker", str(tiny_cross_encoder))}
    made = Process(str(folder), *options.get(reason, ()), "--compute", "float32", log=tmp_path / "log")
    try:
        made.wait()
        assert "libtorch" not in Path(f"/proc/{made.process.pid}/maps").read_text()
    finally:
        made.process.kill()
        made.process.wait()


def test_it_gets_ready_and_a_signal_under_load_loses_no_accepted_request(process: Process) -> None:
    said = process.wait()
    assert set(said) == {"starting", "ok"}
    assert "libtorch" not in Path(f"/proc/{process.process.pid}/maps").read_text()  # It takes a second to import.
    ready = next(line for line in process.lines() if line.get("message") == "ready")
    assert ready["url"] == f"http://127.0.0.1:{process.port}"
    assert ready["indexes"] == {"notes": 0}

    # Slow clients: one says half a request, one does not read its answer. Nobody waits for them.
    half = socket.create_connection(("127.0.0.1", process.port))
    half.sendall(
        b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    )
    deaf = socket.create_connection(("127.0.0.1", process.port))
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    body = json.dumps({"input": ["a"] * 256}).encode()
    deaf.sendall(
        b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )

    def work(number: int) -> tuple[int, str]:
        documents = [{"id": f"{number}-{n}", "text": f"text {n} of {number}"} for n in range(16)]
        try:
            status, answer = process.ask("POST", "/v1/notes/upsert", {"documents": documents})
        except ConnectionRefusedError:
            return 0, "refused"
        return status, json.dumps(answer)

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        running = [pool.submit(work, number) for number in range(200)]
        while sum(each.done() for each in running) < 12:
            time.sleep(0.02)
        process.process.send_signal(signal.SIGTERM)
        answers = [each.result() for each in running]
    half.close()
    deaf.close()
    assert process.process.wait(timeout=60) == 0
    assert not [line for line in process.lines() if line.get("level") in ("error", "critical")]
    assert process.lines()[-1]["message"] == "stopped"
    # Each request was answered in full, was told that the service stops, or found nobody that listens: none was cut off.
    statuses = {status for status, _ in answers}
    assert statuses <= {0, 200, 503}, [answer for answer in answers if answer[0] not in (0, 200, 503)]
    accepted = sum(status == 200 for status, _ in answers)
    assert 12 <= accepted < 200
    assert any("stopping" in text for status, text in answers if status == 503)
    written = [line for line in process.lines() if line.get("route") == "/v1/{index}/upsert" and line["status"] == 200]
    assert len(written) == accepted


def test_what_was_acknowledged_is_there_after_a_restart(process: Process, model: str, tmp_path: Path) -> None:
    process.wait()
    documents = [{"id": "a", "title": "T", "text": "Hello"}]
    assert process.ask("POST", "/v1/notes/upsert", {"documents": documents})[0] == 200
    process.process.kill()
    process.process.wait()
    again = Process(model, "--index", f"notes={tmp_path / 'notes'}", "--max-batch-tokens", "16", log=tmp_path / "log2")
    try:
        again.wait()
        assert again.ask("GET", "/v1/notes/doc/a") == (200, {**documents[0], "metadata": {}})
    finally:
        again.process.terminate()
        assert again.process.wait(timeout=60) == 0


# Snapshots that are never finished, made of calls into C++ as ScaNN's are.
_ENDLESS = """
import gc, json, sys
import numpy as np, jax
from jaxretr.cli import main
from jaxretr.indexes.live import snapshots

def write(*_):
    line = json.dumps({"message": "building", "collects": gc.isenabled()})
    print(f"{line}\\n", end="", file=sys.stderr, flush=True)
    multiply, ones = jax.jit(lambda x: x @ x), np.ones((64, 64), np.float32)
    while True:
        np.asarray(multiply(ones))

snapshots.write = write
sys.exit(main(sys.argv[1:]))
"""


def test_a_signal_while_a_snapshot_is_made_ends_it(model: str, tmp_path: Path) -> None:
    indexes = [f"{name}={tmp_path / name}" for name in ("notes", "drafts")]
    options = (model, *(word for each in indexes for word in ("--index", each)), "--max-batch-tokens", "16")
    process = Process(*options, log=tmp_path / "log", program=("-c", _ENDLESS))
    try:
        process.wait()
        for name in ("notes", "drafts"):
            for start in range(0, 1536, 512):
                documents = [{"id": f"{start + n}", "text": "a"} for n in range(512)]
                body = {"documents": documents, "vectors": [[1.0] * 16] * 512}
                assert process.ask("POST", f"/v1/{name}/upsert", body)[0] == 200
        while sum(line["message"] == "building" for line in process.lines() if "message" in line) < 2:
            time.sleep(0.1)
        assert all(line["collects"] for line in process.lines() if line.get("message") == "building")
        began = time.monotonic()
        process.process.terminate()
        assert process.process.wait(timeout=60) == 0
        assert time.monotonic() - began < 20, "it waits some seconds, for both together"
        assert process.lines()[-1]["message"] == "stopped"
    finally:
        process.process.kill()


def test_a_signal_while_it_starts_ends_it(model: str, tmp_path: Path) -> None:
    process = Process(model, log=tmp_path / "log")
    process.wait(until=503)
    process.process.terminate()
    assert process.process.wait(timeout=60) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_it_listens_ends_it(number: signal.Signals) -> None:
    # During an import, inside a callback: what it raises there is lost.
    program = f"""
import signal, sys, weakref
from jaxretr.runtime import errors
from jaxretr.cli import main
class Here: pass
def signalled(*_):
    here = Here()
    watched = weakref.ref(here, lambda _: signal.raise_signal({int(number)}))
    del here
    sys.exit(3)
errors.import_extra = signalled
main(["serve", "model"])
"""
    assert subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE).returncode == 0


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--workers", "4"], "--workers 4: only one process can serve"),
        (["--host", "0.0.0.0"], "give --keys FILE, or --open"),
        (["--rate", "often"], "--rate often: give one number"),
        (["--rate", "100/minute;5/second"], "--rate 100/minute;5/second: give one number"),
        (["--rate", "0/minute"], "--rate 0/minute: give one number, from 1"),
        (["--corpus", "c.jsonl"], "--corpus c.jsonl: give NAME=FILE"),
        (["--index", "a=x", "--index", "a=y"], "there are two indexes 'a'"),
        (["--index", "search me=x"], "index name 'search me'"),
        (["--index", "rerank=x"], "is taken by the service's own paths"),
        (["--keys", "nope"], "nope: No such file"),
        (["--reranker-kind", "t5"], "is for --reranker SCORER"),
        (["--port", "70000"], "is not a port"),
        (["--max-body", "0"], "is not a whole number from 1"),
    ],
)
def test_what_is_refused_before_anything_is_loaded(
    model: str, options: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", model, *options]) in (1, 2)
    assert what in capsys.readouterr().err


def test_several_workers_by_the_environment_or_by_an_import_are_refused(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "2")
    assert main(["serve", model]) == 2
    assert "WEB_CONCURRENCY=2: only one process can serve" in capsys.readouterr().err
    from jaxretr.runtime.errors import UsageError
    from jaxretr.serve import app

    with pytest.raises(UsageError, match="jaxretr serve"):
        app.app  # noqa: B018  # What gunicorn and uvicorn look for.


def test_a_port_that_is_taken_is_said(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", model, "--port", str(port)]) == 1
    assert f"127.0.0.1:{port}:" in capsys.readouterr().err
