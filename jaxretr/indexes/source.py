"""The source of an exported index: the rows of an embedding store, checked, in pieces, and their passages."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jaxretr.data.corpus import iter_passages
from jaxretr.data.corpus_stream import CorpusStream
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.indexes.exact import unique_ids
from jaxretr.indexes.exact.host_rows import read_rows
from jaxretr.runtime.errors import UserError

T = TypeVar("T")

PIECE_ROWS = 4096


def silent(rows: int) -> None:
    """Do nothing, for callers that show no progress."""


@dataclass(frozen=True)
class IndexSource:
    """The passages of an embedding store that is exported as an index.

    Attributes:
      store: a complete store of passages.
      ids: N ids, all different.
    """

    store: EmbeddingStore
    ids: list[str]

    @classmethod
    def open(cls, store: EmbeddingStore) -> "IndexSource":
        """Read the ids of a store's passages.

        Raises:
          UserError: an id occurs twice, or the file of ids is damaged.
        """
        return cls(store, unique_ids(store.read_ids(), store.meta.rows, str(store.folder)))

    def facts(self) -> dict[str, Any]:
        """The facts about the store for a manifest."""
        names = ("model", "model_fingerprint", "texts_fingerprint", "rows", "dim", "compute")
        return {name: getattr(self.store.meta, name) for name in names}

    def pieces(self, advance: Callable[[int], None] = silent) -> Iterator[np.ndarray]:
        """Yield float32 [at most PIECE_ROWS, D], all rows in their order.

        Args:
          advance: called with the number of rows that were taken since the last call.

        Raises:
          UserError: a number is not finite.
        """
        row = 0
        for block in self.store.blocks():
            for start in range(0, len(block), PIECE_ROWS):
                stop, source = min(start + PIECE_ROWS, len(block)), str(self.store.folder)
                piece = read_rows(block, start, stop, dtype=np.dtype(np.float32), source=source, first=row - start)
                yield piece
                row += len(piece)
                advance(len(piece))

    def check_ids_of_lines(self, target: str) -> None:
        """Refuse ids that do not come back from a file with one id a line, which is stripped when it is read.

        Raises:
          UserError: such an id.
        """
        for row, name in enumerate(self.ids):
            if not name or name != name.strip() or "\n" in name or "\r" in name:
                raise UserError(
                    f"{self.store.folder}: the id {name!r} of row {row} is empty, has a line break, or white space at "
                    f"an end, which {target} does not hold; give the passage another id and encode the corpus again"
                )

    def check_texts(self, corpus: str | Path) -> None:
        """Refuse a corpus with other passages or texts than the store was encoded from.

        Raises:
          UserError: it is another one.
        """
        stream = CorpusStream([corpus])
        if stream.fingerprint != self.store.meta.texts_fingerprint:
            for _ in self.in_step(((f"{corpus}:{line}", row.id, None) for line, row in iter_passages(corpus)), corpus):
                pass  # Raises an error for the first id that differs.
            raise UserError(
                f"{stream.name}: has other passages or texts than {self.store.folder} was encoded from; give the corpus "
                "that was encoded"
            )

    def in_step(self, rows: Iterable[tuple[str, str, T]], corpus: str | Path) -> Iterator[T]:
        """Yield the other fields of each row of the store, from the corpus that was encoded.

        Args:
          rows: ("path:line", id, value) of each row of the corpus.
          corpus: the corpus's file, for errors.

        Raises:
          UserError: the corpus has other passages, or in another order, than the store.
        """
        wrong = f"give the corpus that {self.store.folder} was encoded from"
        count = 0
        for where, name, value in rows:
            if count == len(self.ids):
                raise UserError(f"{where}: has more passages than the store's {count}; {wrong}")
            if name != self.ids[count]:
                raise UserError(f"{where}: passage {name!r} is where the store has {self.ids[count]!r}; {wrong}")
            yield value
            count += 1
        if count < len(self.ids):
            raise UserError(f"{corpus}: ends after {count} passages of the store's {len(self.ids)}; {wrong}")


def masked(blocks: Iterable[np.ndarray], mask: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of blocks [n, D] that a mask over all of them, bool [N], lets pass."""
    first = 0
    for block in blocks:
        if (passing := mask[first : first + len(block)]).any():
            yield block[passing]
        first += len(block)


def rebatched(blocks: Iterable[np.ndarray], rows: int = PIECE_ROWS) -> Iterator[np.ndarray]:
    """Join and cut blocks [n, D] so that each but the last has `rows` rows: one shape means one compiled program.

    Raises:
      UserError: a block with another D than those before.
    """
    pieces: list[np.ndarray] = []
    for block in blocks:
        if pieces and pieces[0].shape[1:] != block.shape[1:]:
            raise UserError(
                f"a block of embeddings is {list(block.shape)} after {list(pieces[0].shape)}; use one model"
            )
        for start in range(0, len(block), rows):
            pieces.append(block[start : start + rows])
            if sum(map(len, pieces)) >= rows:
                joined = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
                yield joined[:rows]
                pieces = [joined[rows:]] if len(joined) > rows else []
    if pieces:
        yield np.concatenate(pieces)


# Bytes of a number on average, with sign, point, exponent and comma, in vectors of length 1.
_BYTES_A_NUMBER = 13
_BYTES_A_ROW = 100


def as_json(vector: np.ndarray) -> str:
    """A vector as a JSON list of numbers of nine digits, which is enough to read every float32 back unchanged."""
    return "[" + ",".join(["%.9g"] * len(vector)) % tuple(vector.tolist()) + "]"


def expected_bytes(rows: int, dim: int) -> int:
    """The approximate size of a file of so many vectors, in bytes."""
    return rows * (dim * _BYTES_A_NUMBER + _BYTES_A_ROW)
