"""LlamaIndex: a retriever (`pip install llama-index-core`).

from jaxretr.clients.http import Client
from jaxretr.clients.llama_index import JaxretrRetriever

retriever = JaxretrRetriever(Client("http://127.0.0.1:8080"), index="wiki", k=5)
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from jaxretr.clients.source import Source, content_of
from jaxretr.runtime.errors import import_package

_retrievers: Any = import_package("llama_index.core.retrievers", "llama-index-core")
_schema: Any = import_package("llama_index.core.schema", "llama-index-core")


class JaxretrRetriever(_retrievers.BaseRetriever):
    """Finds nodes for a question, or for its embedding if the query already has one.

    Args:
      source: a `Client` of the service, or a `Local` in the same process.
      index: the index's name; None: the source's only index.
      k: the number of nodes.
      options: further options of `Source.search`.
      settings: settings of LlamaIndex's BaseRetriever, such as callback_manager.
    """

    def __init__(
        self,
        source: Source,
        *,
        index: str | None = None,
        k: int = 10,
        options: Mapping[str, Any] | None = None,
        **settings: Any,
    ):
        self.source, self.index, self.k, self.options = source, index, k, dict(options or {})
        super().__init__(**settings)

    def _retrieve(self, query_bundle: Any) -> list[Any]:
        query = query_bundle.query_str if query_bundle.embedding is None else query_bundle.embedding
        nodes = []
        for hit in self.source.search(query, index=self.index, k=self.k, **self.options):
            text, metadata = content_of(
                hit
            )  # The score stands beside the node: all metadata is put before a language model.
            nodes.append(
                _schema.NodeWithScore(node=_schema.TextNode(id_=hit.id, text=text, metadata=metadata), score=hit.score)
            )
        return nodes

    async def _aretrieve(self, query_bundle: Any) -> list[Any]:
        # The base class would block the event loop.
        return await asyncio.to_thread(self._retrieve, query_bundle)
