"""A sparse model in the service: its vectors in requests and answers, and its index."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import SMALL, caller
from tiny import DATA

from jaxretr.embeddings.encoding import encode
from jaxretr.indexes.opening import open_index
from jaxretr.models.sparse_encoder import SparseEncoder
from jaxretr.serve.app import create_app
from jaxretr.serve.service import Service

TEXTS = ["who wrote Faust", "glacier caves"]


@pytest.fixture(scope="module")
def encoder(tiny_models: Path) -> SparseEncoder:
    lengths = {"max_question_length": 16, "max_passage_length": 16}
    return SparseEncoder.from_pretrained(tiny_models / "encoder", pooling="unicoil", shared=True, **lengths)


@pytest.fixture(scope="module")
def call(encoder: SparseEncoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    store = tmp_path_factory.mktemp("sparse") / "store"
    encode(encoder, corpus=DATA, out=store)
    service = Service(encoder, {"wiki": open_index(str(store), encoder, DATA, name="wiki")}, settings=SMALL)
    service.start()
    yield caller(create_app(service))
    service.close()


def test_sparse_vectors_are_those_of_the_model_and_find_the_same(
    call: Callable[..., Any], encoder: SparseEncoder
) -> None:
    body = {"input": TEXTS, "input_type": "query", "encoding_format": "sparse"}
    sparse = [row["embedding"] for row in call("POST", "/v1/embeddings", json=body).json()["data"]]
    expected = encoder.sparse("question", TEXTS)
    for row, vector in enumerate(sparse):
        np.testing.assert_array_equal(vector["indices"], expected[[row]].indices)
        np.testing.assert_allclose(vector["values"], expected[[row]].data, rtol=1e-4)

    def hits(**question: Any) -> list[list[tuple[str, float]]]:
        results = call("POST", "/v1/wiki/search", json={**question, "k": 3}).json()["results"]
        return [[(hit["id"], pytest.approx(hit["score"], rel=1e-4)) for hit in result["hits"]] for result in results]

    assert hits(vector=sparse) == hits(query=TEXTS)
    assert hits(vector=sparse[1]) == hits(query=TEXTS[1])
    assert hits(vector=[sparse[0], [0.0] * encoder.config.embedding_size])[0] == hits(query=TEXTS[0])[0]


@pytest.mark.parametrize(
    ("vector", "param", "words"),
    [
        ({"indices": [1, 2], "values": [1.0]}, "vector", "2 indices and 1 values"),
        ({"indices": [1, 1], "values": [1.0, 2.0]}, "vector", "an index twice"),
        ([{"indices": [10**6], "values": [1.0]}], "vector", "the index 1000000"),
        ({"indices": [1], "values": [1e300]}, "vector", "too large for float32"),
        ({"indices": [-1], "values": [1.0]}, "vector.indices.0", "at least 0"),
        ({"indices": [1]}, "vector.values", "missing"),
        ({"indices": [1], "values": [1.0], "dim": 3}, "vector.dim", "no such field"),
        ([{"indices": [1], "values": ["a"]}], "vector.0.values.0", "a number"),
    ],
)
def test_wrong_sparse_vectors(call: Callable[..., Any], vector: Any, param: str, words: str) -> None:
    problem = call("POST", "/v1/wiki/search", json={"vector": vector})
    assert problem.status_code == 422
    assert problem.json()["error"]["param"] == param
    assert words in problem.json()["error"]["message"]
