"""Weights & Biases (`pip install 'jaxretr[wandb]'`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxretr.config import Config, to_json
from jaxretr.runtime.errors import import_extra
from jaxretr.training.trackers.tracker import Outcome, note_id, tracked_id

# Seconds that the end of a run waits for metrics that are still to be sent; the rest stays for `wandb sync`.
_FINISH_SECONDS = 60

_EXIT_CODES = {"finished": 0, "interrupted": 75, "failed": 1}


class WeightsAndBiases:
    """One run of Weights & Biases, which a resumed run continues.

    Metrics are plotted over their own column "step" and not over wandb's counter of rows: wandb drops rows whose
    counter goes back, as those of steps that a resumed run repeats. WANDB_MODE, WANDB_ENTITY and the rest of wandb's
    variables hold as they do elsewhere.

    Args:
      folder: the run's folder; wandb's own files are in its wandb/.
      config: config of the run, sent when it starts.
    """

    def __init__(self, folder: Path, config: Config, name: str):
        wandb: Any = import_extra("wandb", "wandb")
        known = tracked_id(folder, "wandb")
        self.run = wandb.init(
            project=config.tracking.project,
            name=name,
            id=known,
            resume="allow",  # offline wandb ignores it, and `wandb sync` puts the parts of one id together
            dir=str(folder),
            config=None if known else to_json(config),
            # The progress line is useless in a log of the console, and its wrapping changes what a terminal shows.
            settings=wandb.Settings(console="off", finish_timeout=_FINISH_SECONDS),
        )
        if known != self.run.id:
            note_id(folder, "wandb", self.run.id)
        self.run.define_metric("step", hidden=True)
        self.run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """Add a row; wandb records the time itself."""
        self.run.log({"step": step, **values})

    def best(self, step: int, values: Mapping[str, float]) -> None:
        """Put the metrics and their step into the run's summary, as best/METRIC and best/step."""
        self.run.summary.update({f"best/{name}": value for name, value in {"step": step, **values}.items()})

    def close(self, outcome: Outcome) -> None:
        """Send the remaining metrics; an interrupted run is shown as preempted."""
        if outcome == "interrupted":
            self.run.mark_preempting()
        self.run.finish(exit_code=_EXIT_CODES[outcome])
