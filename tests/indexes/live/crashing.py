"""Writes a live folder and kills itself at a place of `fault_points`: python crashing.py ROOT [scann] POINT ...

For each point a process of its own works in ROOT/POINT and notes each write that was acknowledged in ROOT/POINT.acknowledged.
"""

import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import live_folders
import numpy as np
from live_folders import DIM, document, encode, model, put

from jaxretr.indexes.index import Document, SearchOptions
from jaxretr.indexes.live import fault_points
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.indexes.live.reindex import Model, Reindexing, forget, rollback
from jaxretr.runtime.errors import UserError

# The arrival at a point at which the process is killed: there is something before to be lost.
ARRIVAL = {"commit": 3, "snapshot": 2, "compaction": 2, "switch": 1}

# What is written, one after the other: documents to put, or ids to delete.
WRITES: list[list[Document] | list[str]] = [
    [document(f"d{n}") for n in range(40)],
    [document(f"d{n}", 1) for n in range(30, 60)],
    [f"d{n}" for n in range(0, 15)],
    [document(f"d{n}", 2) for n in range(10, 25)],
    ["d20", "d55", "d39"],
    [document(f"d{n}", 3) for n in range(35, 70)],  # while it is reindexed
    ["d36", "d58"],  # while it is reindexed
    [document("d1", 4), document("d2", 4)],  # after the switch
    [document("d3", 5), document("d40", 5)],  # after the rollback
]


def expected_after(count: int) -> dict[str, str]:
    """id -> text after so many writes, in the order of rows."""
    texts: dict[str, str] = {}
    for write in WRITES[:count]:
        for each in write:
            texts.pop(each if isinstance(each, str) else each.id, None)
            if isinstance(each, Document):
                texts[each.id] = each.text
    return texts


def work(folder: Path, scann: bool) -> None:
    """All writes, two snapshots, a move to another model, and back."""
    acknowledged = open(f"{folder}.acknowledged", "w")  # noqa: SIM115
    number = iter(range(len(WRITES)))

    def write() -> None:
        each = next(number)
        content = WRITES[each]
        if isinstance(content[0], str):
            index.delete(content)  # pyright: ignore[reportArgumentType]
        else:
            put(index, content)  # pyright: ignore[reportArgumentType]
        acknowledged.write(f"{each}\n")
        acknowledged.flush()

    index = live_folders.open_live(folder, scann_from=1000 if scann else 10**9)
    write()
    write()
    if scann:
        many = [document(f"m{n}") for n in range(1100)]
        index.upsert(many, np.random.default_rng(0).standard_normal((1100, DIM)).astype(np.float32))
    index.upkeep.compact()
    write()
    write()
    index.upkeep.compact()
    write()
    if scann:
        index.upkeep.certify()
        os._exit(1)  # It should have been killed.

    def encode_and_write(documents: Sequence[Document]) -> np.ndarray:
        if len(documents) == moved:  # The batch of the reindexing, and not that of the writes below.
            write()
            write()
        return encode("large", documents)

    moved = len(index)
    large = model("large")
    move = Reindexing(
        index, Model(large.name, large.fingerprint, large.dim, encode_and_write), old=lambda d: encode("small", d)
    )
    move.run()
    write()
    rollback(index)
    write()
    forget(index)
    index.search(live_folders.QUESTIONS, 3, SearchOptions())
    index.close()


def main() -> None:
    root, *points = sys.argv[1:]
    scann = points[0] == "scann"
    logging.disable()
    for point in points[scann:]:
        child = os.fork()
        if not child:
            arrivals = {"left": ARRIVAL.get(point.split(".")[0], 1)}

            def kill(name: str, point: str = point, arrivals: dict[str, int] = arrivals) -> None:
                if name == point:
                    arrivals["left"] -= 1
                    if not arrivals["left"]:
                        os.kill(os.getpid(), signal.SIGKILL)

            fault_points.hook = kill
            try:
                work(Path(root) / point, scann)
            except UserError as error:
                print(point, error, flush=True)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (point, status)
    print("all were killed")


if __name__ == "__main__":
    sys.modules["crashing"] = sys.modules["__main__"]
    assert LiveIndex
    main()
