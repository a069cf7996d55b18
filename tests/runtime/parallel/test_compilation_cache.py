"""Compiled programs on disk: kept without being asked for, never in the way."""

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.parallel.compilation_cache import keep_programs, trim

FOLDER, SECONDS = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's empty cache folder, in a process where nothing is set yet; every program counts."""
    before = {name: getattr(jax.config, name) for name in (FOLDER, SECONDS)}
    monkeypatch.delenv(FOLDER.upper())
    monkeypatch.setenv("JAXRETR_CACHE", str(tmp_path / "cache"))
    jax.config.update(FOLDER, None)
    jax.config.update(SECONDS, 0.0)
    reset_cache()
    yield tmp_path / "cache/xla"
    for name, value in before.items():
        jax.config.update(name, value)
    reset_cache()


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*-cache"))


def test_what_python_compiled_is_read_by_the_next_process_and_damage_costs_a_warning(
    folder: Path, tiny_models: Path
) -> None:
    def encoded() -> np.ndarray:
        jax.clear_caches()  # as in a new process
        # In bfloat16, for there are CPUs that encode float32 without XLA.
        encoder = DualEncoder.from_pretrained(tiny_models / "encoder", dtype="bfloat16")
        return encoder.encode_queries(["who was it", "where is it"])

    first = encoded()
    kept = entries(folder)
    assert kept
    np.testing.assert_array_equal(encoded(), first)
    assert entries(folder) == kept
    for path in kept:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.warns(UserWarning, match="Error reading persistent compilation cache entry"):
        np.testing.assert_array_equal(encoded(), first)


@pytest.mark.parametrize("settled", ["off", "a folder", "no folder", "in Python"])
def test_what_the_user_has_set_stays(folder: Path, settled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "off": ("JAX_ENABLE_COMPILATION_CACHE", "false"),
        "a folder": (FOLDER.upper(), "/users/own"),
        "no folder": (FOLDER.upper(), ""),
    }
    if settled in variables:
        monkeypatch.setenv(*variables[settled])
    else:
        jax.config.update(FOLDER, "/users/own")
    expected = getattr(jax.config, FOLDER), dict(os.environ)
    keep_programs()
    assert (getattr(jax.config, FOLDER), dict(os.environ)) == expected
    assert not folder.exists()


def test_a_disk_that_is_nearly_full_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**29))
    with caplog.at_level(logging.WARNING, "jaxretr"):
        keep_programs()
    assert getattr(jax.config, FOLDER) is None
    assert "less than 1 GiB is free there; compiled programs are not kept" in caplog.text


def test_a_folder_that_cannot_be_made_is_done_without(folder: Path) -> None:
    folder.parent.write_text("a file")
    keep_programs()
    assert getattr(jax.config, FOLDER) is None


def test_the_cache_does_not_grow_for_ever(tmp_path: Path) -> None:
    """What was read or written longest ago gives way first."""
    for number in range(5):
        path = tmp_path / f"{number}-cache"
        path.write_bytes(bytes(10))
        os.utime(path, (number, number))
    os.utime(tmp_path / "0-cache", (100, 0))
    trim(tmp_path, 30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-cache", "3-cache", "4-cache"]
    trim(tmp_path, 30)
    assert len(list(tmp_path.iterdir())) == 3
    for number in (1, 200):
        (tmp_path / f"{number}-graph").mkdir()
        for name in ("model", "weights"):
            (tmp_path / f"{number}-graph" / name).write_bytes(bytes(10))
            os.utime(tmp_path / f"{number}-graph" / name, (number, number))
    (tmp_path / ".begun").mkdir()
    trim(tmp_path, 30)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".begun", "0-cache", "200-graph"]
