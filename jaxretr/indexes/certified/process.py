"""ScaNN in a process of its own: whether it works here, and the jobs of its worker."""

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxretr.indexes.certified import worker
from jaxretr.indexes.certified.instructions import can_use_avx2
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel.machine import cpu_name
from jaxretr.runtime.storage.files import atomic_write
from jaxretr.runtime.storage.paths import cache_root

log = logging.getLogger(__name__)


class ScannFailed(Exception):
    """The worker ended without an answer; the message is its last line."""


@functools.cache
def scann_problem() -> str | None:
    """Say why ScaNN cannot be used here, or None where it can.

    A tiny index is built and searched in another process, because a wheel for another processor ends the process. That
    it works is noted in $JAXRETR_CACHE or ~/.cache/jaxretr, for this installation and processor; a failure is not.
    """
    spec = importlib.util.find_spec("scann")
    if spec is None or spec.origin is None:
        return "it is not installed (it has wheels for Linux alone)"
    known = _verdict(Path(spec.origin))
    if known.exists():
        return None
    try:
        run_worker("self_test")
    except ScannFailed as error:
        return f"it fails its self-test ({error})"
    try:
        with atomic_write(known) as file:
            file.write("works\n")
    except UserError as error:
        log.debug("%s", error)
    return None


def _verdict(origin: Path) -> Path:
    """The file that notes that this installation works on this processor."""
    try:
        version = importlib.metadata.version("scann")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    processor = platform.machine(), cpu_name(), can_use_avx2()
    facts = (version, str(origin), origin.stat().st_mtime_ns, sys.version, *processor)
    return cache_root() / f"scann-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


def peak_of_job(job: str, advance: Callable[[int], None] = lambda rows: None, **facts: Any) -> int:
    """Run a job as `run_worker` does; return the most memory that the worker held, in bytes.

    Raises:
      UserError: ScaNN failed.
    """
    try:
        return run_worker(job, advance, **facts)["peak"]
    except ScannFailed as error:
        raise UserError(
            f"ScaNN failed ({error}); try other settings (leaves, training rows), or search exactly"
        ) from error


def run_worker(job: str, advance: Callable[[int], None] = lambda rows: None, **facts: Any) -> dict[str, Any]:
    """Run a job of worker.py in a process of its own; return its answer.

    Raises:
      ScannFailed: it ended without one.
    """
    # -P: without the current folder, where a file may be called like a module.
    command = [sys.executable, "-P", "-m", worker.__name__]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, env=_environment(), **pipes) as process:
        assert process.stdin and process.stdout and process.stderr
        try:
            return _converse(process, {"job": job, **facts}, advance)
        except BaseException:
            process.kill()
            raise


def _converse(process: subprocess.Popen[str], job: dict[str, Any], advance: Callable[[int], None]) -> dict[str, Any]:
    import threading

    assert process.stdin and process.stdout and process.stderr
    errors: list[str] = []
    # ScaNN writes much to its standard error: read in parallel to the answers, or it would wait for us.
    reader = threading.Thread(target=errors.extend, args=(process.stderr,), daemon=True)
    reader.start()
    try:
        json.dump(job, process.stdin)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it ended before it read; its output explains why
    answer, done = None, 0
    for line in process.stdout:
        try:
            content = json.loads(line)
        except ValueError:
            continue  # something that ScaNN printed
        if isinstance(content, dict) and "done" in content:
            advance(content["done"] - done)
            done = content["done"]
        elif isinstance(content, dict):
            answer = content
    code = process.wait()
    reader.join()
    if answer is None or code:
        last = next((line.strip() for line in reversed(errors) if line.strip()), "no output")
        raise ScannFailed(f"signal {-code}: {last}" if code < 0 else last)
    return answer


def _environment() -> dict[str, str]:
    """The worker's environment: this process's, with the folders that it imports from.

    One arena of glibc's for all threads: each further one would keep some 15 MB that it had freed.
    """
    folders = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    return {"MALLOC_ARENA_MAX": "1", **os.environ, "PYTHONPATH": folders}
