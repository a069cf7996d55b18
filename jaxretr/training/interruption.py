"""A training run that is asked to stop: what it finishes, and what it breaks off."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import jax
from jax.experimental import multihost_utils

from jaxretr.runtime.parallel.hosts import EXIT_AGAIN, AskedToStop

log = logging.getLogger(__name__)

# How long a run that has nothing to save may take to close its files when it is asked to stop.
_UNWINDING_SECONDS = 2.0


class Interruption:
    """Notices SIGTERM and SIGINT, so that a run ends between two steps, or in an evaluation, with everything saved.

    On several hosts the cluster's own agreement on a common step is asked instead of this host's signal alone.
    """

    def __enter__(self) -> "Interruption":
        self.signalled = self._raises = False
        self.earlier = {}
        # With several processes JAX's own preemption service listens for SIGTERM.
        if jax.process_count() == 1 and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self.earlier[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signalled = True
        # A second signal ends the process at once.
        signal.signal(number, self.earlier[number])
        if self._raises:
            raise AskedToStop

    @contextlib.contextmanager
    def breaks_off(self) -> Iterator[None]:
        """End a block with `AskedToStop` when a signal comes, or if one has come; as soon as Python runs again."""
        if self.signalled:
            raise AskedToStop
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    @contextlib.contextmanager
    def ends_at_once(self) -> Iterator[None]:
        """`breaks_off` for a block that has nothing to save: the process ends also while a compiled program runs."""
        if not self.earlier:
            yield
            return
        ended, (reads, writes) = threading.Event(), os.pipe()
        os.set_blocking(writes, False)

        def watch() -> None:
            # Python gives each signal's number at once to this pipe, and its handler runs only after the program.
            while (number := os.read(reads, 1)) and number[0] not in self.earlier:
                pass
            if number and not ended.wait(_UNWINDING_SECONDS):
                log.warning("interrupted; run the same command again to resume")
                os._exit(EXIT_AGAIN)
            os.close(reads)

        threading.Thread(target=watch, name="jaxretr-interruption", daemon=True).start()
        before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
        try:
            with self.breaks_off():
                yield
        except AskedToStop:
            log.warning("interrupted; run the same command again to resume")
            raise
        finally:
            ended.set()
            signal.set_wakeup_fd(before)
            os.close(writes)

    def reached(self, step: int) -> bool:
        """Whether the run is to stop after this step."""
        return self.signalled if jax.process_count() == 1 else multihost_utils.reached_preemption_sync_point(step)

    def __exit__(self, *_: object) -> None:
        for number, handler in self.earlier.items():
            signal.signal(number, handler)
