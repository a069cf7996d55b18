"""Notes about the inputs of a run, which are said once they matter: not beside an error, nor by a run that is done."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial

_held: ContextVar[list[Callable[[], object]] | None] = ContextVar("held notes", default=None)


def note(say: Callable[..., object], *values: object) -> None:
    """Say something about an input: at once, or inside `HeldNotes` when they are said.

    Args:
      say: a method of a logger, such as `log.warning`.
      *values: its arguments.
    """
    held = _held.get()
    if held is None:
        say(*values)
    else:
        held.append(partial(say, *values))


class HeldNotes:
    """Holds the notes of a block, or of several, of this thread; they are dropped unless `say` is called."""

    def __init__(self) -> None:
        self._notes: list[Callable[[], object]] = []

    def __enter__(self) -> "HeldNotes":
        self._token = _held.set(self._notes)
        return self

    def __exit__(self, *_: object) -> None:
        _held.reset(self._token)

    def say(self) -> None:
        """Say the notes, in their order."""
        for each in self._notes:
            each()
        self._notes.clear()
