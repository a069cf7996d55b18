"""`jaxretr doctor`: what it finds here, and on machines where something is slow, missing or broken."""

import importlib.metadata
import json
import shutil
from collections import namedtuple
from typing import Any

import jax
import pytest

from jaxretr import cli
from jaxretr.runtime.extras import EXTRAS
from jaxretr.runtime.parallel import machine


def examined(capsys: pytest.CaptureFixture[str], code: int) -> dict[str, Any]:
    assert cli.main(["doctor", "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_tables_and_the_json_say_the_same(capsys: pytest.CaptureFixture[str]):
    found = examined(capsys, 0)
    (device,) = found["devices"]
    assert (device["backend"], device["number"]) == ("cpu", jax.device_count()) and device["memory"] > 1 << 30
    assert {"python", "jaxretr", "jax", "optax"} <= {row["package"] for row in found["versions"]}
    assert [row["extra"] for row in found["extras"]] == list(EXTRAS)
    assert all(("pip install" in row["install by"]) == (row["here"] == "no") for row in found["extras"])
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("problems\n  none\n") and str(device["memory"]) not in printed
    assert all(str(row["folder"]) in printed for row in found["caches"])


def test_what_makes_it_slow_is_said_with_a_remedy(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "cpu_threads", lambda: 4)
    monkeypatch.setattr(machine, "cpu_quota", lambda: 1.5)
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(1 << 20))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("NUMBA_NUM_THREADS", "4")
    was = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        slow = examined(capsys, 0)["slow"]
    finally:
        jax.config.update("jax_enable_compilation_cache", was)
    starts = ["4 of 16 processors", "4 threads share the time of 1.5", "OMP_NUM_THREADS=1", "compiled programs are not"]
    assert len(slow) == 5 and all(line.startswith(start) for line, start in zip(slow, starts, strict=False)), slow
    assert "1.0 MiB are free" in slow[4] and slow[4].endswith("set TMPDIR to another folder")


def test_what_prevents_work_is_said_with_a_remedy_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    version = importlib.metadata.version

    def without_optax(name: str) -> str:
        if name == "optax":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    def no_devices() -> list[jax.Device]:
        raise RuntimeError("Unable to initialize backend 'cuda':\nno card")

    monkeypatch.setattr(importlib.metadata, "version", without_optax)
    monkeypatch.setattr(jax, "devices", no_devices)
    found = examined(capsys, 1)
    missing, device = found["problems"]
    assert missing.startswith("optax is not installed; run: pip install optax==")
    assert "Unable to initialize backend 'cuda'" in device and "\n" not in device and "JAX_PLATFORMS" in device
    assert found["devices"] == []
