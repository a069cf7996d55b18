"""What tests of the service share."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from memory_index import MemoryIndex
from tiny import DATA

from jaxretr.indexes.opening import open_index
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.serve.service import Service
from jaxretr.serve.settings import Settings

# Few tokens a batch, so that few programs are compiled, and that several texts fill more than one batch.
SMALL = Settings(max_batch_tokens=16)


def make_service(encoder: DualEncoder, store: Path, **options: object) -> Service:
    """A service with the indexes `wiki`, which is only read, and `notes`; not started."""
    indexes = {
        "wiki": open_index(str(store), encoder, DATA, name="wiki"),
        "notes": MemoryIndex("notes", encoder.config.embedding_size),
    }
    return Service(encoder, indexes, **{"settings": SMALL, **options})  # pyright: ignore


def client_of(app: object) -> httpx.AsyncClient:
    """A client that calls the app in this process; an exception of the app fails the test."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")  # pyright: ignore


def caller(app: object) -> Callable[..., httpx.Response]:
    """What sends one request to an app in this process, and returns the response."""

    def call(method: str, path: str, **what: Any) -> httpx.Response:
        async def asked() -> httpx.Response:
            async with client_of(app) as client:
                return await client.request(method, path, **what)

        return asyncio.run(asked())

    return call
