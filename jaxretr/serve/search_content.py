"""The questions and options in a search's request, and the answer made of an index's hits."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxretr.indexes.index import Document, Findings, Hit, SearchOptions
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.serve import answers
from jaxretr.serve.encoding import BatchEncoder
from jaxretr.serve.problems import Invalid
from jaxretr.serve.requests import MAX_HITS, Rerank, SearchRequest


def search_options(request: SearchRequest) -> SearchOptions:
    """The options of a request that the index gets."""
    return SearchOptions(
        exact=request.exact,
        target_recall=request.target_recall,
        where=request.where,
        allow=request.allow,
        deny=request.deny,
    )


def question_texts(request: SearchRequest) -> list[str] | None:
    """The questions of a request, if they are given as texts.

    Raises:
      Invalid: neither texts nor vectors or both, or too many hits.
    """
    if (request.query is None) == (request.vector is None):
        raise Invalid("give either query or vector", "query")
    questions: Any = request.query if request.query is not None else request.vector
    count = len(_each(questions))
    hits, param = request.k, "k"
    if isinstance(request.rerank, Rerank):
        hits, param = request.rerank.depth, "rerank.depth"
    if count * hits > MAX_HITS:
        raise Invalid(f"{count} questions of {hits} hits each are more than {MAX_HITS} hits; ask for fewer", param)
    return [request.query] if isinstance(request.query, str) else request.query


def _each(questions: Any) -> list[Any]:
    """The questions of a request, texts or vectors, which may be one that is not in a list."""
    is_single = isinstance(questions, str | dict) or not isinstance(questions[0], str | list | dict)
    return [questions] if is_single else list(questions)


def part_weights(encoder: BatchEncoder, request: SearchRequest) -> Sequence[float] | None:
    """The weights of a combined model's parts; None: its own.

    Raises:
      Invalid: a weight is given, but there is nothing to weight.
    """
    if request.lexical_weight is None:
        return None
    if request.query is None or not isinstance(encoder.encoder, CombinedEncoder):
        raise Invalid(
            "lexical_weight is for questions of a combined model (SPAR) given as texts; leave it out", "lexical_weight"
        )
    first, _, *rest = encoder.weights
    return [first, request.lexical_weight, *rest]


def question_vectors(request: SearchRequest, dim: int) -> np.ndarray:
    """The questions of a request that are given as vectors, float32 [B, D].

    Raises:
      Invalid: they do not fit the index.
    """
    vectors = _each(request.vector)
    matrix = np.zeros((len(vectors), dim), np.float32)
    with np.errstate(over="ignore"):
        for number, vector in enumerate(vectors):
            if isinstance(vector, dict):
                matrix[number, _dimensions(vector, number, dim)] = vector["values"]
            elif len(vector) != dim:
                raise Invalid(f"vector {number} has {len(vector)} numbers, the index {dim} dimensions", "vector")
            else:
                matrix[number] = vector
    if not np.isfinite(matrix).all():
        raise Invalid("vector: a number is too large for float32", "vector")
    return matrix


def _dimensions(vector: Mapping[str, Any], number: int, dim: int) -> list[int]:
    """The dimensions of a sparse vector.

    Raises:
      Invalid: they do not fit the index or the values.
    """
    indices, values = vector["indices"], vector["values"]
    if len(indices) != len(values):
        raise Invalid(
            f"vector {number} has {len(indices)} indices and {len(values)} values; give one for each", "vector"
        )
    if len(set(indices)) < len(indices):
        raise Invalid(f"vector {number} has an index twice; give each once", "vector")
    if indices and max(indices) >= dim:
        raise Invalid(f"vector {number} has the index {max(indices)}, the index {dim} dimensions", "vector")
    return indices


class AnswerHits:
    """Turns an index's hits into those of an answer.

    Args:
      encoder: the model, whose parts may have scores of their own.
    """

    def __init__(self, encoder: BatchEncoder, request: SearchRequest):
        self._encoder, self._request = encoder, request

    @property
    def has_parts(self) -> bool:
        """Whether hits have scores of the model's parts, which are computed from their vectors."""
        model = self._encoder.encoder
        is_vector = self._request.query is None  # as vectors, perhaps of other weights
        return not is_vector and isinstance(model, CombinedEncoder) and model.config.how == "concatenate"

    def results(self, findings: Findings, vectors: np.ndarray) -> list[answers.Hits]:
        """Make each question's entry in the answer, its hits best first.

        Args:
          findings: the index's hits, with their documents and vectors where they are needed.
          vectors: the questions' vectors, float32 [B, D].
        """
        results: list[answers.Hits] = []
        for vector, hits in zip(vectors, findings.hits, strict=True):
            shown = [self._hit(hit, findings.documents.get(hit.id)) for hit in hits]
            if self.has_parts and hits:
                passages = np.stack([findings.vectors[hit.id] for hit in hits])
                for hit, scores in zip(shown, self._parts(passages, vector), strict=True):
                    hit["parts"] = scores
            results.append({"hits": shown})
        return results

    def rerank(self, results: Sequence[answers.Hits], scores: np.ndarray) -> list[answers.Hits]:
        """The hits in the order of a re-ranker's scores, float32 [all hits]; equal ones keep their order."""
        ordered: list[answers.Hits] = []
        start = 0
        for each in results:
            hits = each["hits"]
            hit_scores = scores[start : start + len(hits)]
            start += len(hits)
            best = np.argsort(-hit_scores, kind="stable")[: self._request.k].tolist()
            for hit, score in zip(hits, hit_scores.tolist(), strict=True):
                hit["first_score"], hit["score"] = hit["score"], score
            ordered.append({"hits": [hits[n] for n in best]})
        return ordered

    def _hit(self, hit: Hit, document: Document | None) -> answers.HitAnswer:
        shown: answers.HitAnswer = {"id": hit.id, "score": hit.score}
        if document is None:
            return shown
        fields, limit = self._request.fields, self._request.max_chars
        if "title" in fields:
            shown["title"] = document.title
        if "text" in fields:
            shown["text"] = document.text
            if limit is not None and len(document.text) > limit:
                shown["text"], shown["truncated"] = document.text[:limit], True
        if "metadata" in fields:
            shown["metadata"] = dict(document.metadata)
        return shown

    def _parts(self, passages: np.ndarray, vector: np.ndarray) -> list[dict[str, float]]:
        """The parts' scores of a question's hits, float32 [n, D], which sum to their scores."""
        model = self._encoder.encoder
        assert isinstance(model, CombinedEncoder)
        by_part = [
            (passages[:, part].astype(np.float64) @ vector[part].astype(np.float64)).tolist()
            for part in self._encoder.slices()
        ]
        return [dict(zip(model.names, scores, strict=True)) for scores in zip(*by_part, strict=True)]
