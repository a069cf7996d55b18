"""A corpus as columns on disk, mapped into memory: all processes of a host share its pages, and none holds the texts.

Made once from the corpus's file, beside the token stores; while size and time of change of the file are the same it is
opened as it is. 21 million passages then need no minutes of reading, and no 20 GB of strings in each process.
"""

import contextlib
import hashlib
import json
import logging
import os
import secrets
import shutil
from pathlib import Path

from jaxretr.data.corpus import Corpus
from jaxretr.data.corpus_stream import CorpusStream
from jaxretr.data.mapped_column import ColumnWriter, MappedColumn
from jaxretr.data.text_rows import find_input
from jaxretr.errors import UserError

log = logging.getLogger(__name__)

_COLUMNS = ("id", "title", "text")
_META = "meta.json"
_VERSION = 1


def mapped_corpus(path: str | Path, root: Path) -> Corpus:
    """The corpus of a file, as `read_corpus` reads it, with columns that are mapped into memory.

    Args:
      path: a file, or a folder with corpus.jsonl or corpus.jsonl.gz; for the formats see `iter_passages`.
      root: the folder of the columns' folders; made when missing.

    Raises:
      UserError: a bad row or a repeated id (as `path:line: what; remedy`), no passages, no such file, or a folder that
        cannot be written.
    """
    source = find_input(path, "corpus.jsonl")
    try:
        facts = os.stat(source)
    except OSError as error:
        raise UserError(f"{source}: cannot be read ({error.strerror}); give a corpus") from error
    what = [_VERSION, str(source.absolute()), facts.st_size, facts.st_mtime_ns]
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
        raise UserError(f"{folder}: is damaged as soon as it is made; remove it, and let nothing else write there")
    return corpus


def _open(folder: Path) -> Corpus | None:
    """The corpus of a folder; None where there is none, or one that is not whole."""
    try:
        meta = json.loads((folder / _META).read_text(encoding="utf-8"))
        columns = [MappedColumn(folder, name) for name in _COLUMNS]
        if {len(column) for column in columns} != {meta["rows"]}:
            raise ValueError("its columns are not as long as meta.json says")
        return Corpus(columns[0], columns[1], columns[2], fingerprint=str(meta["fingerprint"]))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        log.warning("%s: no whole corpus (%s); making it again", folder, error)
    return None


def _write(folder: Path, stream: CorpusStream) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    partial.mkdir()
    try:
        with contextlib.ExitStack() as files:
            columns = [files.enter_context(ColumnWriter(partial, name)) for name in _COLUMNS]
            for _, passage in stream.passages():
                for name, column in zip(_COLUMNS, columns, strict=True):
                    column.add(getattr(passage, name))
        meta = {"rows": stream.num_rows, "fingerprint": stream.fingerprint, "source": stream.name}
        (partial / _META).write_text(json.dumps(meta, indent=2), encoding="utf-8")
        if _open(folder) is None:
            # Not whole, so that nobody reads it; or not there.
            shutil.rmtree(folder, ignore_errors=True)
            try:
                os.rename(partial, folder)
            except OSError:
                if _open(folder) is None:  # Else another process was first.
                    raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
