"""The service's answers, as the OpenAPI document describes them."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from jaxretr.serve.problems import Type
from jaxretr.serve.requests import SparseVector


class ErrorFacts(TypedDict):
    """The problem that made a request fail."""

    message: str
    type: Type
    param: str | None


class ErrorAnswer(TypedDict):
    """The body of every response with a status from 400."""

    error: ErrorFacts


class Embedding(TypedDict):
    """One vector: numbers; base64 of float32, the lowest byte first; or what a sparse model's has besides zeros."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str | SparseVector


class Usage(TypedDict):
    """Tokens of the texts, and how many texts are longer than the model reads, so that their ends had no effect."""

    prompt_tokens: int
    total_tokens: int
    truncated: int


class EmbeddingsAnswer(TypedDict):
    """OpenAI's answer."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class ModelFacts(TypedDict):
    """A model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsAnswer(TypedDict):
    """OpenAI's list of models."""

    object: Literal["list"]
    data: list[ModelFacts]


class HitAnswer(TypedDict):
    """A document that was found.

    `parts` are the scores of a combined model's parts, which sum up to the score; `first_score` is the score of the
    search where `score` is the re-ranker's raw one; `truncated` says that the text was cut.
    """

    id: str
    score: float
    title: NotRequired[str]
    text: NotRequired[str]
    metadata: NotRequired[dict[str, Any]]
    parts: NotRequired[dict[str, float]]
    first_score: NotRequired[float]
    truncated: NotRequired[bool]


class Hits(TypedDict):
    """The hits of a question, best first."""

    hits: list[HitAnswer]


class Took(TypedDict):
    """Milliseconds, including time spent in queues."""

    encode_ms: float
    search_ms: float
    rerank_ms: float
    total_ms: float


class SearchUsage(TypedDict):
    """Questions that are longer than the model reads, and pairs of question and document that the re-ranker cut."""

    truncated: int
    truncated_pairs: NotRequired[int]


class SearchAnswer(TypedDict):
    """The hits of each question."""

    index: str
    model: str | None
    results: list[Hits]
    took: Took
    exact: bool
    usage: SearchUsage
    sequence: NotRequired[int]


class DocumentAnswer(TypedDict):
    """A document."""

    id: str
    title: str
    text: str
    metadata: dict[str, Any]


class UpsertAnswer(TypedDict):
    """A write that is on disk; `sequence` is its number, `truncated` says how many documents the model reads in part."""

    sequence: int
    added: int
    replaced: int
    truncated: int


class DeleteAnswer(TypedDict):
    """A deletion that is on disk."""

    sequence: int
    deleted: int


class IndexFacts(TypedDict):
    """An index; engines add facts of their own."""

    __pydantic_config__ = {"extra": "allow"}  # noqa: RUF012  # pyright: ignore

    name: str
    engine: str
    passages: int
    dim: int
    writable: bool


class IndexesAnswer(TypedDict):
    """All indexes."""

    indexes: list[IndexFacts]


class DroppedAnswer(TypedDict):
    """An index that was removed."""

    dropped: str


class MoveAnswer(TypedDict):
    """The progress of an index's move to another model.

    `phase` is "none", "waiting", "filling", "snapshot", "switched" or "failed"; `model` is the one that is searched with.
    """

    index: str
    model: str
    phase: str
    to: NotRequired[str]
    filled: NotRequired[int]
    lacking: NotRequired[int]
    error: NotRequired[str]


class RerankResult(TypedDict):
    """A document's place in the request, and its raw score."""

    index: int
    relevance_score: float
    document: NotRequired[dict[str, str]]


class RerankAnswer(TypedDict):
    """Cohere's answer; `meta` says how many documents were `truncated`, since the re-ranker reads no more of them."""

    id: str
    results: list[RerankResult]
    meta: dict[str, Any]


class StatusAnswer(TypedDict):
    """Whether the service answers."""

    status: Literal["ok", "starting", "stopping", "full"]


class InfoAnswer(TypedDict):
    """The service, its model, its indexes and its limits."""

    __pydantic_config__ = {"extra": "allow"}  # noqa: RUF012  # pyright: ignore

    version: str
    status: str
    model: dict[str, Any]
    reranker: dict[str, Any] | None
    indexes: list[IndexFacts]
    limits: dict[str, Any]
