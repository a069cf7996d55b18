"""A checkpoint that was damaged is moved aside, and the last whole one is resumed from."""

import logging
import os
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jaxretr.runtime.errors import UserError
from jaxretr.training.checkpoint import Checkpoints
from jaxretr.training.checkpoint_seals import CheckpointSeals

CONFIG = tiny.art_config(Path("nowhere"), train={"keep": 3})


def state(number: int) -> dict[str, jax.Array]:
    return {"a": jnp.full((64, 3), number, jnp.float32), "b": jnp.arange(5) + number}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of steps 2, 4 and 6."""
    with Checkpoints(tmp_path / "checkpoints", CONFIG) as checkpoints:
        for step in (2, 4, 6):
            checkpoints.save(step, state(step))
        checkpoints.wait()
    return tmp_path / "checkpoints"


def resumed(folder: Path) -> int:
    with Checkpoints(folder, CONFIG) as checkpoints:
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state(0))
        latest = checkpoints.latest
        assert latest is not None
        found = checkpoints.restore(like)
        np.testing.assert_array_equal(found["a"], state(latest)["a"])
        return latest


def largest(folder: Path, step: int) -> Path:
    return max(
        (path for path in (folder / str(step)).rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )


def test_whole_checkpoints_stay(folder: Path) -> None:
    assert resumed(folder) == 6
    assert sorted(path.stem for path in Path(f"{folder}.sha256").iterdir()) == ["2", "4", "6"]
    assert not Path(f"{folder}.damaged").exists()


def test_every_file_counts_whatever_happened_to_it(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = sorted(path for path in (folder / "6").rglob("*") if path.is_file())
    assert len(files) > 4
    # One after the other: whatever is moved aside is put back.
    for number, path in enumerate(files):
        content = path.read_bytes()
        path.write_bytes(content[:-1]) if number % 2 and content else path.unlink()
        with caplog.at_level(logging.WARNING):
            assert resumed(folder) == 4
        assert path.name in caplog.text
        caplog.clear()
        (aside,) = Path(f"{folder}.damaged").iterdir()
        aside.rename(folder / "6")
        path.write_bytes(content)
        with Checkpoints(folder, CONFIG) as checkpoints:
            checkpoints.wait()


def test_a_flipped_bit_in_the_two_newest(folder: Path) -> None:
    for step in (4, 6):
        path = largest(folder, step)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    assert resumed(folder) == 2
    assert sorted(path.name.split("-")[0] for path in Path(f"{folder}.damaged").iterdir()) == ["4", "6"]
    # The run goes on over the steps that were lost.
    with Checkpoints(folder, CONFIG) as checkpoints:
        checkpoints.save(4, state(4))
        checkpoints.wait()
    assert resumed(folder) == 4


def test_seals_go_with_their_checkpoints(folder: Path) -> None:
    with Checkpoints(folder, CONFIG) as checkpoints:
        for step in (8, 10):
            checkpoints.save(step, state(step))
        checkpoints.wait()
        assert checkpoints.steps == [6, 8, 10]
    assert sorted(path.stem for path in Path(f"{folder}.sha256").iterdir()) == ["10", "6", "8"]


def test_without_a_seal_or_with_a_damaged_one_it_is_taken_as_it_is(folder: Path) -> None:
    Path(f"{folder}.sha256/6.json").unlink()
    assert resumed(folder) == 6
    with Checkpoints(folder, CONFIG) as checkpoints:
        checkpoints.wait()
    path = Path(f"{folder}.sha256/6.json")
    path.write_text(path.read_text().replace("{", "{ "))
    assert resumed(folder) == 6


def test_a_checkpoint_is_sealed_before_the_next_one_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed between two checkpoints resumes from the newest, whose damage is found by its seal alone."""
    done = threading.Event()
    with Checkpoints(folder, CONFIG) as checkpoints:
        seals = checkpoints._seals
        assert seals is not None
        begin = seals.begin
        monkeypatch.setattr(seals, "begin", lambda step: (begin(step), step == 8 and done.set()))
        checkpoints.save(8, state(8))
        assert done.wait(60)
        seals.wait()
    assert Path(f"{folder}.sha256/8.json").exists()
    path = largest(folder, 8)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert resumed(folder) == 6


def test_checkpoints_leave_no_threads_behind(tmp_path: Path) -> None:
    """One thread a checkpoint is a thousand after a long run."""
    with Checkpoints(tmp_path / "checkpoints", CONFIG) as checkpoints:
        counts = []
        for step in range(1, 9):
            checkpoints.save(step, state(step))
            checkpoints.wait()
            counts.append(threading.active_count())
    assert counts[-1] <= counts[2] + 1
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("jaxretr-seal")]


def test_orbax_thread_and_the_run_seal_a_checkpoint_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Orbax's thread may say that a checkpoint is whole after the run has sealed it, and after the run has ended."""
    sealed = []
    seals = CheckpointSeals(folder)
    seal = seals._seal
    monkeypatch.setattr(seals, "_seal", lambda step: (sealed.append(step), seal(step)))
    callers = [threading.Thread(target=seals.begin, args=(6,)) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    seals.wait()
    seals.begin(6)
    seals.wait()
    assert sealed == [6]
    seals.close()
    seals.begin(4)
    assert sealed == [6] and not seals._thread._threads & set(threading.enumerate())


@pytest.mark.parametrize("name", ["_METADATA", "manifest.ocdbt", "process_0", "data"])
def test_a_damaged_checkpoint_without_a_seal_is_one_line(folder: Path, name: str) -> None:
    Path(f"{folder}.sha256/6.json").unlink()
    found = [path for path in (folder / "6").rglob("*") if path.is_file() and path.name == name]
    for path in found or list((folder / "6").rglob("d/*")):
        path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match=r"checkpoints/6: cannot be read \(.*resume") as caught:
        resumed(folder)
    assert "\n" not in str(caught.value)
    (folder / "6").rename(folder.parent / "moved")
    assert resumed(folder) == 4


@pytest.mark.parametrize("nth", [1, 2])
def test_killed_while_a_checkpoint_is_put_in_place(folder: Path, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    """Nothing is renamed any more, as after a kill: the run resumes from the checkpoint before."""
    calls = []

    def refused(old: str, new: str, **_: object) -> None:
        calls.append((old, new))
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        checkpoints = Checkpoints(folder, CONFIG)
        for name in ("rename", "replace")[:nth]:
            patch.setattr(os, name, refused)
        with pytest.raises(UserError, match="the checkpoint cannot be written"):
            checkpoints.save(8, state(8))
            checkpoints.wait()
    assert calls
    assert resumed(folder) == 6
    with Checkpoints(folder, CONFIG) as checkpoints:
        checkpoints.save(8, state(8))
        checkpoints.wait()
    assert resumed(folder) == 8
    assert not [path for path in folder.iterdir() if "tmp" in path.name]
