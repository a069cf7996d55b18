"""Live indexes of a few documents whose vectors follow from their texts, and what must hold of a folder at any time."""

import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.indexes.exact import ExactIndex
from jaxretr.indexes.index import Document, SearchOptions
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.indexes.live.reindex import Model
from jaxretr.indexes.live.settings import LiveSettings

DIM = 6


def document(name: str, version: int = 0, **metadata: Any) -> Document:
    return Document(name, f"title of {name}", f"version {version} of {name}", metadata or {"parity": version % 2})


def vector(model: str, text: str, dim: int = DIM) -> np.ndarray:
    """Small whole numbers, so that many scores are equal, and the sums exact."""
    draws = np.random.default_rng(zlib.crc32(f"{model}: {text}".encode()))
    return draws.integers(-2, 3, dim).astype(np.float32)


def encode(model: str, documents: Sequence[Document]) -> np.ndarray:
    return np.stack([vector(model, each.text) for each in documents])


def model(name: str) -> Model:
    return Model(name, f"fingerprint of {name}", DIM, lambda documents: encode(name, documents))


def open_live(folder: Path, name: str | None = "small", *, background: bool = False, **settings: Any) -> LiveIndex:
    given = {} if name is None else {"model": name, "model_fingerprint": f"fingerprint of {name}", "dim": DIM}
    return LiveIndex.open(folder, **given, settings=LiveSettings(**settings), background=background)


def put(index: LiveIndex, documents: Sequence[Document]) -> Any:
    return index.upsert(documents, encode(index.view.space.model, documents))


QUESTIONS = np.stack([vector("questions", str(number)) for number in range(5)])


def in_sqlite(folder: Path) -> tuple[str, dict[str, str], np.ndarray]:
    """The active model, id -> text in the order of rows, and the vectors, read without the code under test."""
    connection = sqlite3.connect(folder / "live.sqlite")
    active, name = connection.execute("SELECT active, model FROM state JOIN spaces ON space = active").fetchone()
    rows = connection.execute(
        f"""SELECT id, text, vector FROM documents JOIN texts USING (row) LEFT JOIN vectors_{active} USING (row)
        ORDER BY row"""
    ).fetchall()
    connection.close()
    vectors = np.array([np.frombuffer(content, np.float32) for _, _, content in rows], np.float32).reshape(
        len(rows), DIM
    )
    return name, {id: text for id, text, _ in rows}, vectors


def assert_searches_equal(index: LiveIndex, folder: Path) -> None:
    """Searches find exactly what an `ExactIndex` of SQLite's documents finds, equal scores in the same order."""
    name, texts, vectors = in_sqlite(folder)
    assert name == index.view.space.model
    assert len(index) == len(texts)
    assert [each and each.text for each in index.documents(list(texts))] == list(texts.values())
    if not texts:
        assert index.search(QUESTIONS, 3, SearchOptions()) == [[]] * len(QUESTIONS)
        return
    np.testing.assert_array_equal(vectors, np.stack([vector(name, text) for text in texts.values()]))
    np.testing.assert_array_equal(index.vectors(list(texts)), vectors)
    exact = ExactIndex(vectors, list(texts))
    for k in (1, 7, len(texts) + 1):
        scores, ids = exact.search(QUESTIONS, k)
        found = index.search(QUESTIONS, k, SearchOptions(exact=True))
        assert [[hit.id for hit in hits] for hits in found] == ids
        assert [[hit.score for hit in hits] for hits in found] == scores.tolist()


def texts_of(documents: Mapping[str, Document]) -> dict[str, str]:
    return {name: each.text for name, each in documents.items()}
