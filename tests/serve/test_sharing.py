"""Searches that arrive while another is under way share the next pass, and each gets its own answer."""

import asyncio
from typing import Any

import numpy as np
import pytest
from memory_index import MemoryIndex

from jaxretr.indexes.index import Findings, Hit, SearchOptions, Standing
from jaxretr.runtime.errors import UserError
from jaxretr.serve.sharing import Kind, SharedSearches

INDEX = MemoryIndex("notes", 2)


def kind(k: int = 1) -> Kind:
    return Kind(INDEX, k, False, None, None)


class Passes:
    """A search that waits to be let go, and notes the questions of each pass; a hit is named after its question."""

    def __init__(self) -> None:
        self.passes: list[list[float]] = []
        self.go = asyncio.Semaphore(0)

    async def __call__(self, vectors: np.ndarray) -> Findings:
        self.passes.append(vectors[:, 0].tolist())
        await self.go.acquire()
        if np.isnan(vectors).any():
            raise UserError("no such question")
        return Findings(Standing(None, None), True, [[Hit(f"{vector[0]:g}", 1.0)] for vector in vectors])


def vector(*numbers: float) -> np.ndarray:
    return np.array([[number, 0.0] for number in numbers], np.float32)


def test_those_that_wait_share_a_pass_and_get_their_own_hits() -> None:
    async def main() -> None:
        shared, search = SharedSearches(), Passes()

        def ask(numbers: list[float], k: int = 1, **options: Any) -> asyncio.Task[Findings]:
            return asyncio.create_task(shared.run(kind(k), vector(*numbers), SearchOptions(**options), search))

        first = ask([0])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert search.passes == [[0]], "the first waits for nobody"
        rest = [ask([1]), ask([2, 3]), ask([4]), ask([5] * 60), ask([6] * 3)]
        others = [ask([7], k=2), ask([8], deny=["x"]), ask([9] * 65)]
        leaving = ask([10])
        await asyncio.sleep(0)
        leaving.cancel()
        for _ in range(20):
            search.go.release()
        for task, numbers in zip(rest, ([1], [2, 3], [4], [5] * 60, [6] * 3), strict=True):
            assert [hits[0].id for hits in (await task).hits] == [f"{number}" for number in numbers]
        assert [hits[0].id for hits in (await first).hits] == ["0"]
        for task, number in zip(others, (7, 8, 9), strict=True):
            assert {hits[0].id for hits in (await task).hits} == {f"{number}"}
        # 64 questions are in a pass; another k, filters and many questions go alone; who left is not searched for.
        assert search.passes[0] == [0]
        shared_passes = [[1, 2, 3, 4] + [5] * 60, [6] * 3]
        assert sorted(search.passes[1:]) == sorted([[7], [8], [9] * 65, *shared_passes])
        assert not shared._waiting and not shared._running

    asyncio.run(main())


def test_an_error_is_told_to_all_of_its_pass_and_to_no_other() -> None:
    async def main() -> None:
        shared, search = SharedSearches(), Passes()
        tasks = []
        for number in (0, float("nan"), 2):
            tasks.append(asyncio.create_task(shared.run(kind(), vector(number), SearchOptions(), search)))
            await asyncio.sleep(0.01)
        search.go.release()
        search.go.release()
        assert (await tasks[0]).hits[0][0].id == "0"
        for task in tasks[1:]:
            with pytest.raises(UserError, match="no such question"):
                await task
        later = asyncio.create_task(shared.run(kind(), vector(3), SearchOptions(), search))
        search.go.release()
        assert (await later).hits[0][0].id == "3"

    asyncio.run(main())
