"""Files and folders that are whole or absent: killed while they are replaced, on a full disk, written to a pipe."""

import ctypes
import gzip
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from jaxretr.embeddings import index_folder
from jaxretr.models.hub.hf_files import resolve
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage import files, manifest
from jaxretr.runtime.storage.files import atomic_folder, atomic_write, check_output, made_once, restore

# Replaces DIR, where the process ends at the Nth call that renames something, before or after it is made.
_KILLED = """
import os, sys
from pathlib import Path
from jaxretr.runtime.storage import files

folder, exchange, nth, moment = sys.argv[1], sys.argv[2] == "True", int(sys.argv[3]), sys.argv[4]
calls = 0

def deadly(function):
    def call(*words):
        global calls
        calls += 1
        if calls == nth and moment == "before":
            os._exit(9)
        try:
            return function(*words)
        finally:
            if calls == nth:
                os._exit(9)
    return call

os.rename = deadly(os.rename)
files._exchange = deadly(files._exchange) if exchange else lambda one, other: False
with files.atomic_folder(folder) as partial:
    (partial / "one").write_text("newer")
    (partial / "two").write_text("newer")
"""


def _make(folder: Path, text: str) -> None:
    with atomic_folder(folder) as partial:
        (partial / "one").write_text(text)
        (partial / "two").write_text(text)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("exchange", "nth"), [(True, 1), (True, 2), *((False, nth) for nth in range(1, 5))])
def test_a_folder_is_there_whole_after_a_kill_at_any_rename(
    tmp_path: Path, exchange: bool, nth: int, moment: str
) -> None:
    folder = tmp_path / "index"
    _make(folder, "older")
    words = [sys.executable, "-c", _KILLED, str(folder), str(exchange), str(nth), moment]
    assert subprocess.run(words, check=False, timeout=60).returncode == 9
    restore(folder)
    texts = {(folder / name).read_text() for name in ("one", "two")}
    assert len(texts) == 1 and texts <= {"older", "newer"}
    _make(folder, "newest")
    assert (folder / "one").read_text() == "newest"
    assert not list(tmp_path.glob("*.old"))


def test_each_reader_restores_what_a_kill_set_aside(tmp_path: Path) -> None:
    aside = ".{}.01234567.old"
    index_folder.write(
        tmp_path / aside.format("index"), (2, 3), np.dtype(np.float32), None, {}, [np.ones((2, 3), np.float32)]
    )
    assert index_folder.describe(tmp_path / "index")["rows"] == 2
    for name in ("export", "other"):
        (tmp_path / aside.format(name)).mkdir()
        manifest.write(tmp_path / aside.format(name), "scann", {})
    assert manifest.is_export(tmp_path / "export")
    assert manifest.read(tmp_path / "other").kind == "scann"
    (tmp_path / aside.format("model")).mkdir()
    assert resolve(tmp_path / "model").is_dir()
    (tmp_path / "run" / aside.format("model")).mkdir(parents=True)
    assert (resolve(tmp_path / "run") / "model").is_dir()


def test_a_folder_that_is_there_is_never_replaced_by_an_older_one(tmp_path: Path) -> None:
    _make(tmp_path / "index", "older")
    os.rename(tmp_path / "index", tmp_path / ".index.01234567.old")
    _make(tmp_path / "index", "newer")
    restore(tmp_path / "index")
    assert (tmp_path / "index" / "one").read_text() == "newer"
    assert os.listdir(tmp_path) == ["index"]


@pytest.mark.skipif(sys.platform != "linux", reason="renameat2 is Linux's")
def test_a_reader_always_finds_the_folder_while_it_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Linux there is no moment without it: two renames would leave one."""
    _make(tmp_path / "index", "older")
    if not files._exchange(tmp_path / "index", tmp_path / "index"):
        pytest.skip(f"this file system cannot exchange two folders: {os.strerror(ctypes.get_errno())}")
    renamed = []
    monkeypatch.setattr(os, "rename", lambda one, other: renamed.append(one) or os.replace(one, other))
    _make(tmp_path / "index", "newer")
    assert (tmp_path / "index" / "one").read_text() == "newer"
    assert tmp_path / "index" not in renamed


def test_an_error_of_a_folder_s_source_is_not_said_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="source"), atomic_folder(tmp_path / "index"):
        (tmp_path / "source").read_text()
    assert not os.listdir(tmp_path)


# ---- folders that can be made again ----------------------------------------------------------------------------------


def _opened(folder: Path) -> str:
    try:
        return (folder / "one").read_text()
    except OSError as error:
        raise UserError(f"{folder}: cannot be read") from error


def test_a_folder_that_cannot_be_read_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged one is; one on a network disk that does not answer may be intact."""
    folder = tmp_path / "store"

    def made(text: str) -> str:
        return made_once(folder, _opened, lambda partial: (partial / "one").write_text(text))

    assert made("first") == made("second") == "first"
    (folder / "one").unlink()
    assert made("second") == "second"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda path: (_ for _ in ()).throw(PermissionError(13, "denied", str(path))))
        with pytest.raises(UserError, match="cannot be read"):
            made("third")
    assert made("third") == "second" and os.listdir(tmp_path) == ["store"]


def test_of_two_that_make_a_folder_the_first_is_kept(tmp_path: Path) -> None:
    """And what a killed process left beside it goes."""
    folder = tmp_path / "store"
    (tmp_path / ".store.01234567.part").mkdir()

    def make(partial: Path) -> None:
        made_once(folder, _opened, lambda other: (other / "one").write_text("first"))
        (partial / "one").parent.mkdir(exist_ok=True)
        (partial / "one").write_text("second")

    assert made_once(folder, _opened, make) == "first" and os.listdir(tmp_path) == ["store"]


# ---- compressed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "content"), [("w", "é\r\n\u2028"), ("wb", b"\0\r\n")])
def test_a_name_in_gz_is_compressed_to_the_same_bytes_each_time(tmp_path: Path, mode, content) -> None:
    paths = [tmp_path / "a.jsonl.gz", tmp_path / "b.GZ"]
    for path in paths:
        with atomic_write(path, mode) as file:
            file.write(content)
    assert gzip.decompress(paths[0].read_bytes()) == (content if mode == "wb" else content.encode())
    assert paths[0].read_bytes() == paths[1].read_bytes(), "no name in it"
    assert paths[0].read_bytes()[4:8] == bytes(4), "no time in it"
    with pytest.raises(KeyboardInterrupt), atomic_write(paths[0], mode) as file:
        file.write(content + content)
        raise KeyboardInterrupt
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl.gz", "b.GZ"]
    assert paths[0].read_bytes() == paths[1].read_bytes(), "the older file stays"


@pytest.mark.parametrize("name", ["run.bz2", "run.trec.XZ", "x.jsonl.zst", "x.zip"])
def test_other_compressions_are_refused_before_the_work(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"end the name in \.gz"):
        check_output(tmp_path / name)
    with pytest.raises(UserError, match=name), atomic_write(tmp_path / name):
        raise AssertionError
    assert not os.listdir(tmp_path)


def test_a_protected_folder_is_seen_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere: the system's answer is given. Pipes and what exists elsewhere stay as they are."""
    (tmp_path / "ours").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "ours")
    for name in ("ours/run.trec", "ours/new/run.trec"):
        with pytest.raises(UserError, match=rf"{name}: cannot be written .* choose a folder that you may write to"):
            check_output(tmp_path / name)
    os.mkfifo(tmp_path / "ours/pipe")
    for place in (tmp_path / "run.trec", tmp_path / "ours/pipe", "s3://bucket/run.trec", "/dev/stdout"):
        check_output(place)


# ---- a disk that fills up --------------------------------------------------------------------------------------------


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel lets no file of this process grow beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_index_for_which_there_is_no_space_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """A memory map of a sparse file on a full disk would end the process with SIGBUS."""
    _make(tmp_path / "kept", "older")
    rows = np.zeros((1000, 4), np.float32)
    with files_of_at_most(1000), pytest.raises(UserError, match=r"embeddings.npy: .*\(File too large\)"):
        index_folder.write(tmp_path / "index", rows.shape, rows.dtype, None, {}, [rows])
    assert os.listdir(tmp_path) == ["kept"]


def test_a_disk_that_fills_while_a_folder_is_replaced_leaves_the_older_one(tmp_path: Path) -> None:
    _make(tmp_path / "index", "older")
    with files_of_at_most(1000), pytest.raises(UserError, match=r"index: .*\(File too large\)"):
        _make(tmp_path / "index", "x" * 2000)
    assert (tmp_path / "index" / "one").read_text() == "older" and os.listdir(tmp_path) == ["index"]


# ---- descriptors -----------------------------------------------------------------------------------------------------


def test_a_file_can_be_written_into_a_pipe() -> None:
    reader, writer = os.pipe()
    for path in (f"/dev/fd/{writer}", f"/proc/self/fd/{writer}", f"/proc/{os.getpid()}/fd/{writer}"):
        with atomic_write(path) as file:
            file.write("a line\n")
        assert os.read(reader, 100) == b"a line\n"
    os.close(writer)
    assert os.read(reader, 100) == b"", "a descriptor is still open"
    os.close(reader)


def test_a_file_that_is_appended_to_keeps_what_it_holds(tmp_path: Path) -> None:
    """`--out /dev/stdout >> FILE`"""
    (tmp_path / "file").write_text("older\n")
    with open(tmp_path / "file", "a") as file, atomic_write(f"/dev/fd/{file.fileno()}", "wb") as out:
        out.write(b"newer\n")
    assert (tmp_path / "file").read_text() == "older\nnewer\n"


def test_a_descriptor_that_is_closed_is_one_line() -> None:
    refused = pytest.raises(UserError, match=r"^/dev/fd/987: .*\(Bad file descriptor\)")
    with refused, atomic_write("/dev/fd/987"):
        pass
