"""A corpus mapped into memory is the one that is read, and is made again when its file or its columns have changed."""

import json
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tiny

from jaxretr.data import mapped_corpus as module
from jaxretr.data.corpus import Passage, read_corpus
from jaxretr.data.mapped_corpus import mapped_corpus
from jaxretr.runtime.errors import UserError


def write(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    path.write_text("".join(json.dumps({"_id": id, "title": title, "text": text}) + "\n" for id, title, text in rows))
    return path


def test_it_is_the_corpus_of_the_file(tmp_path: Path) -> None:
    rows = [("a", "", ""), ("ä", "NaN", "naïve 東京 \n line"), ("3", "null", "x" * 10_000), ("b", "last", "🙂")]
    path = write(tmp_path / "corpus.jsonl", rows)
    found, wanted = mapped_corpus(path, tmp_path / "stores"), read_corpus(path)
    assert list(found) == [Passage(*row) for row in rows] == list(wanted)
    assert len(found) == 4 and found.fingerprint() == wanted.fingerprint()
    assert found.texts[1:3] == wanted.texts[1:3] and found.texts[::-2] == wanted.texts[::-2]
    assert found.ids[-1] == "b" and found.titles[np.int32(1)] == "NaN" and found.row("3") == 2
    with pytest.raises(IndexError):
        found.texts[4]
    assert mapped_corpus(tiny.DATA, tmp_path).fingerprint() == read_corpus(tiny.DATA).fingerprint()


def test_a_corpus_of_empty_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "corpus.jsonl", [("a", "", ""), ("b", "", "")])
    assert list(mapped_corpus(path, tmp_path).texts) == ["", ""]


def test_the_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "corpus.jsonl", [("a", "t", "one")])
    mapped_corpus(path, tmp_path / "stores")
    with monkeypatch.context() as patch:
        patch.setattr(module, "CorpusStream", lambda paths: pytest.fail("the file was read again"))
        assert mapped_corpus(path, tmp_path / "stores").texts[0] == "one"
    facts = os.stat(path)
    write(path, [("a", "t", "two")])  # as long as before
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert mapped_corpus(path, tmp_path / "stores").texts[0] == "two"


@pytest.mark.parametrize("name", ["meta.json", "text.bin", "id-offsets.npy"])
def test_damaged_columns_are_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    path = write(tmp_path / "corpus.jsonl", [("a", "t", "one"), ("b", "t", "two")])
    mapped_corpus(path, tmp_path / "stores")
    (damaged,) = (tmp_path / "stores").glob(f"*/{name}")
    damaged.write_bytes(damaged.read_bytes()[:-3])
    with caplog.at_level(logging.WARNING):
        assert list(mapped_corpus(path, tmp_path / "stores").texts) == ["one", "two"]
    assert "making it again" in caplog.text


def test_the_columns_of_an_earlier_version_are_made_again(tmp_path: Path) -> None:
    """It named them otherwise, in a folder of the same name, which is replaced and not left beside the new one."""
    path = write(tmp_path / "corpus.jsonl", [("a", "t", "one")])
    mapped_corpus(path, tmp_path / "stores")
    [folder] = (tmp_path / "stores").iterdir()
    for name in ("id", "title", "text"):
        (folder / f"{name}.bin").rename(folder / f"{name}.bytes")
        (folder / f"{name}-offsets.npy").rename(folder / f"{name}.offsets")
    assert list(mapped_corpus(path, tmp_path / "stores").texts) == ["one"]
    assert list((tmp_path / "stores").iterdir()) == [folder] and not list(folder.glob("*.bytes"))


def test_several_make_it_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "corpus.jsonl", [(str(row), "title", f"text {row}") for row in range(3000)])
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: mapped_corpus(path, tmp_path / "stores"), range(4)))
    assert all(list(corpus) == list(found[0]) for corpus in found)
    assert [entry.name for entry in (tmp_path / "stores").iterdir() if entry.name.startswith(".")] == []


def test_bad_input_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "corpus.jsonl", [("a", "t", "one"), ("a", "t", "two")])
    with pytest.raises(UserError, match=r"corpus.jsonl:2: duplicate id 'a'"):
        mapped_corpus(path, tmp_path / "stores")
    (tmp_path / "a file").write_text("")
    write(path, [("a", "t", "one")])
    with pytest.raises(UserError, match="cannot be written"):
        mapped_corpus(path, tmp_path / "a file")


def test_no_process_holds_the_texts(tmp_path: Path) -> None:
    """100 MB of them; reading some, and all in their order, takes the memory of few."""
    with open(tmp_path / "corpus.jsonl", "w") as file:
        for row in range(20_000):
            file.write(f'{{"_id": "{row}", "text": "{row} {"words " * 830}"}}\n')
    program = (
        "import sys; from pathlib import Path; from jaxretr.runtime.parallel import memory; from jaxretr.data.mapped_corpus import mapped_corpus\n"
        "before = memory.peak(); corpus = mapped_corpus(sys.argv[1], Path(sys.argv[2]))\n"
        "assert sum(map(len, corpus.texts[:100])) > 400_000 and len(corpus) == 20_000\n"
        "print(memory.peak() - before)"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "corpus.jsonl"), str(tmp_path)]
    grown = [int(subprocess.run(words, capture_output=True, text=True, check=True).stdout) for _ in range(2)]
    print(f"made: {grown[0] / 2**20:.0f} MiB, opened: {grown[1] / 2**20:.0f} MiB")
    assert max(grown) < 60 * 2**20
