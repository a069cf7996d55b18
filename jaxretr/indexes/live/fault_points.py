"""Named places at which a crash would hurt the most, or a write would disturb a search; only tests act there."""

from collections.abc import Callable

POINTS = (
    *("create.begun", "create.done"),
    *("commit.begun", "commit.removed", "commit.texts", "commit.written", "commit.done", "commit.published"),
    *("snapshot.begun", "snapshot.vectors", "snapshot.rows", "snapshot.indexed", "snapshot.written"),
    *("compaction.placed", "compaction.swapped", "compaction.removed", "certificate.measured", "certificate.noted"),
    *("reindex.begun", "reindex.space", "reindex.encoded", "reindex.filled", "reindex.complete", "reindex.snapshot"),
    *("switch.begun", "switch.written", "switch.done", "forget.begun", "forget.done"),
)

SEARCH_POINTS = ("search.begun", "search.found", "search.read")
"""The places between the steps of a search, at which tests write."""


def _nothing(name: str) -> None:
    del name


# Called with the name of the place; tests replace it.
hook: Callable[[str], None] = _nothing


def reached(name: str) -> None:
    """Note that the process has reached one of `POINTS` or `SEARCH_POINTS`."""
    assert name in POINTS or name in SEARCH_POINTS, name
    hook(name)
