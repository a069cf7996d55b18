"""The limits of the requests that a key may send: `--rate 100/minute`."""

import contextlib
import math
import time

from limits import parse_many
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from jaxretr.runtime.errors import UsageError
from jaxretr.serve.problems import Overloaded


class Rates:
    """Counts the requests of each key, or without keys of each address, in a moving window.

    Args:
      rate: the limit, such as "100/minute" or "5 per second"; None: any number.

    Raises:
      UsageError: it is not one rate.
    """

    def __init__(self, rate: str | None):
        self._rate = None
        if rate is not None:
            with contextlib.suppress(ValueError):
                [self._rate] = parse_many(rate)
            if self._rate is None or not self._rate.amount:
                raise UsageError(f"rate={rate}: give one number, from 1, and a time, such as 100/minute")
            self._limiter = MovingWindowRateLimiter(MemoryStorage())

    def check(self, who: str) -> None:
        """Count a request, and refuse it beyond the limit.

        Args:
          who: the key's name, or the address.

        Raises:
          Overloaded: there were too many.
        """
        if self._rate is None or self._limiter.hit(self._rate, who):
            return
        seconds = self._limiter.get_window_stats(self._rate, who).reset_time - time.time()
        raise Overloaded(f"more than {self._rate} requests", max(1, math.ceil(seconds)))
