"""Search with a model over what `jaxretr.encode` wrote or an index: from questions to a run."""

import functools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxretr.data.questions import Question
from jaxretr.data.readers import read_questions
from jaxretr.errors import UsageError, UserError
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.progress import Progress
from jaxretr.search.exact import ExactIndex, search_blocks, unique_ids
from jaxretr.search.exact.shares import merge_hits
from jaxretr.search.filters import Filters
from jaxretr.search.runs import Hits, write_trec
from jaxretr.storage.copies import local_copy
from jaxretr.stores import manifest
from jaxretr.stores.embedding_store import EmbeddingStore, is_store
from jaxretr.stores.encoding import Encoder, Path_, encode_texts, loaded, name_of
from jaxretr.stores.fingerprints import model_fingerprint
from jaxretr.stores.opening import open_store

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from jaxretr.search.scann.folder import Facts
    from jaxretr.search.scann.index import ScannIndex

    Index = EmbeddingStore | ExactIndex | ScannIndex


@dataclass(frozen=True, eq=False, repr=False)
class SearchRun(Mapping[str, dict[str, float]]):
    """What a search found: {question id: {passage id: score}}, best first, as `metrics.evaluate` takes it.

    Attributes:
      hits: of each question, in the order of the questions.
    """

    hits: Sequence[Hits]

    @functools.cached_property
    def _of_question(self) -> dict[str, Hits]:
        return {found.question_id: found for found in self.hits}

    def __getitem__(self, question_id: str) -> dict[str, float]:
        found = self._of_question[question_id]
        return dict(zip(found.ids, found.scores.tolist(), strict=True))

    def __iter__(self) -> Iterator[str]:
        return iter(self._of_question)

    def __len__(self) -> int:
        return len(self._of_question)

    def __repr__(self) -> str:
        return f"SearchRun({len(self)} questions, {sum(len(found.ids) for found in self.hits)} hits)"

    def save(self, path: Path_) -> None:
        """Writes the run as trec_eval reads it, whole or not at all."""
        write_trec(path, self.hits)


def search(
    encoder: Encoder | Path_,
    index: "Index | Path_",
    *,
    queries: Path_ | Sequence[str] | Sequence[Question],
    k: int = 100,
    allow: Iterable[str] | None = None,
    deny: Iterable[str] | None = None,
    batch_size: int | None = None,
) -> SearchRun:
    """Finds the k best passages of each question: exactly, or approximately with a ScaNN index.

    Args:
      encoder: the model that made the index, or what `load_encoder` takes.
      index: a store of passages, an `ExactIndex`, a `ScannIndex`, or the folder of one.
      queries: a file of questions, questions, or their texts, whose ids are then "0", "1", ...
      k: hits a question; fewer are returned where fewer passages may be found.
      allow: ids of the passages that may be found; all by default.
      deny: ids of passages that may not be found.
      batch_size: questions a batch; None: what suits the device.

    Raises:
      UserError: another model made the index, it is damaged, or the questions cannot be read.
      UsageError: allow or deny with a ScaNN index, which has no filters.
    """
    encoder = loaded(encoder)
    index = open_index(index) if isinstance(index, str | Path) else index
    questions = _questions(queries)
    if isinstance(index, EmbeddingStore):
        check_store(index, encoder, name_of(encoder))
        names = unique_ids(index.read_ids(), index.meta.rows, str(index.folder))
        allowed = Filters(len(names), names, None).mask(allow, deny, None)
        scores, ids = search_store(index, names, encode_texts(encoder, questions, batch_size), k, allowed)
    elif isinstance(index, ExactIndex):
        check_dim(repr(index), index.dim, None, encoder, name_of(encoder))
        scores, ids = index.search(encode_texts(encoder, questions, batch_size), k, allow=allow, deny=deny)
    else:
        if allow is not None or deny is not None:
            raise UsageError("a ScannIndex has no filters; search the store of embeddings, which is exact")
        check_scann(repr(index), index.facts, encoder, name_of(encoder))
        scores, ids = index.search(encode_texts(encoder, questions, batch_size), k)
    found = zip((question.id for question in questions), ids, scores, strict=True)
    return SearchRun([Hits(*each) for each in found])


def open_index(folder: Path_) -> "Index":
    """Opens a store that `jaxretr.encode` wrote, whose bytes are all compared with their hashes, or a saved index."""
    if is_store(folder):
        return open_store(folder)
    place = local_copy(os.fspath(folder))
    if is_scann(place):
        from jaxretr.search.scann.index import ScannIndex

        return ScannIndex.load(place)
    return ExactIndex.load(place)


def is_scann(folder: Path_) -> bool:
    """Whether `jaxretr export --to scann` or `ScannIndex.save` wrote the folder."""
    path = Path(folder).expanduser()
    return manifest.is_export(path) and manifest.read(path).kind == "scann"


def _questions(queries: Path_ | Sequence[str] | Sequence[Question]) -> list[Question]:
    if isinstance(queries, str | Path):
        return read_questions(Path(queries))
    return [
        question if isinstance(question, Question) else Question(str(number), question)
        for number, question in enumerate(queries)
    ]


# ---- what an index and a model must have in common -------------------------------------------------------------------


def check_scann(folder: Any, facts: "Facts", encoder: Encoder, model: Any) -> None:
    """Refuses a ScaNN index that another model made, where it says which."""
    check_dim(folder, facts.dim, facts.model, encoder, model)
    if facts.model_fingerprint is None:
        log.info("%s does not say which model made it; make sure that it was %s", folder, model)
    elif facts.model_fingerprint != model_fingerprint(encoder, "passage"):
        raise another_model(folder, facts.model, model)


def check_store(store: EmbeddingStore, encoder: Encoder, model: Any) -> None:
    """Refuses a store that another model made, or that holds no passages."""
    meta = store.meta
    check_dim(store.folder, meta.dim, meta.model, encoder, model)
    if meta.model_fingerprint != model_fingerprint(encoder, meta.side):
        raise another_model(store.folder, meta.model, model)
    if meta.side != "passage":
        raise UserError(f"{store.folder}: holds embeddings of questions; encode the corpus with --side passage")


def check_dim(folder: Any, dim: int, made_by: str | None, encoder: Encoder, model: Any) -> None:
    """Refuses an index of embeddings that are not as long as the model's."""
    if dim == (size := encoder.config.embedding_size):
        return
    fits = isinstance(encoder, DualEncoder) and dim <= encoder.config.full_size
    remedy = (
        f"search with --truncate-dim {dim}" if fits else "search with that one" if made_by else "search with its own"
    )
    whose = f" ({made_by})" if made_by else ""
    raise UserError(
        f"{folder}: holds embeddings of {dim} dimensions{whose}, but {model} gives {size}; "
        f"{remedy}, or encode the corpus again"
    )


def another_model(folder: Any, made_by: str | None, model: Any) -> UserError:
    """What is raised for an index that another model made."""
    whose = f" ({made_by})" if made_by else ""
    return UserError(
        f"{folder}: was encoded with another model{whose} than {model}; "
        "search with that one, or encode the corpus again"
    )


def search_store(
    store: EmbeddingStore, ids: Sequence[str], queries: np.ndarray, k: int, allowed: np.ndarray | None = None
) -> tuple[np.ndarray, list[list[str]]]:
    """Streams the shards through the devices once.

    Of several processes, all of which must call this, each streams its share of the shards through its own devices.

    Args:
      store: N passages.
      ids: those of this process's share, which is all N where it is alone.
      queries: float32 [B, D].
      k: hits a question.
      allowed: bool, as long as `ids`: the passages that may be found; None: all.

    Returns:
      Scores float32 [B, k'], descending, and the ids of the hits; k' is k, or the number of passages that may be found
      if that is less.
    """
    meta, share = store.meta, store.meta.share
    scores, rows = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
    with Progress(len(ids), "passage", "searched") as progress:

        def blocks() -> Iterator[np.ndarray]:
            for block in store.blocks(share):
                yield block
                progress.advance(len(block))

        if ids and (allowed is None or allowed.any()):
            scores, rows = search_blocks(blocks(), queries, k, allowed=allowed, source=str(store.folder))

    def place(row: int) -> int:
        """Of a row of the store among those of the share, whose shards are all full but the store's last."""
        shard, offset = divmod(row, meta.shard_rows)
        return share.index(shard) * meta.shard_rows + offset

    numbers = np.asarray(share)[rows // meta.shard_rows] * meta.shard_rows + rows % meta.shard_rows if ids else rows
    return merge_hits(scores, numbers, lambda row: ids[place(row)], k)
