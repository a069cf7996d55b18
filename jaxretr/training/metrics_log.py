"""Reports of a run while it trains: JSON lines, trackers, and a progress line."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from jaxretr.runtime.errors import UserError, reason
from jaxretr.runtime.storage.files import atomic_write
from jaxretr.runtime.storage.sealed_folder import read_object
from jaxretr.training.trackers.tensorboard import TensorBoard
from jaxretr.training.trackers.tracker import Outcome, Tracker

_RESTORE = "restore the file, or begin the run again in another folder"
_REMOVE = "restore or remove the file, which is a record alone"


class MetricsLog:
    """Writes metrics.jsonl and TensorBoard files into a run's folder; on other hosts than the first it is silent.

    Args:
      start: the step that the run resumes from; later lines of an interrupted run are dropped, as these steps are
        run again.
      writes: whether this host is the one that writes.
      trackers: other places to report to; closed together with the log.
    """

    def __init__(self, folder: Path, *, start: int, total: int, writes: bool, trackers: Sequence[Tracker] = ()):
        self.start, self.total, self.writes = start, total, writes
        self.began = self.last_time = time.monotonic()
        self.last_step = start
        self.interactive = sys.stderr.isatty()
        if not writes:
            return
        self.path = folder / "metrics.jsonl"
        with self._explained():
            kept = _lines_before(self.path, start)
            with atomic_write(self.path) as file:
                file.writelines(kept)
            self.file = self.path.open("a")
            self.trackers: list[Tracker] = [TensorBoard(folder / "tensorboard", start), *trackers]

    def write(
        self,
        step: int,
        values: dict[str, float],
        *,
        examples: int = 0,
        seconds: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Report the metrics of a step.

        Args:
          step: number of finished steps.
          examples: questions a step, for examples/s; 0 leaves the rate out.
          seconds: seconds that each part of the run took since the last report; in the files alone, as "seconds/PART".
        """
        if not self.writes:
            return
        now = time.monotonic()
        if examples and step > self.last_step:
            values = {**values, "examples_per_s": examples * (step - self.last_step) / (now - self.last_time)}
            self.last_step, self.last_time = step, now
        times = {f"seconds/{name.replace(' ', '_')}": round(value, 6) for name, value in seconds.items()}
        with self._explained():
            self.file.write(json.dumps({"step": step, **values, **times}) + "\n")
            self.file.flush()
            for tracker in self.trackers:
                tracker.write(step, {**values, **times}, time.time())
        self._show(step, values, now)

    def best(self, step: int, values: Mapping[str, float]) -> None:
        """Report the metrics of the best evaluation so far, to the trackers alone (best.json has them)."""
        if not self.writes:
            return
        with self._explained():
            for tracker in self.trackers:
                tracker.best(step, values)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            remedy = "free disk space and run the same command again"
            raise UserError(f"{self.path}: cannot be written ({error.strerror}); {remedy}") from error

    def _show(self, step: int, values: dict[str, float], now: float) -> None:
        figures = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        line = f"step {step}/{self.total}  {figures}"
        if step > self.start:  # Before a step is done, nobody knows how long one takes.
            left = int((now - self.began) / (step - self.start) * (self.total - step))
            line += f"  {left // 60}:{left % 60:02d} left"
        # A terminal keeps one line that changes, and a line of its own for each evaluation.
        changing = self.interactive and "examples_per_s" in values
        shown = ("\r\x1b[K" if self.interactive else "") + line + ("" if changing else "\n")
        with contextlib.suppress(OSError):  # Nobody reads stderr any more, which is no reason to end a run.
            print(shown, end="", file=sys.stderr, flush=True)

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.writes:
            if self.interactive:
                print(file=sys.stderr)
            # Everything was flushed line by line: whatever fails here has failed and been reported before.
            with contextlib.suppress(OSError):
                self.file.close()
            for tracker in self.trackers:
                with contextlib.suppress(OSError):
                    tracker.close(_outcome(error))


# ---- what a run's folder says of it ------------------------------------------------------------------------------------


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl, in order; a last one that a kill cut short is left out.

    Raises:
      UserError: it is damaged.
    """
    path = folder / "metrics.jsonl"
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    except ValueError as error:
        raise UserError(f"{path}: is damaged ({reason(error)}); {_RESTORE}") from error
    if not all(isinstance(line, dict) and isinstance(line.get("step"), int) for line in lines):
        raise UserError(f"{path}: is damaged (a line without a step); {_RESTORE}")
    return lines


def read_best(folder: Path, metric: str | None = None) -> dict[str, Any] | None:
    """Return {"step", "figures"} of a run's best evaluation, as best.json has it; None if there was none.

    Args:
      metric: one that the evaluation must have.

    Raises:
      UserError: the file is damaged.
    """
    path = folder / "best.json"
    if not path.exists():
        return None
    best = read_object(path, _RESTORE)
    figures = best.get("figures")
    if (
        not isinstance(best.get("step"), int)
        or not isinstance(figures, dict)
        or not all(isinstance(value, int | float) for value in figures.values())
        or metric not in (None, *figures)
    ):
        raise UserError(f"{path}: is damaged (no step with figures, {metric or 'numbers'} among them); {_RESTORE}")
    return best


def read_starts(folder: Path) -> list[dict[str, Any]]:
    """Return the machines and versions on which a run was started and resumed, as environment.json has them.

    Raises:
      UserError: the file is damaged.
    """
    path = folder / "environment.json"
    try:
        starts = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    except ValueError as error:
        raise UserError(f"{path}: is damaged ({reason(error)}); {_REMOVE}") from error
    if not isinstance(starts, list) or not all(isinstance(start, dict) and "from_step" in start for start in starts):
        raise UserError(f"{path}: is damaged (no list of starts); {_REMOVE}")
    return starts


def _lines_before(path: Path, start: int) -> list[str]:
    """Return the complete lines up to step `start`; what a kill or a damaged disk left of others is dropped too."""
    kept = []
    for line in path.read_text(errors="replace").splitlines(keepends=True) if path.exists() else []:
        try:
            if json.loads(line)["step"] <= start and line.endswith("\n"):
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    return kept


def _outcome(error: BaseException | None) -> Outcome:
    if error is None:
        return "finished"
    # Errors by which a signal ends a run: between two steps, with everything saved, or at once.
    return "interrupted" if isinstance(error, SystemExit | KeyboardInterrupt) else "failed"
