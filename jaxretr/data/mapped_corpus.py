"""A corpus as columns on disk, mapped into memory: the processes of a host share its pages, and none copies the texts.

It is made once from the corpus's file, next to the token stores, and reused while the file's size and modification time
are unchanged, or a named data set's version and checksums. 21 million passages then need neither minutes of reading nor
20 GB of strings in each process.
"""

import contextlib
import hashlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from jaxretr.data.corpus import Corpus
from jaxretr.data.corpus_stream import CorpusStream
from jaxretr.data.mapped_texts import MappedTexts, TextsWriter, mapped_bytes
from jaxretr.data.text_rows import find_input
from jaxretr.runtime.errors import UserError

log = logging.getLogger(__name__)

_COLUMNS = ("id", "title", "text")
_META = "meta.json"
_VERSION = 1


def mapped_corpus(path: str | Path, root: Path) -> Corpus:
    """Return the corpus of a file, as `read_corpus` does, with columns that are mapped into memory.

    Args:
      path: a file, or a folder with corpus.jsonl or corpus.jsonl.gz; for the formats see `iter_passages`.
      root: where the folders of all mapped corpora are; created if missing.

    Raises:
      UserError: a bad row or a repeated id (as `path:line: what; remedy`), no passages, no such file, or a folder that
        cannot be written.
    """
    source = find_input(path, "corpus.jsonl")
    what = [_VERSION, *source.facts()]
    folder = root.expanduser() / f"corpus-{hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]}"
    corpus = _open(folder)
    if corpus is None:
        stream = CorpusStream([source])
        try:
            _write(folder, stream)
        except OSError as error:
            raise UserError(f"{folder}: cannot be written ({error.strerror}); choose another folder") from error
        corpus = _open(folder)
    if corpus is None:
        raise UserError(f"{folder}: was damaged right after it was made; remove it, and let nothing else write there")
    return corpus


def _open(folder: Path) -> Corpus | None:
    """Open the corpus of a folder; None if there is none, or an incomplete one."""
    try:
        meta = json.loads((folder / _META).read_text(encoding="utf-8"))
        columns = [_column(folder, name) for name in _COLUMNS]
        if {len(column) for column in columns} != {meta["rows"]}:
            raise ValueError("its columns have another length than in meta.json")
        return Corpus(columns[0], columns[1], columns[2], fingerprint=str(meta["fingerprint"]))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s: not a complete corpus (%s); making it again", folder, error)
    return None


def _write(folder: Path, stream: CorpusStream) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    partial.mkdir()
    try:
        with contextlib.ExitStack() as files:
            adders = [files.enter_context(_written_column(partial, name)) for name in _COLUMNS]
            for _, passage in stream.passages():
                for name, add in zip(_COLUMNS, adders, strict=True):
                    add(getattr(passage, name))
        meta = {"rows": stream.num_rows, "fingerprint": stream.fingerprint, "source": stream.name}
        (partial / _META).write_text(json.dumps(meta, indent=2), encoding="utf-8")
        if _open(folder) is None:
            # The folder is missing, or incomplete and not read by any process.
            shutil.rmtree(folder, ignore_errors=True)
            try:
                os.rename(partial, folder)
            except OSError:
                if _open(folder) is None:  # Otherwise another process was first.
                    raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _column(folder: Path, name: str) -> MappedTexts:
    """Open a column: NAME.bytes, its UTF-8 bytes, and NAME.offsets, int64 [N + 1]."""
    offsets = np.memmap(folder / f"{name}.offsets", np.int64, "r")
    return MappedTexts(offsets, mapped_bytes(folder / f"{name}.bytes", offsets))


@contextlib.contextmanager
def _written_column(folder: Path, name: str) -> Iterator[Callable[[str], None]]:
    """Write a column; yield the function that adds a text to it."""
    with open(folder / f"{name}.bytes", "wb") as content, open(folder / f"{name}.offsets", "wb") as offsets:
        writer = TextsWriter(content, offsets)
        yield writer.append
        writer.flush()
