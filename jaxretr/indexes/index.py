"""The interface of every kind of index: documents, hits, and the protocols for reading and writing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from jaxretr.indexes.filters import Value, Where
from jaxretr.runtime.errors import UserError

if TYPE_CHECKING:  # They bring JAX along, which the HTTP client does without.
    from jaxretr.config import EngineName
    from jaxretr.embeddings.encoding import Encoder


@dataclass(frozen=True)
class Opening:
    """The way that an index is opened.

    Attributes:
      name: its name in requests; in messages as well where it has no better one.
      encoder: the model that must have made it; None: that is checked later, or not at all.
      corpus: the file of its passages, for a kind that holds no texts.
      engine: the engine of a live index's snapshots; None: see `LiveSettings`.
      once: whether it is opened for one search: then vectors may be streamed through the devices instead of put there, and
        each of several processes may search a share of its own.
      questions, k: the most questions of a search, and hits of each, for an estimate of its memory.
    """

    name: str = "index"
    encoder: "Encoder | None" = None
    corpus: str | Path | None = None
    engine: "EngineName | None" = None
    once: bool = False
    questions: int = 64
    k: int = 100


@dataclass(frozen=True, slots=True)
class Document:
    """A passage as it is stored and returned.

    Attributes:
      id: not empty.
      title: may be empty.
      text: may be empty, but not together with the title.
      metadata: field -> string, number, truth value or None; what filters look at.
    """

    id: str
    title: str
    text: str
    metadata: Mapping[str, Value] = field(default_factory=dict)


class Hit(NamedTuple):
    """A passage that a search found.

    Attributes:
      id: the passage's id.
      score: inner product of the question's vector with the passage's, float32 as a Python float.
    """

    id: str
    score: float


class TableHits(NamedTuple):
    """The hits of one question in a database's table, best first: row numbers, ids, and inner products as float32, each [n]."""

    rows: Sequence[int] | np.ndarray
    ids: list[str]
    scores: list[float] | np.ndarray


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """The options of a search: how to search the index, and the passages that may be found.

    Attributes:
      exact: score every passage instead of using an approximate index.
      target_recall: a target that the approximate index was built for; None: its first.
      where: field -> the value that a passage must have there, several values, one of which it must have, or bounds; see
        `jaxretr.indexes.filters.conditions_of`.
      allow: ids of the only passages that may be found; None: all. Unknown ids match nothing.
      deny: ids of passages that may not be found.
    """

    exact: bool = False
    target_recall: float | None = None
    where: Where = field(default_factory=dict)
    allow: Sequence[str] | None = None
    deny: Sequence[str] = ()

    @property
    def is_filtered(self) -> bool:
        """Whether some passages may not be found."""
        return bool(self.where) or self.allow is not None or bool(self.deny)


@dataclass(frozen=True, slots=True)
class Standing:
    """The facts that an index knows of itself without asking a disk or a database.

    Attributes:
      model, model_fingerprint: the model of its vectors and their fingerprint; None where not known.
      sequence: the number of the last write that it knows of; None for an index that is only read.
    """

    model: str | None
    model_fingerprint: str | None
    sequence: int | None = None


@dataclass(frozen=True)
class Findings:
    """The hits of a search, all of one state of the index, whatever was written meanwhile.

    Attributes:
      standing: the index's standing at that state.
      exact: whether every passage that may be found was scored.
      hits: the hits of each question, best first.
      documents: id -> the document of every hit; empty unless asked for.
      vectors: id -> the vector of every hit, float32 [D]; empty unless asked for.
    """

    standing: Standing
    exact: bool
    hits: list[list[Hit]]
    documents: Mapping[str, Document] = field(default_factory=dict)
    vectors: Mapping[str, np.ndarray] = field(default_factory=dict)

    def of(self, first: int, until: int) -> "Findings":
        """The findings of the questions from `first` to `until`."""
        return replace(self, hits=self.hits[first:until])


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of a write: its number, and how many passages it changed.

    Attributes:
      sequence: the number of the write. Once it is returned, the write survives a crash and a power failure.
      added, replaced, deleted: the number of passages of each.
      truncated: passages whose text is longer than the model reads, where the service embedded them.
    """

    sequence: int
    added: int = 0
    replaced: int = 0
    deleted: int = 0
    truncated: int = 0


@runtime_checkable
class Index(Protocol):
    """Passages that can be searched. Methods may be called from several threads at once, and block, except `is_exact`.

    Attributes:
      name: its name in requests.
      dim: D, the vectors' dimensions.
      standing: its model and the last write that it knows of.
    """

    name: str

    @property
    def dim(self) -> int: ...

    @property
    def standing(self) -> Standing: ...

    def __len__(self) -> int: ...

    def is_exact(self, options: SearchOptions) -> bool:
        """Whether a search with these options scores every passage that may be found."""
        ...

    def search(self, vectors: np.ndarray, k: int, options: SearchOptions) -> list[list[Hit]]:
        """Find the passages with the highest inner products.

        Args:
          vectors: float32 [B, D].
          k: hits per question, from 1; fewer where fewer passages may be found.
          options: filters, and how to search.

        Returns:
          B lists, best first; equal scores in the order of rows.

        Raises:
          UserError: the options ask for what this index cannot do (a field that it lacks, a target it was not built
            for); one line.
        """
        ...

    def find(
        self,
        vectors: np.ndarray,
        k: int,
        options: SearchOptions,
        *,
        with_documents: bool = False,
        with_vectors: bool = False,
    ) -> Findings:
        """Search as `search` does, and read the hits' documents and vectors from the state that was searched.

        Args:
          vectors, k, options: see `search`.
          with_documents, with_vectors: whether the hits' documents and vectors are read.

        Raises:
          UserError: as `search`.
        """
        ...

    def listing(
        self, fields: Sequence[str] = (), *, share: bool = False
    ) -> tuple[Sequence[str], Mapping[str, Sequence[Value]]]:
        """The ids of all N passages, in the order of rows, and their values of some fields, None for none.

        Args:
          fields: fields among those of `facts`.
          share: only the passages that this process searches, where several processes search an index together.
        """
        ...

    def documents(self, ids: Sequence[str]) -> list[Document | None]:
        """The passages of these ids now, None for one that is not there."""
        ...

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        """The vectors of passages that are there now, float32 [n, D].

        Raises:
          UserError: an id is not there.
        """
        ...

    def facts(self) -> dict[str, Any]:
        """The facts for /info, as JSON; engines may add facts of their own.

        They are `engine`, `passages`, `dim`, `model`, `model_fingerprint` (both None where not known), `writable`,
        `bytes` (the memory that it takes), `fields` (those that filters can use), `texts` if it is False (documents have
        neither titles nor texts) and, if there is an approximate index, `targets` and `certificate`.
        """
        ...

    def close(self) -> None:
        """Release files and threads; acknowledged writes are on disk already."""
        ...


@runtime_checkable
class Writable(Index, Protocol):
    """An index that can be written while it is searched. Every search that starts after a write has returned sees it."""

    def upsert(self, documents: Sequence[Document], vectors: np.ndarray) -> Written:
        """Add passages, or replace those with the same ids; all of them or none.

        Args:
          documents: n, of different ids.
          vectors: float32 [n, D].

        Returns:
          What changed, once the write is durable.

        Raises:
          UserError: ids that repeat, NaN or infinity, a wrong shape.
          StorageFull: the disk is full; nothing was written, and reading continues.
        """
        ...

    def delete(self, ids: Sequence[str]) -> Written:
        """Remove passages; ids that are not there are ignored (and not counted)."""
        ...


class StorageFull(UserError):
    """An error: a write was refused because the disk is full; answered with 507."""


def find_unchanging(
    index: Index,
    vectors: np.ndarray,
    k: int,
    options: SearchOptions,
    *,
    with_documents: bool = False,
    with_vectors: bool = False,
) -> Findings:
    """Implement `Index.find` for an index that has one state only."""
    hits = index.search(vectors, k, options)
    ids = ids_of(hits) if with_documents or with_vectors else []
    documents = index.documents(ids) if with_documents else []
    return Findings(
        index.standing,
        index.is_exact(options),
        hits,
        {document.id: document for document in documents if document is not None},
        dict(zip(ids, index.vectors(ids), strict=True)) if with_vectors else {},
    )


def ids_of(hits: Sequence[Sequence[Hit]]) -> list[str]:
    """The ids of all questions' hits, each once."""
    return list(dict.fromkeys(hit.id for each in hits for hit in each))
