"""The files of a live index: what a commit waits for, torn and damaged files, a full disk, and two processes."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_folders import (
    QUESTIONS,
    assert_searches_equal,
    document,
    in_sqlite,
    open_live,
    put,
)
from test_live_crashes import crash

from jaxretr.indexes.index import Document, SearchOptions, StorageFull
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.indexes.live.verifying import verify
from jaxretr.runtime.errors import UserError


def test_a_commit_waits_for_the_disk(tmp_path: Path) -> None:
    """kill -9 cannot show it: with synchronous=NORMAL a loss of power may take acknowledged writes along."""
    index = open_live(tmp_path)

    def pragma(name: str):
        return index.writer.alone(lambda connection: connection.execute(f"PRAGMA {name}").fetchone()[0])

    assert (pragma("synchronous"), pragma("journal_mode")) == (2, "wal")
    put(index, [document("a")])
    assert (pragma("synchronous"), pragma("journal_mode")) == (2, "wal")
    index.close()


def test_a_torn_end_of_the_log_loses_the_write_that_was_under_way_alone(tmp_path: Path) -> None:
    """Power is lost while the log is written: what was not synced may be missing, in part, or of any content."""
    folder = crash(tmp_path, "commit.published") / "commit.published"
    log = folder / "live.sqlite-wal"
    whole, name = log.read_bytes(), "live.sqlite-wal"
    writes = []
    for cut in (1, 24 + 2048, 0):
        torn = tmp_path / f"cut{cut}"
        shutil.copytree(folder, torn)
        if cut:
            (torn / name).write_bytes(whole[:-cut])
        else:  # Frames of a transaction without its end.
            (torn / name).write_bytes(whole + os.urandom(3 * 4120))
        index = open_live(torn)
        writes.append(index.view.sequence)
        assert_searches_equal(index, torn)
        put(index, [document("after")])
        index.close()
        verify(torn)
    assert writes == [2, 2, 3]


def change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", ["vectors.npy", "rows.npy", "manifest.json", "missing file", "another folder's"])
def test_a_damaged_snapshot_is_made_again_from_the_database(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = open_live(tmp_path / "live")
    put(index, [document(f"d{n}") for n in range(40)])
    index.upkeep.compact()
    put(index, [document("d3", 1)])
    index.close()
    [snapshot] = (tmp_path / "live/snapshots").iterdir()
    if damage == "missing file":
        (snapshot / "rows.npy").unlink()
    elif damage == "another folder's":
        other = open_live(tmp_path / "other")
        put(other, [document(f"d{n}", 7) for n in range(40)])
        other.upkeep.compact()
        other.close()
        shutil.rmtree(snapshot)
        shutil.copytree(tmp_path / "other/snapshots" / snapshot.name, snapshot)
    else:
        change_a_byte(snapshot / damage)
    with pytest.raises(UserError, match="not intact"):
        verify(tmp_path / "live")
    again = open_live(tmp_path / "live", background=True, compact_rows=10)
    assert "made again from the database" in caplog.text and not snapshot.exists()
    assert_searches_equal(again, tmp_path / "live")
    while not again.facts()["snapshot_sequence"]:
        pass
    again.close()
    verify(tmp_path / "live")


def test_a_database_that_is_restored_from_a_backup_takes_no_newer_snapshot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = open_live(tmp_path / "live")
    put(index, [document(f"d{n}") for n in range(10)])
    index.close()
    shutil.copy(tmp_path / "live/live.sqlite", tmp_path / "backup")
    index = open_live(tmp_path / "live")
    put(index, [document(f"d{n}", 1) for n in range(10)])
    index.upkeep.compact()
    index.close()
    shutil.copy(tmp_path / "backup", tmp_path / "live/live.sqlite")
    again = open_live(tmp_path / "live")
    assert "must be an older copy" in caplog.text
    assert_searches_equal(again, tmp_path / "live")
    assert again.documents(["d1"]) == [document("d1")]
    again.close()


@pytest.mark.parametrize("content", ["text", "another program's", "newer", "cut short", "pages of noise"])
def test_a_file_that_is_no_live_index_of_this_version_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "live.sqlite"
    if content == "text":
        path.write_text("This is no database at all. " * 200)
    elif content == "another program's":
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE documents (id)")
        connection.commit()
        connection.close()
    else:
        index = open_live(tmp_path)
        put(index, [document(f"d{n}") for n in range(400)])
        index.close()
        if content == "newer":
            connection = sqlite3.connect(path)
            connection.execute("PRAGMA user_version = 2")
            connection.close()
        else:
            path.write_bytes(path.read_bytes()[:20_000])
    message = {
        "text": "cannot be opened as a live index",
        "another program's": "of another program",
        "newer": "install a newer jaxretr",
        "cut short": "malformed.*restore a backup",
        "pages of noise": "malformed.*restore a backup",
    }[content]
    for read in (open_live, verify):
        with pytest.raises(UserError, match=message) as raised:
            read(tmp_path)
        assert "\n" not in str(raised.value)


def test_verify_names_what_the_database_lacks(tmp_path: Path) -> None:
    index = open_live(tmp_path)
    put(index, [document(f"d{n}") for n in range(5)])
    index.upkeep.compact()
    index.close()
    connection = sqlite3.connect(tmp_path / "live.sqlite")
    connection.execute("UPDATE vectors_1 SET vector = zeroblob(24) WHERE row = 2")
    connection.execute("DELETE FROM vectors_1 WHERE row = 4")
    connection.execute("DELETE FROM texts WHERE row = 5")
    connection.commit()
    connection.close()
    with pytest.raises(
        UserError, match=r"5 documents have 4 texts; 1 documents lack vectors of small; .*other vectors"
    ):
        verify(tmp_path)


# ---- a full disk -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A disk of 4 MB; None where this user may not mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], capture_output=True).returncode:
        yield None
        return
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def large(number: int) -> Document:
    return Document(f"large{number}", "", os.urandom(150_000).hex(), {})


def fill(index: LiveIndex) -> int:
    """Writes until the disk is full; returns how many were acknowledged."""
    for count in range(200):
        try:
            put(index, [large(count)])
        except StorageFull as error:
            assert isinstance(error, UserError), "commands would report a fault of theirs"
            assert "disk is full" in str(error) and "\n" not in str(error)
            return count
    raise AssertionError("200 x 300 kB fit")


def assert_reads(index: LiveIndex, count: int) -> None:
    assert len(index) == count + 20
    assert index.documents(["d3", f"large{count}"]) == [document("d3"), None]
    assert len(index.search(QUESTIONS, 100, SearchOptions(exact=True))[0]) == min(count + 20, 100)


def test_a_full_disk_refuses_writes_and_goes_on_reading(small_disk: Path | None, tmp_path: Path) -> None:
    folder = (small_disk or tmp_path) / "live"
    index = open_live(folder)
    if small_disk is None:
        index.writer.alone(lambda connection: connection.execute("PRAGMA max_page_count = 900").fetchone())
    put(index, [document(f"d{n}") for n in range(20)])
    count = fill(index)
    assert count > 2
    assert_reads(index, count)
    with pytest.raises(StorageFull):
        put(index, [large(1000), large(1001)])
    assert_reads(index, count)
    if small_disk is not None:
        (small_disk / "filler").write_bytes(b"0" * (shutil.disk_usage(small_disk).free // 4096 * 4096))
        with pytest.raises(UserError, match=r"disk|space"):
            index.upkeep.compact()
        assert_reads(index, count)
        (small_disk / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    else:
        index.writer.alone(lambda connection: connection.execute("PRAGMA max_page_count = 90000").fetchone())
    put(index, [document("there is room again")])
    index.delete([f"large{n}" for n in range(count)])
    index.upkeep.compact()
    assert len(index) == 21
    index.close()
    again = open_live(folder)
    assert_searches_equal(again, folder)
    again.close()
    verify(folder)


# ---- two processes ---------------------------------------------------------------------------------------------------


def test_a_second_process_is_refused_and_may_read_and_verify(tmp_path: Path) -> None:
    index = open_live(tmp_path)
    put(index, [document("a")])
    program = (
        "import sys\nfrom jaxretr.runtime.errors import UserError\nfrom jaxretr.indexes.live.folder_lock import FolderLock\n"
        "from pathlib import Path\n"
        "try:\n    FolderLock.acquire(Path(sys.argv[1]))\nexcept UserError as error:\n    print(error)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, env=environment, check=True
    ).stdout
    assert f"process {os.getpid()} is writing" in found and "only one can" in found and found.count("\n") == 1
    with pytest.raises(UserError, match="is writing this live index"):
        open_live(tmp_path)
    assert "1 passages" in verify(tmp_path)
    assert list(in_sqlite(tmp_path)[1]) == ["a"]
    index.close()
    open_live(tmp_path).close()


# A program that ends while its index makes a snapshot, of calls into C++ as ScaNN's are.
ENDING = """
import sys, threading, time
import jax, numpy as np
from jaxretr.indexes.live import snapshots
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.indexes.live.settings import LiveSettings
from jaxretr.indexes.index import Document

begun = threading.Event()

def write(*_):
    multiply, ones, end = jax.jit(lambda x: x @ x), np.ones((64, 64), np.float32), time.monotonic() + 1
    while time.monotonic() < end:
        np.asarray(multiply(ones))
        begun.set()

snapshots.write = write
index = LiveIndex.open(sys.argv[1], model="m", model_fingerprint="f", dim=4, settings=LiveSettings(compact_rows=0))
index.upsert([Document("a", "", "x")], np.ones((1, 4), np.float32))
begun.wait()
"""


def test_a_program_that_ends_while_a_snapshot_is_made_ends_well(tmp_path: Path) -> None:
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    ended = subprocess.run([sys.executable, "-c", ENDING, str(tmp_path / "live")], env=environment, timeout=120)
    assert ended.returncode == 0
