"""Searches that share a pass over an index: those that arrive while one is under way go together in the next."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from jaxretr.indexes.index import Findings, Index, SearchOptions

# Questions of a pass; a request of more is a pass of its own.
_MOST = 64

Search = Callable[[np.ndarray], Awaitable[Findings]]
"""A function from vectors float32 [B, D] to the findings of B questions."""


@dataclass(frozen=True)
class Kind:
    """The settings that searches must have in common to share a pass.

    Attributes:
      index: the index to search.
      k: hits per question.
      exact, target_recall: see `SearchOptions`.
      model_fingerprint: the fingerprint of the questions' model; None: the index is not told.
      with_documents, with_vectors: whether the hits' documents and vectors are read; see `Index.find`.
    """

    index: Index
    k: int
    exact: bool
    target_recall: float | None
    model_fingerprint: str | None
    with_documents: bool = False
    with_vectors: bool = False


class SharedSearches:
    """Runs searches; called in the event loop alone.

    An exact search reads all vectors, whether for one question or for several, so under load many questions are
    answered in the time of a few. A search that comes alone does not wait.
    """

    def __init__(self) -> None:
        self._waiting: dict[Kind, list[tuple[np.ndarray, asyncio.Future[Findings]]]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, kind: Kind, vectors: np.ndarray, options: SearchOptions, search: Search) -> Findings:
        """Search, together with others of the kind.

        Args:
          kind: the search's kind.
          vectors: float32 [B, D].
          options: filters; a search with any shares nothing.
          search: searches for any number of questions of this kind.

        Returns:
          The findings of the B questions.

        Raises:
          Whatever `search` raises.
        """
        if len(vectors) > _MOST or options.is_filtered:
            return await search(vectors)
        future: asyncio.Future[Findings] = asyncio.get_running_loop().create_future()
        if kind in self._waiting:
            self._waiting[kind].append((vectors, future))
        else:
            self._waiting[kind] = [(vectors, future)]
            task = asyncio.ensure_future(self._pass_after_pass(kind, search))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return await future

    async def _pass_after_pass(self, kind: Kind, search: Search) -> None:
        while waiting := self._waiting[kind]:
            searches, questions = [], 0
            while waiting and (not searches or questions + len(waiting[0][0]) <= _MOST):
                vectors, future = waiting.pop(0)
                if not future.done():  # Otherwise its client has left.
                    searches.append((vectors, future))
                    questions += len(vectors)
            if searches:
                await _answered(searches, search)
        del self._waiting[kind]


async def _answered(searches: list[tuple[np.ndarray, asyncio.Future[Findings]]], search: Search) -> None:
    try:
        findings = await search(np.concatenate([vectors for vectors, _ in searches]))
    except Exception as error:
        for _, future in searches:
            if not future.done():
                future.set_exception(error)
        return
    start = 0
    for vectors, future in searches:
        if not future.done():
            future.set_result(findings.of(start, start + len(vectors)))
        start += len(vectors)
