"""Interface of every encoder: `TextEncoder`, whose two subclasses are `DualEncoder` and `CombinedEncoder`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from jaxretr.models.embed import Side
from jaxretr.models.given_texts import Passages

Advance = Callable[[int], object]
"""Function that is called with the number of texts that were embedded since the last call."""


class TextEncoderConfig(Protocol):
    """The settings that every encoder has."""

    @property
    def embedding_size(self) -> int: ...
    @property
    def max_question_length(self) -> int: ...
    @property
    def max_passage_length(self) -> int: ...


Config = TypeVar("Config", bound=TextEncoderConfig)


class TextEncoder(ABC, Generic[Config]):
    """Turns questions and passages into vectors whose dot product ranks passages.

    Attributes:
      config: configuration, a frozen dataclass.
      truncated: number of texts that the last call cut at their maximum length.
      source: path or name that it was loaded from; None if it was not loaded, or was changed since.
    """

    config: Config
    truncated: int
    source: str | None

    def encode_queries(
        self, queries: Sequence[str], *, batch_size: int | None = None, progress: bool | None = None
    ) -> np.ndarray:
        """Embed questions.

        Args:
          queries: n texts.
          batch_size: rows per batch; by default a number that suits the device and the texts' lengths.
          progress: a progress bar; by default on a terminal, when it takes more than two seconds.

        Returns:
          float32 [n, D], in the order of the texts.

        Raises:
          UserError: an element is not a text; the message names its index.
        """
        return self._encode("question", queries, batch_size, progress)

    def encode_passages(
        self,
        passages: Passages,
        *,
        batch_size: int | None = None,
        progress: bool | None = None,
    ) -> np.ndarray:
        """Embed passages.

        Args:
          passages: n of {"title": ..., "text": ...} (other keys are ignored, and a missing title or None is an empty one),
            objects with `.title` and `.text`, or plain texts.
          batch_size: as in `encode_queries`.
          progress: as in `encode_queries`.

        Returns:
          float32 [n, D], in the order of the passages.

        Raises:
          UserError: an element is not a passage; the message names its index.
        """
        return self._encode("passage", passages, batch_size, progress)

    def encode_pieces(
        self,
        side: Side,
        pieces: Iterable[Sequence[Any]],
        *,
        batch_size: int | None = None,
        total: int | None = None,
        advance: Advance = lambda rows: None,
    ) -> Iterator[tuple[np.ndarray, int]]:
        """Embed one piece of a corpus after another; the next one is tokenised while one is embedded.

        Args:
          side: side of the texts.
          pieces: sequences of passages or questions, as for `encode_passages` or `encode_queries`; one is requested
            ahead.
          batch_size: as in `encode_queries`; no batch holds rows of two pieces.
          total: number of texts of all pieces, which decides the batches' shapes; None: each piece's own number
            decides.
          advance: called with the number of texts that were embedded since the last call.

        Yields:
          For each piece float32 [n, D], and the number of its texts that were cut at their maximum length.

        Raises:
          UserError: as for `encode_passages`.
        """
        return self._encode_pieces(side, pieces, batch_size, total, advance)

    @abstractmethod
    def _encode_pieces(
        self, side: Side, pieces: Iterable[Sequence[Any]], batch_size: int | None, total: int | None, advance: Advance
    ) -> Iterator[tuple[np.ndarray, int]]:
        """Implement `encode_pieces`."""

    @abstractmethod
    def _encode(self, side: Side, texts: Any, batch_size: int | None, progress: bool | None) -> np.ndarray:
        """Embed texts of one side, and count the truncated ones in `truncated`."""
