"""An encoder and an index in the same process, for the frameworks' classes: no service in between."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxretr.clients.source import ScoredDocument, Side
from jaxretr.indexes.index import Index, SearchOptions
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UsageError


class Local:
    """Searches and embeds without a service.

    Args:
      encoder: the encoder of questions and documents.
      index: the index to search, as `jaxretr.serve` opens it; None: this source only embeds.
    """

    def __init__(self, encoder: DualEncoder | CombinedEncoder, index: Index | None = None):
        self.encoder, self.index = encoder, index

    def search(
        self, query: str | Sequence[float], *, index: str | None = None, k: int = 10, **options: Any
    ) -> list[ScoredDocument]:
        """Find the best documents; see `jaxretr.clients.source.Source.search`.

        Raises:
          UsageError: there is no index, it has another name, or an option is unknown.
        """
        if self.index is None or index not in (None, self.index.name):
            have = "no index" if self.index is None else f"the index {self.index.name!r}"
            raise UsageError(f"index={index!r}: this source has {have}; give Local one, or leave the name out")
        try:
            chosen = SearchOptions(**options)
        except TypeError as error:
            known = ", ".join(SearchOptions.__dataclass_fields__)
            raise UsageError(f"search: {error}; in the same process these options are known: {known}") from None
        if k < 1:
            raise UsageError(f"k={k}: give at least 1")
        vectors = self.embed([query], "query") if isinstance(query, str) else np.asarray([query], np.float32)
        findings = self.index.find(vectors, k, chosen, with_documents=True)
        documents = [(findings.documents[hit.id], hit.score) for hit in findings.hits[0]]
        return [ScoredDocument(each.id, score, each.title, each.text, each.metadata) for each, score in documents]

    def embed(self, texts: Sequence[str], side: Side = "document") -> np.ndarray:
        """Embed texts; float32 [n, D]."""
        if side == "query":
            return self.encoder.encode_queries(texts)
        return self.encoder.encode_passages(texts)
