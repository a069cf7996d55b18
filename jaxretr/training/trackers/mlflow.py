"""MLflow (`pip install 'jaxretr[mlflow]'`): a tracking server, or a SQLite file."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flax.traverse_util import flatten_dict

from jaxretr.config import Config, to_json
from jaxretr.runtime.errors import import_extra
from jaxretr.training.trackers.tracker import Outcome, note_id, tracked_id

# MLflow's own limits: parameters of one request, characters of a parameter.
_PARAMS, _CHARACTERS = 100, 6000

_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MLflow:
    """One run of MLflow, which a resumed run continues, kept where MLFLOW_TRACKING_URI or MLflow's default says.

    Args:
      folder: the run's folder, which keeps the run's id.
      config: config of the run; its settings are parameters of the MLflow run.
    """

    def __init__(self, folder: Path, config: Config, name: str):
        tracking: Any = import_extra("mlflow.tracking", "mlflow")
        self.entities: Any = import_extra("mlflow.entities", "mlflow")
        self.client = tracking.MlflowClient()
        self.id = self._resumed(tracked_id(folder, "mlflow"))
        if self.id is None:
            project = config.tracking.project
            found = self.client.get_experiment_by_name(project)
            experiment = found.experiment_id if found else self.client.create_experiment(project)
            self.id = self.client.create_run(experiment, run_name=name).info.run_id
            settings = flatten_dict(to_json(config), sep=".")
            params = [self.entities.Param(key, str(value)[:_CHARACTERS]) for key, value in settings.items()]
            for first in range(0, len(params), _PARAMS):
                self.client.log_batch(self.id, params=params[first : first + _PARAMS])
            note_id(folder, "mlflow", self.id)

    def _resumed(self, known: str | None) -> str | None:
        """Return the id if MLflow has such a run, which is then shown as running again; otherwise None."""
        if known is None:
            return None
        errors: Any = import_extra("mlflow.exceptions", "mlflow")
        try:
            self.client.update_run(known, status="RUNNING")
        except errors.MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None  # The run was deleted for good, or is in another MLflow than today's.
            raise
        return known

    def write(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        found = [self.entities.Metric(_name(name), value, int(seconds * 1000), step) for name, value in values.items()]
        self.client.log_batch(self.id, metrics=found)

    def best(self, step: int, values: Mapping[str, float]) -> None:
        """Add the metrics as best/METRIC, whose latest value MLflow shows in the run's table, and best/step."""
        self.write(step, {f"best/{name}": value for name, value in {"step": step, **values}.items()}, time.time())

    def close(self, outcome: Outcome) -> None:
        """Set the status, which a later part of the run changes back."""
        self.client.set_terminated(self.id, status=_STATUS[outcome])


def _name(metric: str) -> str:
    """MLflow's names have no "@": recall@20 is recall_at_20."""
    return metric.replace("@", "_at_")
