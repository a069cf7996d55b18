"""What a run reports while it goes: JSON lines, TensorBoard, and a progress line."""

import json
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from jaxretr.errors import UserError


class MetricsLog:
    """Writes metrics.jsonl and TensorBoard files into a run's folder; on other hosts than the first it is silent.

    Args:
      folder: the run's folder.
      start: the step that the run resumes from; later lines of an interrupted run are dropped, as these steps are
        run again.
      total: steps of the whole run.
      writes: whether this host is the one that writes.
    """

    def __init__(self, folder: Path, *, start: int, total: int, writes: bool):
        self.start, self.total, self.writes = start, total, writes
        self.began = self.last_time = time.monotonic()
        self.last_step = start
        self.interactive = sys.stderr.isatty()
        if not writes:
            return
        from tensorboardX import SummaryWriter

        path = folder / "metrics.jsonl"
        try:
            kept = _lines_before(path, start)
            path.write_text("".join(kept))
            self.file = path.open("a")
            self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=start)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; free disk space or pass another --workdir") from error

    def write(self, step: int, values: dict[str, float], *, examples: int = 0) -> None:
        """Reports the figures of a step.

        Args:
          step: number of finished steps.
          values: figures by name.
          examples: questions a step, for examples/s; 0 leaves the rate out.
        """
        if not self.writes:
            return
        now = time.monotonic()
        if examples and step > self.last_step:
            values = {**values, "examples_per_s": examples * (step - self.last_step) / (now - self.last_time)}
            self.last_step, self.last_time = step, now
        self.file.write(json.dumps({"step": step, **values}) + "\n")
        self.file.flush()
        for name, value in values.items():
            self.board.add_scalar(name, value, step)
        self._show(step, values, now)

    def _show(self, step: int, values: dict[str, float], now: float) -> None:
        left = (now - self.began) / max(1, step - self.start) * (self.total - step)
        figures = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        line = f"step {step}/{self.total}  {figures}  {int(left // 60)}:{int(left % 60):02d} left"
        # A terminal keeps one line that changes, and a line of its own for each evaluation.
        changing = self.interactive and "examples_per_s" in values
        print(
            f"\r\x1b[K{line}" if self.interactive else line, end="" if changing else "\n", file=sys.stderr, flush=True
        )

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.writes:
            if self.interactive:
                print(file=sys.stderr)
            self.file.close()
            self.board.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, in order."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _lines_before(path: Path, start: int) -> list[str]:
    """The whole lines up to step `start`; a line that a kill cut short is no JSON and goes too."""
    kept = []
    for line in path.read_text().splitlines(keepends=True) if path.exists() else []:
        try:
            if json.loads(line)["step"] <= start and line.endswith("\n"):
                kept.append(line)
        except (json.JSONDecodeError, KeyError):
            continue
    return kept
