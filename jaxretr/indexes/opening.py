"""Opens the index that `--index` names, of any kind that the service can search."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path

from jaxretr.config import EngineName
from jaxretr.data.corpus import Corpus
from jaxretr.data.mapped_corpus import mapped_corpus
from jaxretr.embeddings import index_folder
from jaxretr.embeddings.embedding_store import is_store
from jaxretr.embeddings.encoding import Encoder, name_of
from jaxretr.embeddings.fingerprints import model_fingerprint
from jaxretr.indexes import read_only
from jaxretr.indexes.live.database import DATABASE
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.indexes.live.settings import LiveSettings
from jaxretr.indexes.searching import is_scann
from jaxretr.indexes.served import ServedIndex
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.copies import local_copy
from jaxretr.runtime.storage.paths import cache_root

# Engines of other packages: prefix of --index -> the module with `open(text, name=, encoder=)`.
_ENGINES = {"pgvector": "jaxretr.indexes.pgvector.index", "lance": "jaxretr.indexes.lance.index"}


RESERVED = ("indexes", "embeddings", "rerank", "models")
"""Names that are taken by the service's own paths."""


def check_name(name: str) -> str:
    """Return the name, if an index can have it.

    Raises:
      UserError: it cannot.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", name):
        raise UserError(
            f"index name {name[:80]!r}: give 1 to 64 of a-z, 0-9, _ and -, the first of them a letter or a digit"
        )
    if name in RESERVED:
        raise UserError(f"index name {name!r}: is taken by the service's own paths; choose another one")
    return name


def named(text: str) -> tuple[str, str]:
    """Name and place of an `--index`: NAME=PLACE, or a place alone, which is named after its last part.

    Raises:
      UserError: an index cannot have the name.
    """
    name, equals, place = text.partition("=")
    if equals and "/" not in name and ":" not in name:
        return check_name(name), place
    last = re.split(r"[/:]", text.rstrip("/"))[-1].lower()
    made = re.sub(r"[^a-z0-9_-]+", "-", last).strip("-_")[:64]
    if not made:
        raise UserError(f"--index {text}: no name can be derived from it; give NAME={text}")
    return check_name(made), text


def open_index(
    text: str,
    encoder: Encoder,
    corpus: str | Path | None = None,
    *,
    name: str | None = None,
    engine: EngineName | None = None,
) -> ServedIndex:
    """Open an index of any kind.

    Args:
      text: a live folder (one is made where there is nothing), an embedding store, an exact index, a ScaNN folder,
        `pgvector:DSN` or `lance:DIR`.
      encoder: the model that made it.
      corpus: the file of its passages, for the kinds that hold no texts.
      name: its name in requests; None: see `named`.
      engine: the engine of a live index's snapshots; None: see `LiveSettings`.

    Raises:
      UserError: it is none of these, or is damaged, or another model made it.
    """
    if name is None:
        name, text = named(text)
    prefix, colon, _ = text.partition(":")
    if colon and prefix in _ENGINES:
        _refuse(corpus, text, "has the texts itself")
        opened: Callable[..., ServedIndex] = importlib.import_module(_ENGINES[prefix]).open
        return opened(text, name=name, encoder=encoder)
    if is_store(text):
        return read_only.open_embeddings(name, text, encoder, *_texts(corpus))
    folder = Path(local_copy(text)).expanduser()
    if (folder / DATABASE).exists() or not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        _refuse(corpus, text, "has the texts itself")
        return open_live(folder, name, encoder, engine)
    if is_scann(folder):
        return read_only.open_scann(name, folder, encoder, *_texts(corpus))
    if (folder / index_folder.META).exists():
        return read_only.open_exact(name, folder, encoder, *_texts(corpus))
    raise UserError(
        f"{text}: no index; give a live folder, an embedding store (jaxretr encode), an exact index, a ScaNN folder "
        "(jaxretr export --to scann), pgvector:DSN or lance:DIR"
    )


def open_live(folder: Path, name: str, encoder: Encoder, engine: EngineName | None = None) -> ServedIndex:
    """Open a live folder, or make an empty one."""
    return LiveIndex.open(
        folder,
        name=name,
        model=name_of(encoder),
        model_fingerprint=model_fingerprint(encoder, "passage"),
        dim=encoder.config.embedding_size,
        settings=LiveSettings(engine=engine),
    )


def _texts(corpus: str | Path | None) -> tuple[Corpus | None, str]:
    """The corpus, mapped into memory, and its name in errors."""
    if corpus is None:
        return None, "corpus"
    return mapped_corpus(corpus, cache_root() / "corpora"), str(corpus)


def _refuse(corpus: str | Path | None, text: str, why: str) -> None:
    if corpus is not None:
        raise UserError(f"{text}: {why}; leave --corpus out")
