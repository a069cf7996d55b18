"""The teachers of `jaxretr.mine_lexical`: BM25, a run, a dense or sparse model."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jaxretr.data.arrays import read_chunk, write_array, write_chunk
from jaxretr.data.corpus_stream import CorpusStream
from jaxretr.data.lexical_set import ROWS, SCORES, Ranking
from jaxretr.data.mapped_texts import QueryStore
from jaxretr.data.questions import Question
from jaxretr.data.run_reading import read_run
from jaxretr.data.text_rows import find_input
from jaxretr.indexes.bm25.lexical_ranker import FORMAT_VERSION, rank
from jaxretr.indexes.bm25.words import Bm25Settings
from jaxretr.mining.negatives import warn_without_hits
from jaxretr.runtime.errors import UsageError, UserError, did_you_mean
from jaxretr.runtime.progress import Progress

if TYPE_CHECKING:
    from jaxretr.embeddings.embedding_store import EmbeddingStore
    from jaxretr.models.combined_encoder import CombinedEncoder
    from jaxretr.models.dual_encoder import DualEncoder

# Queries searched between two saved states.
_QUERIES = 16_384
# The same of a sparse model, whose vectors have all dimensions until they are searched for.
_SPARSE_QUERIES = 1_024

# Bytes of embeddings on a device that does not report its memory.
_RESIDENT_BYTES = 4 << 30


@dataclass(frozen=True)
class Task:
    """The task that every teacher gets: passages to rank for queries.

    Attributes:
      corpus: N passages.
      queries: Q texts.
      query_ids: Q ids of given queries; None for sentences.
      depth: K, ranks to find.
      threads: queries ranked in parallel.
      shard_passages: passages whose words are in memory at a time.
    """

    corpus: CorpusStream
    queries: QueryStore
    query_ids: Sequence[str] | None
    depth: int
    threads: int
    shard_passages: int


class Ranker(Protocol):
    """A teacher."""

    @property
    def name(self) -> str:
        """The teacher's name on the command line and in the set."""
        ...

    def identity(self) -> dict[str, Any]:
        """Return the facts that decide its ranking; a set that is continued must agree in them."""
        ...

    def rank(self, task: Task, folder: Path) -> Ranking:
        """Ranks, or continues an interrupted call from its state in `folder`."""
        ...


def parse_teachers(names: Sequence[str], bm25: Bm25Settings | None) -> list[Ranker]:
    """Return the teachers of these names: bm25, run:FILE or model:MODEL.

    Raises:
      UsageError: an unknown or repeated teacher, or settings of BM25 without it.
    """
    teachers: list[Ranker] = []
    for place, name in enumerate(names):
        if name in names[:place]:
            raise UsageError(f"teachers={name}: is given twice; name each teacher once")
        kind, _, value = name.partition(":")
        if name == "bm25":
            teachers.append(Bm25Teacher(bm25 or Bm25Settings()))
        elif kind == "run" and value:
            teachers.append(RunTeacher(name, value))
        elif kind == "model" and value:
            teachers.append(ModelTeacher(name, value))
        else:
            hint = did_you_mean(kind, ("bm25", "run", "model"))
            raise UsageError(f"teachers={name}: no such teacher{hint or ''}; give bm25, run:FILE or model:MODEL")
    if bm25 is not None and "bm25" not in names:
        raise UsageError("settings of BM25 (k1=, b=, ...) have no effect without teachers=bm25; leave them out")
    return teachers


def file_digest(path: str | Path, stem: str = "") -> str:
    """Return the sha256 (hexadecimal) of a file's bytes, or of a named data set's version and checksums."""
    return find_input(path, stem).digest()


@dataclass(frozen=True)
class Bm25Teacher:
    """A teacher that ranks by BM25; equal scores by passage id."""

    settings: Bm25Settings
    name: str = "bm25"

    def identity(self) -> dict[str, Any]:
        return {**asdict(self.settings), "format": FORMAT_VERSION}

    def rank(self, task: Task, folder: Path) -> Ranking:
        return rank(
            task.corpus.passages,
            task.queries,
            folder,
            self.settings,
            depth=task.depth,
            corpus_name=task.corpus.name,
            corpus_fingerprint=task.corpus.fingerprint,
            queries_fingerprint=task.queries.fingerprint(),
            shard_passages=task.shard_passages,
            threads=task.threads,
        )


@dataclass(frozen=True)
class RunTeacher:
    """A teacher that ranks by a run over the given queries; equal scores by passage id, as for BM25."""

    name: str
    path: str

    def identity(self) -> dict[str, Any]:
        return {"sha256": file_digest(self.path)}

    def rank(self, task: Task, folder: Path) -> Ranking:
        if not (folder / SCORES).is_file():
            self._write(task, folder)
        return Ranking.open(self.name, folder, (len(task.queries), task.depth))

    def _write(self, task: Task, folder: Path) -> None:
        assert task.query_ids is not None
        run = read_run(self.path)
        warn_without_hits(self.path, run, task.query_ids, "queries")
        ranked = [_best(run.get(id, {}), task.depth) for id in task.query_ids]
        wanted = {id for ids in ranked for id in ids}
        row_of_id = {p.id: row for row, (_, p) in enumerate(task.corpus.passages()) if p.id in wanted}
        rows = np.full((len(ranked), task.depth), -1, np.int32)
        scores = np.zeros(rows.shape, np.float32)
        for number, ids in enumerate(ranked):
            query_id = task.query_ids[number]
            unknown = next((id for id in ids if id not in row_of_id), None)
            if unknown is not None:
                raise UserError(
                    f"{self.path}: passage '{unknown}', found for query '{query_id}', is not in {task.corpus.name}; "
                    "give the corpus that was searched"
                )
            rows[number, : len(ids)] = [row_of_id[id] for id in ids]
            scores[number, : len(ids)] = [run[query_id][id] for id in ids]
        write_array(folder / ROWS, rows.shape, np.int32, [rows])
        write_array(folder / SCORES, scores.shape, np.float32, [scores])


def _best(hits: Mapping[str, float], depth: int) -> list[str]:
    return sorted(hits, key=lambda id: (-hits[id], id))[:depth]


@dataclass(frozen=True)
class ModelTeacher:
    """A teacher that ranks by a model's exact search, a dense or a sparse one's; equal scores by row."""

    name: str
    model: str

    def identity(self) -> dict[str, Any]:
        from jaxretr.embeddings.fingerprints import search_fingerprint

        return {"fingerprint": search_fingerprint(self._encoder)}

    def rank(self, task: Task, folder: Path) -> Ranking:
        from jaxretr.embeddings.encoding import encode

        found = folder / "ranking"
        if not (found / SCORES).is_file():
            self._search(task, folder, encode(self._encoder, corpus=task.corpus, out=folder / "embeddings"))
        return Ranking.open(self.name, found, (len(task.queries), task.depth))

    @functools.cached_property
    def _encoder(self) -> "DualEncoder | CombinedEncoder":
        # Imported here: it brings JAX, which a ranking by BM25 does without.
        from jaxretr.models.combined_encoder import load_encoder

        return load_encoder(self.model)

    def _search(self, task: Task, folder: Path, passages: "EmbeddingStore") -> None:
        from jaxretr.embeddings.encoding import encode_rows
        from jaxretr.embeddings.vector_files import is_sparse
        from jaxretr.indexes.exact import ExactIndex, search_blocks

        queries_at_a_time = _QUERIES
        if is_sparse(passages.meta.dtype):
            queries_at_a_time = _SPARSE_QUERIES
            from jaxretr.indexes.exact.sparse import of_store

            search = of_store(passages, range(passages.meta.shards)).search_rows
        elif passages.meta.bytes <= _device_bytes():
            search = ExactIndex(np.concatenate(list(passages.blocks()))).search_rows
        else:

            def search(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
                return search_blocks(passages.blocks(), queries, k)

        count, depth, found = len(task.queries), task.depth, min(task.depth, passages.meta.rows)
        blocks = [(start, min(start + queries_at_a_time, count)) for start in range(0, count, queries_at_a_time)]

        def finished(start: int, stop: int) -> list[np.ndarray] | None:
            shape = (stop - start, depth)
            return read_chunk(folder / f"queries-{start:012d}.npys", (np.int32, shape), (np.float32, shape))

        missing = [block for block in blocks if finished(*block) is None]
        with Progress(count, "query", "searched") as progress:
            progress.skip(count - sum(stop - start for start, stop in missing))
            for start, stop in missing:
                questions = [Question(str(number), text) for number, text in enumerate(task.queries[start:stop])]
                vectors, _ = encode_rows(self._encoder, questions)
                rows = np.full((stop - start, depth), -1, np.int32)
                scores = np.zeros(rows.shape, np.float32)
                scores[:, :found], rows[:, :found] = search(vectors, found)
                write_chunk(folder / f"queries-{start:012d}.npys", rows, scores)
                progress.advance(stop - start)
        for number, (name, dtype) in enumerate(((ROWS, np.int32), (SCORES, np.float32))):
            parts = (part[number] for block in blocks if (part := finished(*block)))
            write_array(folder / "ranking" / name, (count, depth), dtype, parts)


def _device_bytes() -> int:
    import jax

    stats = jax.local_devices()[0].memory_stats() or {}
    return stats["bytes_limit"] // 2 if "bytes_limit" in stats else _RESIDENT_BYTES
