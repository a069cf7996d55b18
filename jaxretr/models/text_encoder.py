"""What every encoder does: `TextEncoder`, of which `DualEncoder` and `CombinedEncoder` are the two."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from jaxretr.models.embed import Side

Advance = Callable[[int], object]
"""Called with the number of texts that were embedded since the last call."""


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
      config: what it is, as a frozen dataclass.
      truncated: how many texts the last call cut at their maximum length.
      source: the path or name that it was loaded from; None if it was not loaded, or was changed since.
    """

    config: Config
    truncated: int
    source: str | None

    def encode_queries(
        self, queries: Sequence[str], *, batch_size: int | None = None, progress: bool | None = None
    ) -> np.ndarray:
        """Embeds questions.

        Args:
          queries: n texts.
          batch_size: rows a batch; by default what suits the device and the texts' lengths.
          progress: a progress bar; by default on a terminal, when it takes more than two seconds.

        Returns:
          float32 [n, D], in the order of the texts.

        Raises:
          UserError: an element is not a text; the message names its index.
        """
        return self._encode("question", queries, batch_size, progress)

    def encode_passages(
        self,
        passages: Sequence[Mapping[str, str] | str | Any],
        *,
        batch_size: int | None = None,
        progress: bool | None = None,
    ) -> np.ndarray:
        """Embeds passages.

        Args:
          passages: n of {"title": ..., "text": ...} (other keys are ignored, and a missing title is an empty one),
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
        """Embeds one piece of a corpus after another; the next one is tokenised while one is embedded.

        Args:
          side: which tower.
          pieces: of passages or questions as `encode_passages` or `encode_queries` take them; one is requested ahead.
          batch_size: as in `encode_queries`; no batch holds rows of two pieces.
          total: number of texts of all pieces, by which the batches' shapes are chosen; None: each piece by its own.
          advance: called with the number of texts that were embedded since the last call.

        Yields:
          For each piece float32 [n, D], and how many of its texts were cut at their maximum length.

        Raises:
          UserError: as `encode_passages`.
        """
        return self._encode_pieces(side, pieces, batch_size, total, advance)

    @abstractmethod
    def _encode_pieces(
        self, side: Side, pieces: Iterable[Sequence[Any]], batch_size: int | None, total: int | None, advance: Advance
    ) -> Iterator[tuple[np.ndarray, int]]:
        """`encode_pieces`."""

    @abstractmethod
    def _encode(self, side: Side, texts: Any, batch_size: int | None, progress: bool | None) -> np.ndarray:
        """Embeds texts of one side, and counts the truncated ones in `truncated`."""
