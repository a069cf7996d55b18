"""The files that a training run left in its folder, as a report reads them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxretr.config import Config, from_json
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.paths import as_path
from jaxretr.runtime.storage.sealed_folder import read_object
from jaxretr.training.metrics_log import read_best, read_metrics, read_starts


@dataclass(frozen=True)
class RunFiles:
    """A run.

    Attributes:
      name: the folder's own name.
      folder: the run's folder.
      config: the run's settings.
      lines: the lines of metrics.jsonl, in order.
      best: {"step", "figures"} of the best evaluation; None without one.
      starts: the machines and versions on which it was started and resumed, as `jaxretr.train` notes in
        environment.json; runs of older versions have none.
    """

    name: str
    folder: Path
    config: Config
    lines: list[dict[str, Any]]
    best: dict[str, Any] | None
    starts: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: str | Path) -> "RunFiles":
        """Read a run's folder.

        Raises:
          UserError: it is not a run's folder, or a file of it is damaged.
        """
        path = as_path(folder)
        if not (path / "config.json").exists() or not (path / "metrics.jsonl").exists():
            raise UserError(f"{folder}: no config.json and metrics.jsonl there; give the folder of a training run")
        content = read_object(path / "config.json", "restore it")
        config = from_json(content, str(path / "config.json"))
        best = read_best(path, config.train.best_metric)
        return cls(path.name, path, config, read_metrics(path), best, read_starts(path))

    @property
    def model(self) -> Path | None:
        """The folder of the best model, or of the last one; None where the run has saved none yet."""
        path = self.folder / "model"
        return path if path.is_dir() else None

    @property
    def steps(self) -> int:
        """The last step that has metrics."""
        return max((line["step"] for line in self.lines), default=0)

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each part of the run, summed over all its lines."""
        total: dict[str, float] = {}
        for line in self.lines:
            for name, value in line.items():
                if name.startswith("seconds/"):
                    part = name.removeprefix("seconds/").replace("_", " ")
                    total[part] = total.get(part, 0.0) + value
        return total
