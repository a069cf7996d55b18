"""A corpus as columns on disk, mapped into memory: the processes of a host share its pages, and none copies the texts.

It is made once from the corpus's file, next to the token stores, and reused while the file's size and modification time
are unchanged, or a named data set's version and checksums. 21 million passages then need neither minutes of reading nor
20 GB of strings in each process.
"""

import contextlib
import hashlib
import json
from pathlib import Path

from jaxretr.data.corpus import Corpus
from jaxretr.data.corpus_stream import CorpusStream
from jaxretr.data.mapped_texts import MappedTexts, write_texts
from jaxretr.data.text_rows import find_input
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.files import AGAIN, made_once, write_json
from jaxretr.runtime.storage.sealed_folder import read_object

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
    return made_once(folder, _open, lambda partial: _write(partial, CorpusStream([source])))


def _open(folder: Path) -> Corpus:
    meta = read_object(folder / _META, AGAIN)
    ids, titles, texts = (MappedTexts(folder, name, AGAIN) for name in _COLUMNS)
    fingerprint = meta.get("fingerprint")
    if not (len(ids) == len(titles) == len(texts) == meta.get("rows") and isinstance(fingerprint, str)):
        raise UserError(f"{folder / _META}: does not describe the columns next to it; {AGAIN}")
    return Corpus(ids, titles, texts, fingerprint=fingerprint)


def _write(folder: Path, stream: CorpusStream) -> None:
    with contextlib.ExitStack() as files:
        columns = [files.enter_context(write_texts(folder, name)) for name in _COLUMNS]
        for _, passage in stream.passages():
            for name, column in zip(_COLUMNS, columns, strict=True):
                column.append(getattr(passage, name))
    meta = {"rows": stream.num_rows, "fingerprint": stream.fingerprint, "source": stream.name}
    write_json(folder / _META, meta, indent=2)
