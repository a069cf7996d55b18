"""Every route of the service, over HTTP in this process."""

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from serving import client_of

from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.serve.app import create_app
from jaxretr.serve.service import Service


@pytest.fixture(scope="module")
def app(started: Service) -> FastAPI:
    return create_app(started)


@pytest.fixture
def call(app: FastAPI) -> Callable[..., Any]:
    """Sends one request, and returns the response."""

    def send(method: str, path: str, **what: Any) -> Any:
        async def asked() -> Any:
            async with client_of(app) as client:
                return await client.request(method, path, **what)

        return asyncio.run(asked())

    return send


QUERIES = ["who lives there?", "when did the oil crisis begin in october and why did it go on"]


@pytest.mark.parametrize("input_type", ["query", "search_query", "document", "search_document", "passage"])
def test_vectors_are_the_encoders(call: Callable[..., Any], encoder: DualEncoder, input_type: str) -> None:
    answer = call("POST", "/v1/embeddings", json={"input": QUERIES, "input_type": input_type, "model": "any"}).json()
    found = np.array([row["embedding"] for row in answer["data"]])
    expected = (encoder.encode_queries if "query" in input_type else encoder.encode_passages)(QUERIES)
    # Of another batch: sums in another order.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert answer["model"] == "any"
    assert answer["usage"]["total_tokens"] > len(QUERIES)


def test_base64_is_the_same_numbers(call: Callable[..., Any]) -> None:
    body = {"input": QUERIES[0]}
    plain = call("POST", "/v1/embeddings", json=body).json()["data"][0]["embedding"]
    packed = call("POST", "/v1/embeddings", json={**body, "encoding_format": "base64"}).json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == plain
