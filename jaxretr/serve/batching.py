"""Batches of the texts that are waiting: text-embeddings-inference's scheme, without a timer.

A worker thread takes the text that has waited longest and those of about the same length, as many as fit the budget of
tokens, computes them, and looks again. Under light load a request is computed at once and alone; under heavy load batches
fill up by themselves, with little padding.
"""

import asyncio
import bisect
import contextlib
import heapq
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from jaxretr.serve.problems import Overloaded, Unavailable

# Weight of the last batch in the moving average of the measured speed.
_NEWEST = 0.1

# The oldest requests, among whose texts those of about one length are looked for.
_WINDOW = 64


Results = Sequence[Any] | np.ndarray


class Observer(Protocol):
    """The interface that is told what the worker does; called in the worker's thread."""

    def waited(self, lane: str, seconds: float) -> None:
        """Note that a request's first text was taken from the queue."""
        ...

    def computed(self, lane: str, texts: int, tokens: int, seconds: float) -> None:
        """Note that a batch is done."""
        ...


@dataclass(frozen=True)
class Lane:
    """Texts of one kind, which share batches.

    Attributes:
      name: the lane's name in metrics.
      compute: results of the texts of a batch, in their order.
      budget: tokens of a batch.
      pads: whether a batch costs its longest text times the number of texts; otherwise the sum of all lengths.
      padded: maps the tokens of a batch's longest text to the length at which the batch is computed.
    """

    name: str
    compute: Callable[[list[Any]], Results]
    budget: int
    pads: bool = True
    padded: Callable[[int], int] = lambda length: length


class _Ticket:
    """A request's texts in a queue.

    Attributes:
      waiting: places of the texts that were not taken yet, the longest last.
    """

    def __init__(self, texts: Sequence[Any], lengths: Sequence[int], done: Callable[["_Ticket"], None]):
        self.texts, self.lengths, self.done = texts, lengths, done
        self.results: list[Any] = [None] * len(texts)
        self.waiting = sorted(range(len(texts)), key=lambda place: (lengths[place], -place))
        self.unanswered = len(texts)
        self.error: BaseException | None = None
        self.arrived = time.monotonic()

    @property
    def tokens(self) -> int:
        """Tokens that were not taken yet."""
        return sum(self.lengths[place] for place in self.waiting)

    @property
    def longest(self) -> int:
        """Tokens of the longest text that was not taken yet."""
        return self.lengths[self.waiting[-1]]

    def no_longer(self, length: int, most: int) -> list[int]:
        """Places of the longest texts of at most `length` tokens, at most `most` of them."""
        end = bisect.bisect_right(self.waiting, length, key=self.lengths.__getitem__)
        return self.waiting[max(0, end - most) : end]


class Batcher:
    """Computes texts of several lanes in one thread, a batch of each lane in turn.

    Args:
      lanes: the kinds of texts to compute.
      max_requests: the most requests accepted at a time.
      max_tokens: the most tokens that wait, in all lanes together; a larger request is accepted when nothing waits.
      observer: is told what happens.
    """

    def __init__(self, lanes: Sequence[Lane], *, max_requests: int, max_tokens: int, observer: Observer | None = None):
        self._lanes = {lane.name: lane for lane in lanes}
        self._queues: dict[str, deque[_Ticket]] = {lane.name: deque() for lane in lanes}
        self._turns = deque(self._lanes)
        self._max_requests, self._max_tokens, self._observer = max_requests, max_tokens, observer
        self._changed = threading.Condition()
        self._closing = False
        self.requests = 0
        """Requests that are accepted and not answered yet."""
        self.tokens = 0
        """Tokens that wait to be computed, in all lanes together."""
        self.tokens_a_second = 0.0
        """The measured speed while computing; 0 before the first batch."""
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    def add(self, lane: Lane) -> None:
        """Add a lane, whose texts then take their turns."""
        with self._changed:
            self._lanes[lane.name], self._queues[lane.name] = lane, deque()
            self._turns.append(lane.name)

    @property
    def full(self) -> bool:
        """Whether a request would be refused now."""
        return self.requests >= self._max_requests or self.tokens >= self._max_tokens

    @contextlib.contextmanager
    def accepted(self) -> Iterator[None]:
        """Count a request from before its texts are tokenised until it is answered; called in the event loop.

        Raises:
          Overloaded: there are too many, or too many tokens wait.
        """
        if self.full:
            raise self._overloaded()
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    async def run(self, lane: str, texts: Sequence[Any], lengths: Sequence[int]) -> list[Any]:
        """Compute texts; those that are not begun are dropped when the task that awaits them is cancelled.

        Args:
          lane: the lane's name.
          texts: the texts, in the form that the lane's `compute` takes.
          lengths: tokens of each text.

        Returns:
          The results, in the order of the texts.

        Raises:
          Overloaded: too many tokens wait.
          Unavailable: the batcher was closed.
        """
        if not texts:
            return []
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def finish() -> None:
            if not future.done():
                future.set_result(None)

        def done(ticket: _Ticket) -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits.
                loop.call_soon_threadsafe(finish)

        ticket = _Ticket(texts, lengths, done)
        self._put(lane, ticket)
        try:
            await future
        except asyncio.CancelledError:
            self._drop(lane, ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.results

    def close(self) -> None:
        """End the thread after the batch that it computes; waiting texts are refused."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    # ---- the queues --------------------------------------------------------------------------------------------------

    def _put(self, lane: str, ticket: _Ticket) -> None:
        tokens = sum(ticket.lengths)
        with self._changed:
            if self._closing:
                raise Unavailable("the service is stopping; ask another one")
            if self.tokens and self.tokens + tokens > self._max_tokens:
                raise self._overloaded()
            self.tokens += tokens
            self._queues[lane].append(ticket)
            self._changed.notify()

    def _drop(self, lane: str, ticket: _Ticket) -> None:
        with self._changed:
            if ticket in self._queues[lane]:
                self._queues[lane].remove(ticket)
                self.tokens -= ticket.tokens

    def _overloaded(self) -> Overloaded:
        seconds = math.ceil(self.tokens / self.tokens_a_second) if self.tokens_a_second else 1
        return Overloaded("the queue is full", max(1, seconds))

    def _take(self) -> tuple[Lane, list[tuple[_Ticket, int]], int] | None:
        """The texts of the next batch as (ticket, place), and the sum of their tokens; None at the end."""
        with self._changed:
            while not self._closing and not any(self._queues.values()):
                self._changed.wait()
            if self._closing:
                return None
            while not self._queues[self._turns[0]]:
                self._turns.rotate(-1)
            lane, queue = self._lanes[self._turns[0]], self._queues[self._turns[0]]
            self._turns.rotate(-1)
            entries = _similar(lane, queue) if lane.pads else _first(lane, queue)
            for ticket, place in entries:
                if len(ticket.waiting) == len(ticket.texts) and self._observer is not None:
                    self._observer.waited(lane.name, time.monotonic() - ticket.arrived)
                ticket.waiting.remove(place)
                if not ticket.waiting:
                    queue.remove(ticket)
            total = sum(ticket.lengths[place] for ticket, place in entries)
            self.tokens -= total
            return lane, entries, total

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (batch := self._take()) is not None:
            lane, entries, tokens = batch
            began = time.monotonic()
            error: BaseException | None = None
            results: Results = ()
            try:
                results = lane.compute([ticket.texts[place] for ticket, place in entries])
            except Exception as problem:  # It concerns this batch alone: the thread continues.
                error = problem
            seconds = time.monotonic() - began
            speed = tokens / max(seconds, 1e-9)
            self.tokens_a_second += (_NEWEST if self.tokens_a_second else 1.0) * (speed - self.tokens_a_second)
            if self._observer is not None:  # Before the answers: whoever has one finds its batch counted.
                self._observer.computed(lane.name, len(entries), tokens, seconds)
            for number, (ticket, place) in enumerate(entries):
                if error is None:
                    ticket.results[place] = results[number]
                else:
                    ticket.error = error
                ticket.unanswered -= 1
                if not ticket.unanswered:
                    ticket.done(ticket)
        with self._changed:
            for queue in self._queues.values():
                for ticket in queue:
                    ticket.error = Unavailable("the service is stopping; ask another one")
                    ticket.done(ticket)
                queue.clear()


def _similar(lane: Lane, queue: Sequence[_Ticket]) -> list[tuple[_Ticket, int]]:
    """The longest text of the oldest request, and the texts next to it in length, as (ticket, place)."""
    longest = queue[0].longest
    room = max(1, lane.budget // lane.padded(longest))
    candidates = [
        (-ticket.lengths[place], number, place)
        for number, ticket in enumerate(itertools.islice(queue, _WINDOW))
        for place in ticket.no_longer(longest, room)
    ]
    return [(queue[number], place) for _, number, place in heapq.nsmallest(room, candidates)]


def _first(lane: Lane, queue: Sequence[_Ticket]) -> list[tuple[_Ticket, int]]:
    """The texts of the oldest requests, as (ticket, place)."""
    entries: list[tuple[_Ticket, int]] = []
    total = 0
    for ticket in queue:
        for place in sorted(ticket.waiting):
            total += ticket.lengths[place]
            if entries and total > lane.budget:
                return entries
            entries.append((ticket, place))
    return entries
