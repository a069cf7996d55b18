"""A service on 127.0.0.1 over a tiny model, for clients that know only its address."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_index import MemoryIndex
from running import running
from tiny import DATA

from jaxretr.clients.http import Client
from jaxretr.data.corpus import read_corpus
from jaxretr.indexes.index import Document
from jaxretr.models.any_scorer import load_scorer
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.serve.app import create_app
from jaxretr.serve.keys import Keys, add_key
from jaxretr.serve.service import Service

PASSAGES = 20


@pytest.fixture(scope="session")
def encoder(tiny_models: Path) -> DualEncoder:
    """Reads up to 16 tokens of a question and 32 of a passage, so that few programs are compiled."""
    return DualEncoder.from_pretrained(
        tiny_models / "encoder", pooling="mean", shared=True, max_question_length=16, max_passage_length=32
    )


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    """Passages with a field; the last of them has a text of 300 characters and an id with a slash."""
    passages = list(read_corpus(DATA))[:PASSAGES]
    found = [
        Document(each.id, each.title, each.text, {"half": "first" if number < PASSAGES // 2 else "second"})
        for number, each in enumerate(passages)
    ]
    return [*found, Document("notes/a long one", "", "long " * 60, {})]


@pytest.fixture(scope="session")
def filled(encoder: DualEncoder, documents: list[Document]) -> MemoryIndex:
    """The index `wiki`."""
    index = MemoryIndex("wiki", encoder.config.embedding_size)
    texts = [{"title": each.title, "text": each.text} for each in documents]
    index.upsert(documents, encoder.encode_passages(texts))
    return index


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A file of keys, and the key with all scopes in it."""
    path = tmp_path_factory.mktemp("keys") / "keys"
    return path, add_key(path, "tests", ["read", "write"])


@pytest.fixture(scope="session")
def service(encoder: DualEncoder, filled: MemoryIndex, tiny_cross_encoder: Path) -> Iterator[Service]:
    """Indexes `wiki` (not changed by any test) and `notes` (empty)."""
    notes = MemoryIndex("notes", encoder.config.embedding_size)
    service = Service(encoder, {"wiki": filled, "notes": notes}, reranker=load_scorer(tiny_cross_encoder))
    # Each program is compiled when it is needed: these tests need few of them.
    assert service.reranker is not None
    service.encoder.compile = service.reranker.compile = lambda **_: None
    service.start()
    yield service
    service.close()


@pytest.fixture(scope="session")
def address(service: Service, key: tuple[Path, str]) -> Iterator[str]:
    """The service's URL, where requests need the key."""
    with running(create_app(service, keys=Keys.read(key[0]))) as address:
        yield address


@pytest.fixture
def client(address: str, key: tuple[Path, str]) -> Iterator[Client]:
    """A client with the key."""
    with Client(address, key=key[1]) as client:
        yield client
