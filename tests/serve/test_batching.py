"""What waits goes in batches: how many, in which order, and what is refused or dropped."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from jaxretr.serve.batching import Batcher, Lane
from jaxretr.serve.problems import Overloaded, Unavailable


class Held:
    """A computation that waits until it is let go, and notes what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, texts: list[Any]) -> list[Any]:
        self.batches.append(texts)
        self.begun.release()
        assert self.go.acquire(timeout=20)
        if "bad" in texts:
            raise ValueError("no such text")
        return [f"{text}!" for text in texts]


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def batcher(held: Held) -> Iterator[Batcher]:
    made = Batcher([Lane("text", held, budget=10)], max_requests=100, max_tokens=40)
    yield made
    held.go.release(1000)
    made.close()


async def began(held: Held) -> None:
    assert await asyncio.to_thread(held.begun.acquire, timeout=20)


def test_what_waits_longest_shares_a_batch_with_texts_of_its_length(batcher: Batcher, held: Held) -> None:
    async def main() -> None:
        first = asyncio.ensure_future(batcher.run("text", ["a"], [3]))
        await began(held)  # Alone, since nothing else waited.
        rest = [
            asyncio.ensure_future(batcher.run("text", *each))
            for each in ((["b", "c"], [3, 2]), (["d"], [3]), (["e"], [5]), (["f"], [20]), (["g"], [1]))
        ]
        await asyncio.sleep(0)
        held.go.release(10)
        assert await first == ["a!"]
        assert await asyncio.gather(*rest) == [["b!", "c!"], ["d!"], ["e!"], ["f!"], ["g!"]]

    asyncio.run(main())
    # 3 x 3 tokens fit 10, a fourth text does not, and c is nearer to b than g is; f is alone as it is too long, and waits no
    # longer for that.
    assert held.batches == [["a"], ["b", "d", "c"], ["e", "g"], ["f"]]


def test_a_batch_counts_the_tokens_that_it_is_padded_to(held: Held) -> None:
    lane = Lane("text", held, budget=16, padded=lambda length: 8 * -(-length // 8))
    batcher = Batcher([lane], max_requests=100, max_tokens=100)

    async def main() -> None:
        first = asyncio.ensure_future(batcher.run("text", ["a"], [1]))
        await began(held)
        second = asyncio.ensure_future(batcher.run("text", list("bcd"), [5, 5, 5]))
        await asyncio.sleep(0)
        held.go.release(10)
        await asyncio.gather(first, second)

    asyncio.run(main())
    batcher.close()
    assert held.batches == [["a"], ["b", "c"], ["d"]]


def test_without_padding_the_sum_of_tokens_counts(held: Held) -> None:
    batcher = Batcher([Lane("text", held, budget=10, pads=False)], max_requests=100, max_tokens=100)

    async def main() -> None:
        first = asyncio.ensure_future(batcher.run("text", ["a"], [1]))
        await began(held)
        second = asyncio.ensure_future(batcher.run("text", list("bcdef"), [6, 1, 1, 2, 1]))
        await asyncio.sleep(0)
        held.go.release(10)
        await asyncio.gather(first, second)

    asyncio.run(main())
    batcher.close()
    assert held.batches == [["a"], ["b", "c", "d", "e"], ["f"]]


def test_lanes_take_turns(held: Held) -> None:
    lanes = [Lane("question", held, budget=2), Lane("passage", held, budget=2)]
    batcher = Batcher(lanes, max_requests=100, max_tokens=100)

    async def main() -> None:
        first = asyncio.ensure_future(batcher.run("passage", ["p0"], [2]))
        await began(held)
        rest = [asyncio.ensure_future(batcher.run("passage", ["p1", "p2", "p3"], [2, 2, 2]))]
        rest.append(asyncio.ensure_future(batcher.run("question", ["q1", "q2"], [2, 2])))
        await asyncio.sleep(0)
        held.go.release(10)
        await asyncio.gather(first, *rest)

    asyncio.run(main())
    batcher.close()
    # A search does not wait until a large upload is encoded.
    assert held.batches == [["p0"], ["q1"], ["p1"], ["q2"], ["p2"], ["p3"]]


def test_the_texts_of_a_client_that_left_are_not_computed(batcher: Batcher, held: Held) -> None:
    async def main() -> None:
        first = asyncio.ensure_future(batcher.run("text", ["a"], [1]))
        await began(held)
        leaving = asyncio.ensure_future(batcher.run("text", ["gone 1", "gone 2"], [10, 10]))
        staying = asyncio.ensure_future(batcher.run("text", ["b"], [1]))
        await asyncio.sleep(0)
        assert batcher.tokens == 21
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert batcher.tokens == 1
        held.go.release(10)
        assert [await first, await staying] == [["a!"], ["b!"]]

    asyncio.run(main())
    assert held.batches == [["a"], ["b"]]


def test_a_full_queue_says_when_to_try_again(batcher: Batcher, held: Held) -> None:
    async def main() -> None:
        first = asyncio.ensure_future(batcher.run("text", ["a"], [10]))
        await began(held)
        second = asyncio.ensure_future(batcher.run("text", ["b", "c", "d"], [10, 10, 10]))
        await asyncio.sleep(0)
        batcher.tokens_a_second = 10.0
        with pytest.raises(Overloaded) as problem:
            await batcher.run("text", ["e"], [11])
        assert problem.value.headers == {"Retry-After": "3"}  # 30 tokens wait
        assert (await asyncio.wait_for(_fits(batcher, held), 20)) == ["f!"]
        held.go.release(10)
        await asyncio.gather(first, second)

    async def _fits(batcher: Batcher, held: Held) -> list[Any]:
        last = asyncio.ensure_future(batcher.run("text", ["f"], [10]))
        await asyncio.sleep(0)
        assert batcher.full
        held.go.release(10)
        return await last

    asyncio.run(main())


def test_a_request_larger_than_the_queue_is_computed_when_nothing_waits(batcher: Batcher, held: Held) -> None:
    async def main() -> list[Any]:
        held.go.release(10)
        return await batcher.run("text", list("abcdef"), [10] * 6)

    assert asyncio.run(main()) == ["a!", "b!", "c!", "d!", "e!", "f!"]


def test_too_many_requests_are_refused_before_they_are_tokenised(held: Held) -> None:
    batcher = Batcher([Lane("text", held, budget=10)], max_requests=2, max_tokens=40)
    with batcher.accepted(), batcher.accepted():
        with pytest.raises(Overloaded), batcher.accepted():
            pass
        assert batcher.full
    assert not batcher.full
    batcher.close()


def test_an_error_is_of_its_batch_alone(batcher: Batcher, held: Held) -> None:
    async def main() -> None:
        held.go.release(10)
        with pytest.raises(ValueError, match="no such text"):
            await batcher.run("text", ["bad"], [10])
        assert await batcher.run("text", ["good"], [10]) == ["good!"]

    asyncio.run(main())


def test_what_waits_when_it_closes_is_told_so(batcher: Batcher, held: Held) -> None:
    async def main() -> None:
        first = asyncio.ensure_future(batcher.run("text", ["a"], [10]))
        await began(held)
        second = asyncio.ensure_future(batcher.run("text", ["b"], [10]))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(asyncio.to_thread(batcher.close))
        await asyncio.sleep(0.05)
        held.go.release(10)
        assert await first == ["a!"]
        with pytest.raises(Unavailable):
            await second
        await closing
        with pytest.raises(Unavailable):
            await batcher.run("text", ["c"], [1])

    asyncio.run(main())
