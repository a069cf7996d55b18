"""The indexes of a service, by name: they come and go while others are searched."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jaxretr.indexes.index import Index
from jaxretr.indexes.opening import check_name
from jaxretr.runtime.errors import UserError, did_you_mean
from jaxretr.serve.problems import Conflict, Forbidden, Invalid, NotFound
from jaxretr.serve.threads import called


class Indexes:
    """The indexes that requests can search.

    Args:
      opened: the indexes that the service starts with.
      data: the folder of indexes that requests create; None: they cannot create any.
      make: creates an empty index, given its folder and name.
      threads: the pools in which indexes are created and removed.
    """

    def __init__(
        self,
        opened: Mapping[str, Index],
        data: Path | None,
        make: Callable[[Path, str], Index] | None,
        threads: ThreadPoolExecutor,
    ):
        self._indexes, self._data, self._make, self._threads = dict(opened), data, make, threads
        self._users: dict[str, int] = {}
        self._changing: set[str] = set()
        self._release = asyncio.Condition()

    def __len__(self) -> int:
        return len(self._indexes)

    @property
    def names(self) -> list[str]:
        """All names, the oldest index first."""
        return list(self._indexes)

    def get(self, name: str) -> Index:
        """The index with the given name.

        Raises:
          NotFound: there is none.
        """
        if name not in self._indexes or name in self._changing:
            hint = did_you_mean(name, self._indexes) or (
                f"; there are {', '.join(self._indexes)}" if self._indexes else "; there are none"
            )
            raise NotFound(f"no index {name[:80]!r}{hint}", "index")
        return self._indexes[name]

    @contextlib.asynccontextmanager
    async def used(self, name: str) -> AsyncIterator[Index]:
        """Yield the index with the given name, which is not closed within the block.

        Raises:
          NotFound: there is none.
        """
        index = self.get(name)
        self._users[name] = self._users.get(name, 0) + 1
        try:
            yield index
        finally:
            self._users[name] -= 1
            async with self._release:
                self._release.notify_all()

    async def create(self, name: str) -> Index:
        """Create an empty index in the data folder.

        Raises:
          Invalid: an index cannot have the name.
          Conflict: there is an index of that name.
          Forbidden: there is no data folder.
          DiskFull: nothing was made.
        """
        try:
            check_name(name)
        except UserError as error:
            raise Invalid(str(error), "name") from None
        if self._data is None or self._make is None:
            raise Forbidden("no folder for new indexes; start the service with --data DIR")
        folder = self._data / name
        if name in self._indexes or name in self._changing or folder.exists():
            raise Conflict(f"there is an index {name!r}; choose another name, or delete that one", "name")
        self._changing.add(name)
        try:
            await called(self._threads, self._made, folder, name)
        finally:
            self._changing.discard(name)
        return self._indexes[name]

    def _made(self, folder: Path, name: str) -> None:
        assert self._make is not None
        try:
            self._indexes[name] = self._make(folder, name)
        except BaseException:  # What is left of it would keep the name, and no request could remove it.
            shutil.rmtree(folder, ignore_errors=True)
            raise

    async def drop(self, name: str, before: Callable[[Index], None]) -> None:
        """Close an index that a request created, once no request uses it, and remove its folder.

        Args:
          name: its name.
          before: called in a thread before it is closed.

        Raises:
          NotFound: there is none.
          Forbidden: it was given when the service was started.
        """
        self.get(name)
        folder = None if self._data is None else self._data / name
        if folder is None or not folder.is_dir():
            raise Forbidden(f"the index {name!r} was given with --index; restart the service without it")
        self._changing.add(name)
        try:
            async with self._release:
                await self._release.wait_for(lambda: not self._users.get(name))
            index = self._indexes.pop(name)

            def remove() -> None:
                before(index)
                index.close()
                shutil.rmtree(folder)

            await asyncio.get_running_loop().run_in_executor(self._threads, remove)
        finally:
            self._changing.discard(name)

    def facts(self) -> list[dict[str, Any]]:
        """The facts of every index, with its name; for one whose database does not answer, the problem. Blocks."""
        return [{"name": name, **_facts(index)} for name, index in list(self._indexes.items())]

    def sizes(self) -> dict[str, int]:
        """The number of passages of each index that answers; blocks."""
        sizes = {}
        for name, index in list(self._indexes.items()):
            if name not in self._changing:
                with contextlib.suppress(UserError):
                    sizes[name] = len(index)
        return sizes

    def close(self) -> None:
        """Close all at once, since each may wait for what it has begun; blocks."""
        with ThreadPoolExecutor(max(1, len(self))) as closing:
            list(closing.map(lambda index: index.close(), self._indexes.values()))


def _facts(index: Index) -> dict[str, Any]:
    try:
        return index.facts()
    except UserError as error:
        return {"engine": "unavailable", "passages": 0, "dim": index.dim, "writable": False, "problem": str(error)}
