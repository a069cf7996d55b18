"""The types and limits of requests, checked before anything is computed."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator, with_config
from typing_extensions import TypedDict

MAX_TEXTS = 256
"""The most texts of a request for embeddings."""
MAX_QUERIES = 64
"""The most questions of a search."""
MAX_K = 1000
MAX_HITS = 10_000
"""The most hits of a search: k times its questions, or the depth of re-ranking times its questions."""
MAX_DOCUMENTS = 512
"""The most documents of a write, and of a request for re-ranking."""
MAX_CHARACTERS = 200_000
"""The most characters of a text."""
MAX_IDS = 10_000
"""The most ids of a filter or a deletion."""
MAX_FIELDS = 32
MAX_DIM = 16_384
MAX_TOKENS = 65_536
"""The most token ids of a text."""

Text = Annotated[str, StringConstraints(max_length=MAX_CHARACTERS)]
NonEmpty = Annotated[str, StringConstraints(min_length=1, max_length=MAX_CHARACTERS)]
Id = Annotated[str, StringConstraints(min_length=1, max_length=512)]
FieldName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Vector = Annotated[list[Number], Field(min_length=1, max_length=MAX_DIM)]
Dimension = Annotated[int, Field(ge=0, lt=2**31)]
SparseVector = with_config(ConfigDict(strict=True, extra="forbid", title="SparseVector"))(
    TypedDict(
        "SparseVector",
        {
            "indices": Annotated[list[Dimension], Field(max_length=MAX_DIM)],
            "values": Annotated[list[Number], Field(max_length=MAX_DIM)],
        },
    )
)
"""A vector by its dimensions that are not 0, as `encoding_format` sparse returns it: their numbers, and the values there."""
FieldText = Annotated[str, StringConstraints(max_length=4096)]
# An integer has any number of digits: as a floating-point number it would be another one.
FieldValue = FieldText | bool | int | Number | None
FieldValues = FieldValue | Annotated[list[FieldValue], Field(max_length=1000)]
Bound = FieldText | int | Number
FieldCondition = with_config(ConfigDict(strict=True, extra="forbid", title="FieldCondition"))(
    TypedDict(
        "FieldCondition",
        {"gt": Bound, "gte": Bound, "lt": Bound, "lte": Bound, "in": FieldValues, "not_in": FieldValues},
        total=False,
    )
)
"""A condition on the value of a field: bounds (numbers or texts), values it must have, and values it must not have."""
Where = Annotated[
    dict[FieldName, FieldValues | FieldCondition],
    Field(
        max_length=MAX_FIELDS,
        description="field: the value that a document must have; several values, one of which it must have; or a condition, "
        'such as {"gte": 2020, "lt": 2024} or {"not_in": ["en"]}',
    ),
]


class _Request(BaseModel):
    """The base of all requests and of their parts: null for an optional field is as if the field were left out."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {name: value for name, value in content.items() if value is not None or name not in optional}


class Strict(_Request):
    """The base of the service's own requests: no conversion, no unknown field."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Lenient(_Request):
    """The base of requests that other services define: no conversion; unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


def _no_token_ids(value: Any) -> Any:
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, int) or (isinstance(first, list) and first and isinstance(first[0], int)):
        raise ValueError(
            "token ids are not read here, since each model has its own; give texts (OpenAI's tokenizers: "
            "check_embedding_ctx_length=False in LangChain), or this model's ids to /v1/embeddings/tokens"
        )
    return value


class _Embeddings(Lenient):
    """What requests for embeddings have besides what they embed."""

    model: str | None = Field(default=None, max_length=512, description="ignored: there is one model")
    encoding_format: Literal["float", "base64", "sparse"] = Field(
        default="float", description="sparse, for a sparse model: the dimensions that are not 0, and their values"
    )
    dimensions: int | None = Field(
        default=None,
        ge=1,
        le=MAX_DIM,
        description="keeps the first so many dimensions, rescaled to length 1 if the model's vectors have length 1",
    )
    input_type: Literal["query", "document", "search_query", "search_document", "passage"] = Field(
        default="document", description="which side of the model: a question or a passage"
    )
    user: str | None = Field(default=None, max_length=512, description="ignored")

    @property
    def side(self) -> Literal["question", "passage"]:
        """The tower that `input_type` asks for."""
        return "question" if self.input_type in ("query", "search_query") else "passage"


class EmbeddingsRequest(_Embeddings):
    """OpenAI's request for embeddings, and which side of the model the texts are for."""

    input: Annotated[
        NonEmpty | Annotated[list[NonEmpty], Field(min_length=1, max_length=MAX_TEXTS)], BeforeValidator(_no_token_ids)
    ] = Field(description="a text or several")
    prompt: str | None = Field(
        default=None, max_length=512, description="the name of one of the model's prompts, in place of its default"
    )


class TokenEmbeddingsRequest(_Embeddings):
    """Texts to embed that the client has tokenised."""

    input: list[Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, max_length=MAX_TOKENS)]] = (
        Field(
            min_length=1,
            max_length=MAX_TEXTS,
            description="rows of ids of the model's own tokenizer, computed as they are: with its prompt and special tokens",
        )
    )


class Rerank(Strict):
    """The settings of re-ranking the hits."""

    depth: int = Field(default=100, ge=1, le=MAX_K, description="hits that are scored; later ones are dropped")


class SearchRequest(Strict):
    """A search by texts or by vectors."""

    query: NonEmpty | Annotated[list[NonEmpty], Field(min_length=1, max_length=MAX_QUERIES)] | None = None
    vector: (
        Vector
        | SparseVector
        | Annotated[list[Vector | SparseVector], Field(min_length=1, max_length=MAX_QUERIES)]
        | None
    ) = Field(default=None, description="in place of a query: the question's vector, made with the model or otherwise")
    k: int = Field(default=10, ge=1, le=MAX_K)
    where: Where = Field(default_factory=dict)
    allow: list[Id] | None = Field(default=None, max_length=MAX_IDS, description="the only documents that may be found")
    deny: list[Id] = Field(default_factory=list, max_length=MAX_IDS, description="documents that may not be found")
    exact: bool = Field(default=False, description="score every document instead of using an approximate index")
    target_recall: float | None = Field(
        default=None, gt=0, le=1, description="one of those that the index was built for"
    )
    lexical_weight: float | None = Field(
        default=None,
        ge=0,
        le=1e6,
        allow_inf_nan=False,
        description="the weight of a combined model's second part; the model's own by default",
    )
    rerank: bool | Rerank = Field(
        default=False,
        description="order the first hits by the re-ranker's scores; true: the first 100, or k if that is more",
    )
    fields: list[Literal["title", "text", "metadata"]] = Field(
        default_factory=lambda: ["title", "text", "metadata"],
        max_length=3,
        description="what hits contain besides id and score",
    )
    max_chars: int | None = Field(
        default=None, ge=1, le=MAX_CHARACTERS, description="characters after which texts are cut"
    )


class DocumentIn(Strict):
    """A document to write."""

    id: Id
    title: Text = ""
    text: Text = ""
    metadata: dict[FieldName, FieldValue] = Field(default_factory=dict, max_length=MAX_FIELDS)


class UpsertRequest(Strict):
    """Documents to add, or to replace those with the same ids."""

    documents: list[DocumentIn] = Field(min_length=1, max_length=MAX_DOCUMENTS)
    vectors: list[Vector] | None = Field(
        default=None,
        max_length=MAX_DOCUMENTS,
        description="the documents' vectors, one each, made with the served model; computed by default",
    )


class DeleteRequest(Strict):
    """Documents to remove."""

    ids: list[Id] = Field(min_length=1, max_length=MAX_IDS)


class RerankDocument(Lenient):
    """A document to score."""

    title: Text = ""
    text: Text = ""

    @model_validator(mode="after")
    def _not_empty(self) -> "RerankDocument":
        if not self.title and not self.text:  # As of other fields than ours, which would all get one score.
            raise ValueError("neither title nor text; give one of them")
        return self


class RerankRequest(Lenient):
    """Cohere's request for re-ranking."""

    query: NonEmpty
    documents: list[NonEmpty | RerankDocument] = Field(min_length=1, max_length=MAX_DOCUMENTS)
    top_n: int | None = Field(default=None, ge=1, le=MAX_DOCUMENTS)
    return_documents: bool = False
    model: str | None = Field(default=None, max_length=512, description="ignored: there is one re-ranker")


class ReindexRequest(Strict):
    """A new model for an index."""

    to: str = Field(min_length=1, max_length=1024, description="the model's folder")
