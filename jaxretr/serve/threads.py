"""The service's threads for blocking calls; the threads that compute are elsewhere."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from jaxretr.indexes.index import StorageFull
from jaxretr.indexes.live.writes import ModelChanged
from jaxretr.runtime.errors import UnavailableError, UserError
from jaxretr.serve.problems import DiskFull, Invalid, Unavailable

# Writers wait for the disk, where a group of writes shares a commit.
_SEARCHING, _WRITING, _TOKENISING, _ASKING = 4, 16, 2, 2

T = TypeVar("T")


class Threads:
    """Four pools, so that no kind of work waits for another."""

    def __init__(self) -> None:
        self.tokenising = ThreadPoolExecutor(_TOKENISING, "tokenise")
        self.searching = ThreadPoolExecutor(_SEARCHING, "search")
        self.writing = ThreadPoolExecutor(_WRITING, "write")
        self.asking = ThreadPoolExecutor(_ASKING, "ask")

    async def search(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that reads an index."""
        return await called(self.searching, function, *arguments)

    async def ask(self, function: Callable[[], T]) -> T:
        """Call a function that asks indexes for facts, one of which may be in a database that does not answer."""
        return await called(self.asking, function)

    async def write(self, function: Callable[[], T]) -> T:
        """Call a function that writes, and let it finish even if its client leaves: nothing is half done."""
        return await asyncio.shield(asyncio.ensure_future(called(self.writing, function)))

    def close(self) -> None:
        """Wait for running calls; queued ones are cancelled."""
        for pool in (self.tokenising, self.searching, self.writing, self.asking):
            pool.shutdown(cancel_futures=True)


async def called(
    pool: ThreadPoolExecutor | None, function: Callable[..., T], *arguments: Any, param: str | None = None
) -> T:
    """Call a function in a thread; an error about the request or an unreachable database becomes a `Problem`.

    Args:
      pool: the threads; None: the event loop's own.
      function: what is called, with the arguments.
      param: the field of the request that its errors are about.
    """
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)
    except ModelChanged:
        raise
    except StorageFull as error:
        raise DiskFull(str(error)) from None
    except UnavailableError as error:
        raise Unavailable(str(error)) from None
    except UserError as error:
        raise Invalid(str(error), param) from None
