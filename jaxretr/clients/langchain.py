"""LangChain: a retriever and embeddings (`pip install langchain-core`).

from jaxretr.clients.http import Client
from jaxretr.clients.langchain import JaxretrEmbeddings, JaxretrRetriever

service = Client("http://127.0.0.1:8080")
retriever = JaxretrRetriever(source=service, index="wiki", k=5)
embeddings = JaxretrEmbeddings(service)
"""

from collections.abc import Mapping
from typing import Any

from jaxretr.clients.source import Source, content_of
from jaxretr.runtime.errors import import_package

_documents: Any = import_package("langchain_core.documents", "langchain-core")
_embeddings: Any = import_package("langchain_core.embeddings", "langchain-core")
_retrievers: Any = import_package("langchain_core.retrievers", "langchain-core")


class JaxretrRetriever(_retrievers.BaseRetriever):
    """Finds documents for a question: a runnable, like every retriever of LangChain.

    Attributes:
      source: a `Client` of the service, or a `Local` in the same process.
      index: the index's name; None: the source's only index.
      k: the number of documents.
      options: further options of `Source.search`, such as {"where": {"language": "en"}, "rerank": True}.
    """

    source: Any
    index: str | None = None
    k: int = 10
    options: Mapping[str, Any] = {}

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Any]:
        hits = self.source.search(query, index=self.index, k=self.k, **self.options)
        documents = []
        for hit in hits:
            text, metadata = content_of(hit, score=True)
            documents.append(_documents.Document(id=hit.id, page_content=text, metadata=metadata))
        return documents


class JaxretrEmbeddings(_embeddings.Embeddings):
    """Embeds questions with the model's question tower, and documents with its passage tower.

    Args:
      source: a `Client` of the service, or a `Local` in the same process.
    """

    def __init__(self, source: Source):
        self.source = source

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed documents; return n lists of D floats."""
        return self.source.embed(texts, "document").tolist()

    def embed_query(self, text: str) -> list[float]:
        """Embed a question; return D floats."""
        return self.source.embed([text], "query")[0].tolist()
