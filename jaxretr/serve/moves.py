"""Moves live indexes to another model, and back, while they are searched and written."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jaxretr.indexes.index import Document, Index
from jaxretr.indexes.live import reindex
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.models.combined_encoder import load_encoder
from jaxretr.runtime.errors import UserError
from jaxretr.serve.embedding import Embedding, Model
from jaxretr.serve.problems import Conflict, Invalid
from jaxretr.serve.threads import called

log = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds that `stop` waits.
_STOPPING_SECONDS = 5.0


class Moves:
    """Moves indexes, each at most once at a time.

    Args:
      embedding: the service's encoders, which encode the documents between requests.
    """

    def __init__(self, embedding: Embedding):
        self._embedding = embedding
        self._moves: dict[str, tuple[reindex.Reindexing, threading.Thread]] = {}
        self._errors: dict[str, str] = {}
        self._preparing: set[str] = set()

    async def begin(self, index: Index, to: str) -> dict[str, Any]:
        """Begin to move an index to a model; return its progress.

        Raises:
          Conflict: it is being moved.
          Invalid: it is no live index, there is no such model, or it cannot be moved there.
        """
        live, loop = _live(index), asyncio.get_running_loop()

        def prepare() -> reindex.Reindexing:
            model = self._loaded(to)
            old = self._embedding.models.get(live.view.space.fingerprint)
            encode = None if old is None else self._encode(old, loop)
            target = reindex.Model(model.name, model.fingerprint, model.encoder.dim, self._encode(model, loop))
            return reindex.Reindexing(live, target, old=encode)

        moving = await self._prepared(live.name, prepare, "to")
        self._errors.pop(live.name, None)
        thread = threading.Thread(target=self._run, args=(live.name, moving), name=f"reindex {live.name}", daemon=True)
        self._moves[live.name] = moving, thread
        thread.start()
        return await loop.run_in_executor(None, self.state, live)

    def state(self, index: Index) -> dict[str, Any]:
        """The progress of an index's last move; blocks.

        Raises:
          Invalid: it is no live index.
        """
        live = _live(index)
        facts: dict[str, Any] = {"index": live.name, "model": live.view.space.model, "phase": "none"}
        if live.name in self._moves:
            facts |= self._moves[live.name][0].state()
        if live.name in self._errors:
            facts |= {"phase": "failed", "error": self._errors[live.name]}
        return facts

    async def rollback(self, index: Index) -> dict[str, Any]:
        """Return an index to its previous model.

        Raises:
          Conflict: it is being moved.
          Invalid: it is no live index, or has no previous model.
        """
        live, loop = _live(index), asyncio.get_running_loop()

        def roll() -> None:
            space = reindex.left_space(live)
            model = self._embedding.models.get(space.fingerprint) or self._loaded(space.model)
            if model.fingerprint != space.fingerprint:
                raise UserError(
                    f"{space.model}: is no longer the model that the index had before; restore that model there"
                )
            reindex.rollback(live, self._encode(model, loop))

        await self._prepared(live.name, roll)
        self._moves.pop(live.name, None)
        return await loop.run_in_executor(None, self.state, live)

    def end(self, index: Index) -> None:
        """End the move of an index that is to be removed, after the batch that it is encoding, and forget it. Blocks."""
        if index.name in self._moves:
            moving, thread = self._moves[index.name]
            moving.stop()
            thread.join()
            del self._moves[index.name]
        self._errors.pop(index.name, None)

    def stop(self) -> None:
        """End moves after the batch that they are encoding; a later move to the same model resumes. Blocks.

        One that takes longer, since it makes a snapshot, is left behind; it ends with the process.
        """
        for moving, _ in self._moves.values():
            moving.stop()
        end = time.monotonic() + _STOPPING_SECONDS
        for _, thread in self._moves.values():
            thread.join(max(0.0, end - time.monotonic()))

    async def _prepared(self, name: str, work: Callable[[], T], param: str | None = None) -> T:
        """Run work in a thread, for an index that is not being moved; `param` is the field that its errors are about."""
        if name in self._preparing or (name in self._moves and self._moves[name][1].is_alive()):
            raise Conflict(f"the index {name!r} is being moved; wait until it is done")
        self._preparing.add(name)
        try:
            return await called(None, work, param=param)
        finally:
            self._preparing.discard(name)

    def _run(self, name: str, moving: reindex.Reindexing) -> None:
        try:
            count = moving.run()
            log.info("index %s: moved, %d documents encoded", name, count)
        except reindex.Stopped as error:
            log.info("%s", error)
        except Exception as error:
            self._errors[name] = f"{type(error).__name__}: {error}" if not isinstance(error, UserError) else str(error)
            log.error("index %s: %s", name, self._errors[name])

    def _loaded(self, to: str) -> Model:
        """A model, loaded and compiled; one that is loaded already is reused."""
        known = next((each for each in self._embedding.models.values() if each.name == to), None)
        if known is not None:
            return known
        model = self._embedding.add(load_encoder(to), str(Path(to)))
        model.encoder.compile()
        return model

    def _encode(self, model: Model, loop: asyncio.AbstractEventLoop) -> Callable[[Sequence[Document]], np.ndarray]:
        def encode(documents: Sequence[Document]) -> np.ndarray:
            passages = [{"title": each.title, "text": each.text} for each in documents]
            return asyncio.run_coroutine_threadsafe(self._embedding.backfill(model, passages), loop).result()

        return encode


def _live(index: Index) -> LiveIndex:
    if not isinstance(index, LiveIndex):
        raise Invalid("only a live index can move to another model; this one is not live")
    return index
