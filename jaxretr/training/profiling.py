"""Timing of a run: each part's share of the wall clock, and traces of chosen steps for XProf and Perfetto."""

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from jaxretr.runtime.errors import UsageError

log = logging.getLogger(__name__)


class Stopwatch:
    """The seconds that the main thread spends in each part of a run.

    A step is queued on the devices and waited for later, where its loss is fetched: both count as "steps". Work that
    goes on beside the steps (batches created ahead, checkpoints on their way to the disk) counts only while the main
    thread waits for it.
    """

    def __init__(self):
        self._began = time.monotonic()
        self._seconds: dict[str, float] = {}
        self._told: dict[str, float] = {}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the block's time to a part."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0) + time.monotonic() - began

    def news(self) -> dict[str, float]:
        """Return the seconds of each part since the last call."""
        found = {name: seconds - self._told.get(name, 0) for name, seconds in self._seconds.items()}
        self._told = dict(self._seconds)
        return found

    def summary(self) -> str:
        """Return all parts since the beginning as shares of the time, the longest first."""
        whole = time.monotonic() - self._began
        longest_first = sorted(self._seconds.items(), key=lambda part: -part[1])
        parts = [f"{name} {seconds:.1f} s ({seconds / whole:.0%})" for name, seconds in longest_first]
        rest = whole - sum(self._seconds.values())
        return f"{whole:.1f} s: {', '.join([*parts, f'else {rest:.1f} s'])}"


class StepTrace:
    """A trace of the steps A to B, counted from 1, in `FOLDER/profile`; each process of a run writes its own.

    XProf (`xprof --logdir FOLDER/profile`) and TensorBoard open the folder, Perfetto (ui.perfetto.dev) the file
    perfetto_trace.json.gz in it.
    """

    def __init__(self, steps: tuple[int, int] | None, workdir: Path, start: int, total: int):
        """
        Args:
          steps: A and B; None: nothing is traced. A resumed run traces those of them that are left.
          start: the last step that an earlier part of the run has done.

        Raises:
          UsageError: the run has fewer steps.
        """
        if steps is not None and steps[1] > total:
            raise UsageError(f"profile_steps={steps[0]}:{steps[1]}: the run has steps 1 to {total}; choose among these")
        if steps is not None and steps[0] <= start:
            log.info("of the steps %d to %d, %d and those before are done; they are not traced", *steps, start)
            steps = (start + 1, steps[1]) if start < steps[1] else None
        self._steps, self._traced = steps, False
        name = f"process-{jax.process_index()}" if jax.process_count() > 1 else ""
        self._folder = workdir / "profile" / name

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Mark the block as this step, and begin the trace with the first one."""
        if self._steps is not None and number == self._steps[0]:
            jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
            self._traced = True
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            yield

    def end(self, number: int, wait_for: Any) -> None:
        """End the trace after the last of its steps, whose arrays it waits for."""
        if self._traced and self._steps is not None and number == self._steps[1]:
            jax.block_until_ready(wait_for)
            self.close()
            log.info("%s: the trace of steps %d to %d; open it with xprof --logdir", self._folder, *self._steps)

    def close(self) -> None:
        """End a trace that is under way, also where the run ends early."""
        if self._traced:
            self._traced = False
            jax.profiler.stop_trace()
