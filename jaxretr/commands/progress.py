"""Progress of the commands: a bar on a terminal, lines in the log elsewhere, neither in the first two seconds."""

import logging
import time
from types import TracebackType

from tqdm import tqdm

log = logging.getLogger(__name__)

_FIRST_SECONDS = 2.0
_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Counts what is done.

    Args:
      total: how much there is to do.
      unit: what is counted, for instance "passage".
      done: what happens to it, for instance "encoded".
    """

    def __init__(self, total: int, unit: str, done: str):
        self.total, self.unit, self.verb = total, unit, done
        self.done = 0
        self.skipped = 0
        self.began = time.monotonic()
        self.next_line = self.began + _FIRST_SECONDS
        # disable=None: no bar where there is no terminal.
        self.bar = tqdm(total=total, desc=done, unit=unit, delay=_FIRST_SECONDS, disable=None)

    def skip(self, count: int) -> None:
        """Notes what an earlier run has done."""
        if count:
            log.info("%d of %d %ss are %s from an earlier run", count, self.total, self.unit, self.verb)
        self.done = self.skipped = count
        self.bar.n = self.bar.initial = count

    def advance(self, count: int) -> None:
        """Notes what was done since the last call."""
        self.done += count
        self.bar.update(count)
        now = time.monotonic()
        if self.bar.disable and now >= self.next_line and self.done < self.total:
            self.next_line = now + _SECONDS_BETWEEN_LINES
            rate = (self.done - self.skipped) / (now - self.began)
            left = int((self.total - self.done) / rate)
            log.info(
                "%s %d of %d %ss, %.0f/s, %d:%02d left",
                *(self.verb, self.done, self.total, self.unit, rate, left // 60, left % 60),
            )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()
