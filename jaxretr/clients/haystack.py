"""Haystack: a text embedder and a retriever as components (`pip install haystack-ai`).

from jaxretr.clients.haystack import JaxretrRetriever, JaxretrTextEmbedder
from jaxretr.clients.http import Client

pipeline.add_component("retriever", JaxretrRetriever(Client("http://127.0.0.1:8080"), index="wiki", k=5))
"""

from collections.abc import Iterable, Mapping
from typing import Any

from jaxretr.clients.http import Client
from jaxretr.clients.source import Source, content_of
from jaxretr.indexes.filters import BOUNDS
from jaxretr.runtime.errors import UsageError, import_package

_haystack: Any = import_package("haystack", "haystack-ai")
_component: Any = _haystack.component

# The conditions of a search for Haystack's comparisons; "" and a list of values need none.
_CONDITIONS = {"==": "", "in": "", "!=": "not_in", "not in": "not_in", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}


@_component
class JaxretrTextEmbedder:
    """Embeds a question, for a document store whose documents were embedded with the same model.

    Args:
      source: a `Client` of the service, or a `Local` in the same process.
    """

    def __init__(self, source: Source):
        self.source = source

    @_component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, Any]:
        """Embed the question; return {"embedding": D floats}."""
        return {"embedding": self.source.embed([text], "query")[0].tolist()}

    def to_dict(self) -> dict[str, Any]:
        """The component as Haystack writes it into a pipeline's file, without an API key."""
        return _haystack.default_to_dict(self, source=_address(self.source))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "JaxretrTextEmbedder":
        """The component that `to_dict` described; its API key comes from the variable JAXRETR_KEY."""
        return _haystack.default_from_dict(cls, _opened(data))


@_component
class JaxretrRetriever:
    """Finds documents for a question.

    Args:
      source: a `Client` of the service, or a `Local` in the same process.
      index: the index's name; None: the source's only index.
      k: the number of documents.
      options: further options of `Source.search`.
    """

    def __init__(self, source: Source, index: str | None = None, k: int = 10, options: Mapping[str, Any] | None = None):
        self.source, self.index, self.k, self.options = source, index, k, dict(options or {})

    @_component.output_types(documents=list[_haystack.Document])
    def run(self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None) -> dict[str, list[Any]]:
        """Find documents.

        Args:
          query: the question.
          filters: Haystack's filters: comparisons of fields of the metadata, and AND; they replace `where`.
          top_k: the number of documents; None: k.

        Returns:
          {"documents": ...}, best first.

        Raises:
          UsageError: a filter that is not supported.
        """
        options = {**self.options, "where": where_of(filters)} if filters else self.options
        hits = self.source.search(query, index=self.index, k=self.k if top_k is None else top_k, **options)
        documents = []
        for hit in hits:
            text, metadata = content_of(hit)
            documents.append(_haystack.Document(id=hit.id, content=text, meta=metadata, score=hit.score))
        return {"documents": documents}

    def to_dict(self) -> dict[str, Any]:
        """The component as Haystack writes it into a pipeline's file, without an API key."""
        return _haystack.default_to_dict(
            self, source=_address(self.source), index=self.index, k=self.k, options=self.options
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "JaxretrRetriever":
        """The component that `to_dict` described; its API key comes from the variable JAXRETR_KEY."""
        return _haystack.default_from_dict(cls, _opened(data))


def where_of(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Convert Haystack's filters to fields and values.

    Args:
      filters: {"field": "meta.lang", "operator": "==", "value": "en"}; !=, <, <=, >, >=; "in" and "not in" with a list; or
        {"operator": "AND", "conditions": [...]} of these.

    Returns:
      Field -> the value, the list of values, or a condition.

    Raises:
      UsageError: another operator, a condition that lacks a part, or a field twice with the same operator.
    """
    if not isinstance(filters, Mapping):
        raise UsageError(f"filters: a {type(filters).__name__} is no condition; give field, operator and value")
    operator, where = filters.get("operator"), {}
    if operator not in ("AND", *_CONDITIONS):
        raise UsageError(f"filters: operator {operator!r} is not supported; use {', '.join(_CONDITIONS)} and AND")
    for name in ("conditions",) if operator == "AND" else ("field", "value"):
        if filters.get(name) is None and (name != "value" or name not in filters):  # A field may be null.
            raise UsageError(f"filters: the operator {operator!r} lacks its {name!r}; give it")
    if operator == "AND":
        for condition in filters["conditions"]:
            for name, value in where_of(condition).items():
                known = where.setdefault(name, {})
                both = isinstance(known, dict) and isinstance(value, dict) and not known.keys() & value.keys()
                if known != {} and not both:
                    raise UsageError(
                        f"filters: {name} is named twice; combine what is asked of it in one condition each"
                    )
                where[name] = known | value if isinstance(value, dict) else value
        return where
    name, value = str(filters["field"]).removeprefix("meta."), filters["value"]
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        if operator in ("in", "not in"):
            raise UsageError(f"filters: {name}: '{operator}' takes a list of values; give one, or use == or !=")
        if isinstance(value, Mapping) or (_CONDITIONS[operator] in BOUNDS and not isinstance(value, str | int | float)):
            raise UsageError(f"filters: {name}: {operator} takes a number or a text (of a date, its isoformat())")
    elif operator not in ("in", "not in"):
        raise UsageError(f"filters: {name}: {operator} takes a single value; use 'in' or 'not in' for several")
    return {name: {_CONDITIONS[operator]: value} if _CONDITIONS[operator] else value}


def _address(source: Any) -> dict[str, Any]:
    if not isinstance(source, Client):
        raise UsageError(f"{type(source).__name__}: only a pipeline whose source is a Client can be written to a file")
    return {"url": source.url, "timeout": source.timeout, "retries": source.retries}


def _opened(data: dict[str, Any]) -> dict[str, Any]:
    parameters = data["init_parameters"]
    return {**data, "init_parameters": {**parameters, "source": Client(**parameters["source"])}}
