"""What a run's folder tells about the model that lies in it, for the model card."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxretr.config import KINDS
from jaxretr.errors import UserError
from jaxretr.metrics_log import read_metrics


@dataclass(frozen=True)
class RunRecord:
    """A training run, as its files have it.

    Attributes:
      config: the content of config.json.
      best_step: the step whose model was kept; None without a dev set, where it is the last one.
      figures: of the dev set at that step.
      note: that training did not improve them, where the best step is the start; otherwise empty.
      last: the last line of metrics.jsonl that reports a training loss, `step` included; empty if there is none.
    """

    config: dict[str, Any]
    best_step: int | None
    figures: dict[str, float]
    note: str
    last: dict[str, float]


def read_run(model: str | Path) -> RunRecord | None:
    """Reads the run that a model comes from.

    Args:
      model: a run directory, or its model/ folder; anything else has no record.

    Raises:
      UserError: one of its files is broken.
    """
    folder = Path(model).expanduser().absolute()
    if folder.name == "model" and not (folder / "model").is_dir():
        folder = folder.parent
    config = _json(folder / "config.json") if (folder / "model").is_dir() else None
    if config is None or config.get("kind") not in KINDS:
        return None
    best = _json(folder / "best.json") or {}
    lines = _metrics(folder)
    last = next((line for line in reversed(lines) if "loss" in line and "examples_per_s" in line), {})
    return RunRecord(config, best.get("step"), best.get("figures", {}), best.get("note", ""), last)


def _json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error}); restore the file, or export the run's model/") from error
    return content if isinstance(content, dict) else None


def _metrics(folder: Path) -> list[dict[str, Any]]:
    if not (folder / "metrics.jsonl").exists():
        return []
    try:
        return read_metrics(folder)
    except ValueError as error:
        raise UserError(f"{folder / 'metrics.jsonl'}: not valid JSON lines ({error}); restore or remove it") from error
