"""The source that the frameworks' classes search and embed with: the service, or an encoder and an index in process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

Side = Literal["query", "document"]


@dataclass(frozen=True, slots=True)
class ScoredDocument:
    """A document that a search found.

    Attributes:
      id: the document's id.
      score: the inner product with the question's vector, or the re-ranker's score.
      title, text, metadata: empty if the index has only ids.
      truncated: whether the text was cut to the requested `max_chars`.
    """

    id: str
    score: float
    title: str = ""
    text: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    truncated: bool = False


class Source(Protocol):
    """The interface of `jaxretr.clients.http.Client` and `jaxretr.clients.local.Local`."""

    def search(
        self, query: str | Sequence[float], *, index: str | None = None, k: int = 10, **options: Any
    ) -> list[ScoredDocument]:
        """Find the best documents for a question, or for its vector.

        Args:
          query: the text, or its vector [D].
          index: the index's name; None: the source's only index.
          k: the number of hits; fewer if fewer may be found.
          options: `where`, `allow`, `deny`, `exact`, `target_recall`, as a request to search has them.
        """
        ...

    def embed(self, texts: Sequence[str], side: Side = "document") -> np.ndarray:
        """Embed texts as questions or as documents; float32 [n, D]."""
        ...


def content_of(hit: ScoredDocument, *, score: bool = False) -> tuple[str, dict[str, Any]]:
    """Return the content and the metadata of a hit for a framework: its text, or its title where it has no text.

    The title is among the metadata, with `score` the score as well. The document's own fields stay as they are: where one
    has such a name and another value, ours is `jaxretr_title` or `jaxretr_score`.
    """
    metadata = dict(hit.metadata)
    for name, value in (("title", hit.title or None), ("score", hit.score if score else None)):
        while value is not None and metadata.setdefault(name, value) != value:
            name = f"jaxretr_{name}"
    return hit.text or hit.title, metadata
