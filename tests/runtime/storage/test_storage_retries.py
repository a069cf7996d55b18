"""Storage that fails for a moment is asked again, for a minute and no longer; what will not change fails at once."""

import asyncio
import errno
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import buckets
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.storage import orbax_buckets, retries, sealed_folder
from jaxretr.runtime.storage.copies import fetch, put
from jaxretr.runtime.storage.files import atomic_folder, atomic_write, sha256, write_whole
from jaxretr.runtime.storage.paths import as_path, filesystem
from jaxretr.runtime.storage.retries import FIRST_PAUSE, LONGEST_PAUSE, is_transient, retried, retried_async
from jaxretr.training.checkpoint import Checkpoints

STALE = OSError(errno.ESTALE, "Stale file handle")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that only pauses move; `pauses` are those that were made."""
    monkeypatch.delenv("JAXRETR_STORAGE_SECONDS", raising=False)
    fake = SimpleNamespace(now=1000.0, pauses=[])

    def sleep(seconds: float) -> None:
        fake.now += seconds
        fake.pauses.append(seconds)

    async def async_sleep(seconds: float) -> None:
        sleep(seconds)

    for module in ("tenacity.time", "tenacity.nap.time"):
        monkeypatch.setattr(module, SimpleNamespace(monotonic=lambda: fake.now, sleep=sleep))
    monkeypatch.setattr(asyncio, "sleep", async_sleep)
    return fake


class Failing:
    """Fails some times, and then gives its number of calls."""

    def __init__(self, times: float, error: BaseException = STALE):
        self.times, self.error, self.calls = times, error, 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return self.calls

    async def later(self) -> int:
        return self()


def once(what: str, function: Failing) -> int:
    return retried(what, function)


def once_async(what: str, function: Failing) -> int:
    async def call() -> int:
        made: Callable[[], Awaitable[int]] = function.later
        return await retried_async(what, made, is_transient)

    return asyncio.run(call())


both = pytest.mark.parametrize("call", [once, once_async])


@both
def test_pauses_grow_and_each_is_said(call: Callable, clock: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert call("the/file", Failing(7)) == 8
    assert len(clock.pauses) == 7
    for number, pause in enumerate(clock.pauses):
        least = min(FIRST_PAUSE * 2**number, LONGEST_PAUSE)
        assert least <= pause <= min(least + FIRST_PAUSE, LONGEST_PAUSE) or least == LONGEST_PAUSE == pause
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 7
    expected = f"the/file: [Errno {errno.ESTALE}] Stale file handle; attempt 1 failed, the next is in "
    assert said[0] == f"{expected}{clock.pauses[0]:.1f} s"


@both
@pytest.mark.parametrize("stated, seconds", [(None, 60), ("10", 10), ("0", 0)])
def test_it_ends_within_the_time(
    call: Callable, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, stated: str | None, seconds: float
) -> None:
    if stated is not None:
        monkeypatch.setenv("JAXRETR_STORAGE_SECONDS", stated)
    function = Failing(float("inf"))
    with pytest.raises(OSError, match="Stale file handle"):
        call("x", function)
    assert sum(clock.pauses) <= seconds
    assert sum(clock.pauses) + LONGEST_PAUSE + FIRST_PAUSE > seconds, "it does not give up early"
    assert function.calls == len(clock.pauses) + 1
    if stated is None:
        # 0.5, 1, 2, 4 and 8 seconds, and then 15 for as long as there is time.
        assert 7 <= function.calls <= 8


@both
@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "not there"),
        PermissionError(errno.EACCES, "not yours"),
        OSError(errno.ENOSPC, "full"),
        UserError("said already"),
        ValueError("nonsense"),
    ],
)
def test_what_will_not_change_fails_at_once(call: Callable, clock: SimpleNamespace, error: Exception) -> None:
    function = Failing(1, error)
    with pytest.raises(type(error)):
        call("x", function)
    assert function.calls == 1 and not clock.pauses


@pytest.mark.parametrize("name", ["EIO", "ESTALE", "EAGAIN", "ETIMEDOUT", "EINTR", "ECONNRESET"])
def test_passing_errors_of_disks_and_networks(name: str) -> None:
    assert is_transient(OSError(getattr(errno, name), ""))


@pytest.mark.parametrize("stated", ["soon", "-1", "inf", "nan"])
def test_a_time_that_is_none_is_refused(stated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRETR_STORAGE_SECONDS", stated)
    with pytest.raises(UserError, match=f"^JAXRETR_STORAGE_SECONDS={stated}: .*seconds"):
        retried("x", Failing(0))


# ---- files on a disk -------------------------------------------------------------------------------------------------


def test_a_file_is_written_through_a_disk_that_fails_for_a_moment(
    clock: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, failing = os.replace, Failing(2)

    def sometimes(source: Path, target: Path) -> None:
        failing()
        replace(source, target)

    monkeypatch.setattr(os, "replace", sometimes)
    with atomic_write(tmp_path / "a") as file:
        file.write("text")
    assert (tmp_path / "a").read_text() == "text" and len(clock.pauses) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a"], "nothing is left behind"


def test_what_can_be_written_again_is(clock: SimpleNamespace, tmp_path: Path) -> None:
    failing = Failing(3, OSError(errno.EIO, "Input/output error"))

    def write(file: object) -> None:
        file.write("half")  # pyright: ignore
        failing()
        file.write(" and half")  # pyright: ignore

    write_whole(tmp_path / "a", write)
    assert (tmp_path / "a").read_text() == "half and half" and len(clock.pauses) == 3
    failing.calls, failing.times = 0, float("inf")
    with pytest.raises(UserError, match=r"cannot be written .*; check the disk"):
        write_whole(tmp_path / "a", write)
    assert (tmp_path / "a").read_text() == "half and half", "the older file is as it was"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_file_is_read_through_a_disk_that_fails_for_a_moment(
    clock: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed_folder.write_record(tmp_path / "a", {"b": 1})
    expected, read, failing = sha256(tmp_path / "a"), Path.read_bytes, Failing(1)

    def sometimes(path: Path) -> bytes:
        failing()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", sometimes)
    assert sealed_folder.read_record(tmp_path / "a", "") == {"b": 1}
    assert len(clock.pauses) == 1
    assert sha256(tmp_path / "a") == expected


# ---- buckets ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["s3", "gs"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[buckets.Server]:
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.001)
    yield from buckets.serving(request.param)


def test_a_server_that_is_busy_is_asked_again(
    server: buckets.Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a").write_bytes(b"content")
    remote = as_path(f"{server.scheme}://bucket/folder/a")
    steps: list[Callable[[], object]] = [
        lambda: put(tmp_path / "a", remote),
        lambda: fetch(remote, tmp_path / "b"),
        remote.exists,
        remote.read_bytes,
        lambda: list(remote.parent.iterdir()),
        lambda: filesystem(remote).rm_file(str(remote)),
    ]
    for step in steps:
        step_without = len(server.asked)
        server.failing = 3
        caplog.clear()
        with caplog.at_level(logging.WARNING, "jaxretr"):
            step()
        assert server.failing == 0 and len(server.asked) > step_without + 3
        said = [record.getMessage() for record in caplog.records if record.name.startswith("jaxretr")]
        # Some steps are two requests at a time.
        assert len(said) == 3 and "; attempt 1 failed, the next is in 0.0 s" in said[0]
        assert all(line.startswith(f"{server.scheme}://bucket") for line in said)
    assert (tmp_path / "b").read_bytes() == b"content"
    assert not remote.exists()


def test_a_server_that_stays_busy_is_given_up_in_one_line(
    server: buckets.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXRETR_STORAGE_SECONDS", "0.05")
    server.failing = 10**6
    with pytest.raises(UserError) as error:
        filesystem(f"{server.scheme}://bucket").pipe_file(f"{server.scheme}://bucket/a", b"x")
    line = str(error.value)
    assert line.startswith(f"{server.scheme}://bucket") and "\n" not in line
    assert "still fails after 0 seconds of attempts" in line and "JAXRETR_STORAGE_SECONDS" in line
    # 1, 2, 4, 8 and 16 milliseconds and their chances fit, or fewer on a busy machine: nobody else repeats each attempt.
    assert 1 <= len(server.asked) <= 8


def test_a_bucket_that_is_not_there_is_said_and_not_made(server: buckets.Server) -> None:
    store, nowhere = filesystem(f"{server.scheme}://bucket"), f"{server.scheme}://nowhere"
    as_path(f"{nowhere}/folder").mkdir(parents=True, exist_ok=True)
    steps: list[Callable] = [lambda: store.find(f"{nowhere}/x"), lambda: store.pipe_file(f"{nowhere}/x", b"")]
    for step in steps:
        with pytest.raises(UserError, match=rf"^{nowhere}: there is no such bucket; make it, or check its name$"):
            step()


def test_a_block_that_fails_leaves_the_older_object(server: buckets.Server) -> None:
    path = as_path(f"{server.scheme}://bucket/a")
    with atomic_write(path) as file:
        file.write("older")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as file:
        file.write("newer")
        raise ZeroDivisionError
    assert path.read_text() == "older"


@pytest.mark.parametrize("scheme, package, extra", [("gs", "gcsfs", "gcs"), ("s3", "s3fs", "s3")])
def test_a_missing_package_names_its_extra(
    scheme: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"^{package} is not installed .*; run: pip install 'jaxretr\[{extra}\]'$"):
        as_path(f"{scheme}://bucket/x")


@pytest.mark.parametrize("write", [atomic_write, atomic_folder])
def test_what_is_only_written_to_a_disk_makes_no_folder_named_s3(
    write: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = pytest.raises(UserError, match=r"^s3://bucket/x: .*local path")
    with refused, write(Path("s3://bucket/x")):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["hdfs://host/x", "s3://", "gs:///x"])
def test_paths_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=f"^{text}: "):
        as_path(text)


def test_missing_credentials_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for server in buckets.serving("s3"):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        store = filesystem("s3://bucket")
        # The one that is there has its credentials already.
        with pytest.raises(UserError, match=r"^s3://bucket/x: no credentials .*`aws configure`"):
            type(store)(skip_instance_cache=True).cat_file("s3://bucket/x")
        assert server.scheme == "s3"


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def state(number: int) -> dict[str, jax.Array]:
    return {"a": jnp.full((8, 3), number, jnp.float32)}


def test_checkpoints_are_written_through_a_server_that_is_busy(server: buckets.Server) -> None:
    folder = as_path(f"{server.scheme}://bucket/checkpoints")
    with Checkpoints(folder, tiny.art_config(Path("nowhere"))) as checkpoints:
        # Only arrays, which do not come through fsspec.
        server.failing, server.only = 1, "ocdbt"
        checkpoints.save(1, state(1))
        checkpoints.wait()
        assert server.failing == 0
        server.failing = 1
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state(0))
        np.testing.assert_array_equal(checkpoints.restore(like)["a"], state(1)["a"])
        assert server.failing == 0


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    server: buckets.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXRETR_STORAGE_SECONDS", "0.5")
    folder, config = as_path(f"{server.scheme}://bucket/checkpoints"), tiny.art_config(Path("nowhere"))
    with Checkpoints(folder, config) as checkpoints:
        checkpoints.save(1, state(1))
        checkpoints.wait()
        server.failing, server.only = 10**6, "ocdbt"
        with pytest.raises(UserError) as error:
            checkpoints.save(2, state(2))
            checkpoints.wait()
        server.failing = 0
    line = str(error.value)
    assert line.startswith(f"{folder}: the checkpoint cannot be written") and "\n" not in line
    assert not [thread.name for thread in threading.enumerate() if "_run_loop" in thread.name], (
        "no thread of Orbax stays"
    )
    with Checkpoints(folder, config) as checkpoints:
        assert checkpoints.latest == 1 and checkpoints.steps == [1]


def test_orbax_still_has_what_is_replaced_in_it() -> None:
    from orbax.checkpoint._src.path import gcs_utils
    from orbax.checkpoint._src.serialization import tensorstore_utils

    orbax_buckets.teach_orbax()
    spec = tensorstore_utils.build_kvstore_tspec("s3://bucket/run/1", use_ocdbt=True)
    assert spec["base"]["driver"] == "s3" and spec["base"]["bucket"] == "bucket" and spec["base"]["path"] == "run/1"
    assert gcs_utils.is_gcs_path(as_path("s3://bucket/run"))
    assert not gcs_utils.is_gcs_path(Path("/s3/bucket"))
