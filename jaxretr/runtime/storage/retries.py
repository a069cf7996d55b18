"""Retries of operations on storage that fail for a passing reason: with growing pauses, for a minute in all."""

import errno
import logging
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from jaxretr.runtime.errors import UserError

if TYPE_CHECKING:
    import tenacity

log = logging.getLogger(__name__)

# Seconds after which an operation is given up, unless JAXRETR_STORAGE_SECONDS is set.
_SECONDS = 60

# The first and the longest pause, in seconds; each is twice the one before. A part of it is random, so that a thousand
# hosts that a store refused together do not come back together.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0

# Errors that pass, mostly of a disk behind a network. Not among them: no space, no permission, no such file.
_TRANSIENT = {
    *(errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR, errno.ECONNRESET, errno.ECONNABORTED),
    *(errno.ECONNREFUSED, errno.EPIPE, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET),
}

T = TypeVar("T")


def is_transient(error: BaseException) -> bool:
    """Whether a file operation that failed so may work in a moment."""
    return isinstance(error, OSError) and (isinstance(error, TimeoutError) or error.errno in _TRANSIENT)


def is_transient_status(status: int) -> bool:
    """Whether an HTTP request that was answered so may work in a moment: too many at once, or the server's own fault."""
    return status in (408, 429, 500, 502, 503, 504)


def retried(what: object, function: Callable[[], T], transient: Callable[[BaseException], bool] = is_transient) -> T:
    """Call a function until it does not fail for a passing reason; return its result.

    Args:
      what: the thing that is read or written, for the log.
      function: the operation, without side effects that a second call would double.
      transient: a function that tells passing reasons from lasting ones.

    Raises:
      Exception: the error of the last call: a lasting one, or no time was left for another call.
    """
    import tenacity

    return tenacity.Retrying(**_policy(what, transient))(function)


async def retried_async(
    what: object, function: Callable[[], Awaitable[T]], transient: Callable[[BaseException], bool]
) -> T:
    """Await a coroutine as `retried` calls a function; `function` makes a new one for each attempt."""
    import tenacity

    return await tenacity.AsyncRetrying(**_policy(what, transient))(function)


def storage_seconds() -> float:
    """The seconds after which an operation is given up: JAXRETR_STORAGE_SECONDS, or the default.

    Raises:
      UserError: the variable is not a number from 0.
    """
    stated = os.environ.get("JAXRETR_STORAGE_SECONDS", "")
    try:
        seconds = float(stated) if stated else _SECONDS
    except ValueError:
        seconds = -1
    if not 0 <= seconds < float("inf"):
        raise UserError(f"JAXRETR_STORAGE_SECONDS={stated}: give a number of seconds, at least 0")
    return seconds


def _policy(what: object, transient: Callable[[BaseException], bool]) -> dict[str, Any]:
    import tenacity

    def say(state: "tenacity.RetryCallState") -> None:
        error = state.outcome.exception() if state.outcome else None
        pause = state.next_action.sleep if state.next_action else 0
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        log.warning("%s: %s; attempt %d failed, the next is in %.1f s", what, reason, state.attempt_number, pause)

    return {
        "retry": tenacity.retry_if_exception(transient),
        "wait": tenacity.wait_exponential_jitter(initial=FIRST_PAUSE, max=LONGEST_PAUSE, jitter=FIRST_PAUSE),
        "stop": tenacity.stop_before_delay(storage_seconds()),
        "before_sleep": say,
        "reraise": True,
    }
