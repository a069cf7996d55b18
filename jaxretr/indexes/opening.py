"""Opens an index of any kind: `KINDS` is the one place that tells them apart."""

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import jax

from jaxretr.config import EngineName
from jaxretr.embeddings import index_folder
from jaxretr.embeddings.embedding_store import EmbeddingStore, is_store
from jaxretr.embeddings.encoding import Encoder, Path_
from jaxretr.indexes.exact import ExactIndex
from jaxretr.indexes.index import Index, Opening
from jaxretr.indexes.live.database import is_live
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.storage import manifest
from jaxretr.runtime.storage.copies import local_copy

if TYPE_CHECKING:
    from jaxretr.indexes.certified.index import ScannIndex

    AnyIndex: TypeAlias = Path_ | Index | EmbeddingStore | ExactIndex | ScannIndex


@dataclass(frozen=True)
class IndexKind:
    """A kind of index: how a place is recognised as one, and the module that opens it.

    Attributes:
      module: the module with `open(place, opening) -> Index`; perhaps with `verify(place) -> str`, which recomputes what
        an index promises and sums up what agrees; and with `shown(place) -> str`, if a place may hold a password.
      what: an index of the kind in messages.
      holds: a function that tells whether a folder is one; None: only what begins with the kind's name and a colon is.
      has_texts: whether an index holds its passages' titles and texts.
      shared: whether several processes can search an index together.
    """

    module: str
    what: str
    holds: Callable[[Path], bool] | None = None
    has_texts: bool = False
    shared: bool = False

    def open(self, place: str, opening: Opening) -> Index:
        """Open an index of this kind; see `open_index`."""
        return importlib.import_module(self.module).open(place, opening)

    def function(self, name: str) -> Callable[[str], str] | None:
        """The module's `verify` or `shown`, None where it has none."""
        return getattr(importlib.import_module(self.module), name, None)

    def shown(self, place: str) -> str:
        """A place as messages may show it, without a password."""
        return (self.function("shown") or str)(place)


def _exported(kind: str) -> Callable[[Path], bool]:
    return lambda folder: manifest.is_export(folder) and manifest.read(folder).kind == kind


_ROOM = "jaxretr.indexes"

KINDS = {
    "store": IndexKind(f"{_ROOM}.exact.store", "an embedding store", is_store, shared=True),
    "live": IndexKind(f"{_ROOM}.live.kind", "a live index", is_live, has_texts=True),
    "scann": IndexKind(f"{_ROOM}.certified.kind", "an export --to scann", _exported("scann")),
    "lance": IndexKind(f"{_ROOM}.lance.index", "an export --to lance", _exported("lance"), has_texts=True),
    "exact": IndexKind(
        f"{_ROOM}.exact.saved", "an exact index", lambda folder: (folder / index_folder.META).exists(), shared=True
    ),
    "pgvector": IndexKind(f"{_ROOM}.pgvector.index", "a table of PostgreSQL", has_texts=True),
}
"""The kinds of indexes, by name; of those that tell a folder to be theirs the first one opens it."""

RESERVED = ("indexes", "embeddings", "rerank", "models")
"""Names that are taken by the service's own paths."""


def kind_of(place: Path_) -> tuple[IndexKind | None, str]:
    """The kind of a place, None for no index, and the place as its kind opens it: without a name before a colon, and
    of a folder in a bucket the local copy, except for stores, which are read there.
    """
    text = str(place)
    prefix, colon, rest = text.partition(":")
    if colon and prefix in KINDS:
        return KINDS[prefix], rest
    if is_store(text):
        return KINDS["store"], text
    folder = Path(local_copy(text)).expanduser()
    kinds = (kind for kind in KINDS.values() if kind.holds is not None and kind.holds(folder))
    return next(kinds, None), str(folder)


def has_texts(index: "AnyIndex") -> bool:
    """Whether an index, or the one at a place, holds its passages' titles and texts."""
    if isinstance(index, str | Path):
        kind, _ = kind_of(index)
        return kind is not None and kind.has_texts
    return isinstance(index, Index) and index.facts().get("texts", True)


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
    slug = re.sub(r"[^a-z0-9_-]+", "-", last).strip("-_")[:64]
    if not slug:
        raise UserError(f"{text}: no name can be derived from it; give NAME={text}")
    return check_name(slug), text


def open_index(
    text: str,
    encoder: Encoder | None = None,
    corpus: Path_ | None = None,
    *,
    name: str | None = None,
    engine: EngineName | None = None,
) -> Index:
    """Open an index of any kind for many searches; see `opened` for one.

    Args:
      text: an embedding store, a live folder (one is made where there is nothing, if a model is given), an exact index,
        a ScaNN folder, `lance:DIR` or `pgvector:DSN`.
      encoder: the model that made it; None: it is not compared with any.
      corpus: the file of its passages, for the kinds that hold no texts.
      name: its name in requests; None: see `named`.
      engine: the engine of a live index's snapshots; None: see `LiveSettings`.

    Raises:
      UserError: it is none of these, or is damaged, or another model made it.
    """
    if name is None:
        name, text = named(text)
    kind, place = kind_of(text)
    folder = Path(place)
    if kind is None and encoder is not None and not (folder.exists() and (folder.is_file() or any(folder.iterdir()))):
        kind = KINDS["live"]
    if kind is None:
        raise _no_index(text)
    if kind.has_texts and corpus is not None:
        raise UserError(f"{kind.shown(text)}: has the texts itself; leave corpus= out")
    return kind.open(place, Opening(name, encoder, corpus, engine))


@contextmanager
def opened(index: "AnyIndex", questions: int, k: int) -> Iterator[Index]:
    """Yield an index of any kind, opened for one search: its vectors need not be in memory.

    Args:
      index: a place, see `open_index`, or an index or a store that is open already, which is not closed at the end.
      questions: the number of questions.
      k: hits per question.

    Raises:
      UserError: it is no index, or is damaged.
      UsageError: several processes, with a kind of index that only one can search.
    """
    opening = Opening(str(index) if isinstance(index, str | Path) else repr(index), once=True, questions=questions, k=k)
    if isinstance(index, str | Path):
        kind, place = kind_of(index)
        if kind is None:
            raise _no_index(index)
        opening = replace(opening, name=kind.shown(opening.name))
        _check_alone(opening.name, kind.shared)
        opened_index = kind.open(place, opening)
        try:
            yield opened_index
        finally:
            opened_index.close()
    elif isinstance(index, EmbeddingStore):
        yield importlib.import_module(KINDS["store"].module).streamed(index, replace(opening, name=str(index.folder)))
    elif isinstance(index, ExactIndex):
        yield importlib.import_module(KINDS["exact"].module).as_index(index, opening)
    elif isinstance(index, Index):
        _check_alone(index.name, shared=False)
        yield index
    else:
        certified = importlib.import_module(KINDS["scann"].module)
        if not isinstance(index, certified.ScannIndex):
            raise UsageError(f"a {type(index).__name__} is no index; give an index, an embedding store, or its folder")
        _check_alone(repr(index), shared=False)
        yield certified.as_index(index, opening, repr(index))


def _check_alone(name: str, shared: bool) -> None:
    if not shared and jax.process_count() > 1:
        raise UsageError(f"{name}: is searched in one process; start only one")


def _no_index(place: Path_) -> UserError:
    return UserError(
        f"{place}: no index; give a live folder, an embedding store (jaxretr encode), an exact index, a ScaNN folder "
        "(jaxretr export --to scann), pgvector:DSN or lance:DIR"
    )
