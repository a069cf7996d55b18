"""Progress of long work: a bar on a terminal, lines in the log elsewhere, neither in the first two seconds."""

import logging
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_SECONDS = 2.0
_SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Counts finished work.

    Args:
      total: amount of work, in units.
      unit: name of a unit, for instance "passage".
      done: verb for a finished unit, for instance "encoded".
      shown: whether to show anything.
    """

    def __init__(self, total: int, unit: str, done: str, *, shown: bool = True):
        self.total, self.unit, self.verb = total, unit, done
        self.done = 0
        self.skipped = 0
        self.began = time.monotonic()
        self.next_line = self.began + _FIRST_SECONDS if shown else float("inf")
        from tqdm import tqdm  # Here, since the formats' names are read for the command line's help as well.

        # disable=None: no bar where there is no terminal.
        self.bar = tqdm(total=total, desc=done, unit=unit, delay=_FIRST_SECONDS, disable=None if shown else True)

    def skip(self, count: int) -> None:
        """Count units that an earlier run has finished."""
        if count:
            log.info("%d of %d %ss are %s from an earlier run", count, self.total, self.unit, self.verb)
        self.done = self.skipped = count
        self.bar.n = self.bar.initial = count

    def advance(self, count: int) -> None:
        """Count units that were finished since the last call."""
        self.done += count
        self.bar.update(count)
        now = time.monotonic()
        if self.bar.disable and now >= self.next_line and self.done < self.total:
            self.next_line = now + _SECONDS_BETWEEN_LINES
            rate = (self.done - self.skipped) / (now - self.began)
            log.info(
                "%s %d of %d %ss, %s/s, %s left",
                self.verb,
                self.done,
                self.total,
                self.unit,
                f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}",
                _clock((self.total - self.done) / rate) if rate else "?",
            )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()


def counted(rows: Iterable[T], unit: str) -> Iterator[T]:
    """Pass on `rows`, whose number is not known yet, and show how many there are."""
    from tqdm import tqdm

    began = time.monotonic()
    following = began + _FIRST_SECONDS
    bar = tqdm(unit=unit, delay=_FIRST_SECONDS, disable=None)
    for number, row in enumerate(rows, start=1):
        yield row
        bar.update()
        if bar.disable and number % 1000 == 0 and (now := time.monotonic()) >= following:
            following = now + _SECONDS_BETWEEN_LINES
            log.info("%d %ss, %.0f/s", number, unit, number / (now - began))
    bar.close()


def _clock(seconds: float) -> str:
    """Format seconds as minutes and seconds, and hours where there are any."""
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"
