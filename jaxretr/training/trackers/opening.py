"""The trackers of a run by its config's `tracking.to`."""

import logging
from pathlib import Path

from jaxretr.config import Config
from jaxretr.runtime.errors import import_extra
from jaxretr.training.trackers.background import Background
from jaxretr.training.trackers.tracker import Tracker

log = logging.getLogger(__name__)


def check_installed(config: Config) -> None:
    """Import the packages of the trackers, before a run reads its data.

    Raises:
      UserError: one is not installed; the message names the extra.
    """
    if "wandb" in config.tracking.to:
        import_extra("wandb", "wandb")
    if "mlflow" in config.tracking.to:
        import_extra("mlflow", "mlflow")


def open_trackers(folder: Path, config: Config, shown: str) -> list[Tracker]:
    """Open the services that the config names; one that cannot be opened is left out with a warning.

    Args:
      folder: the run's folder, which keeps the ids for resuming.
      config: config of the run.
      shown: the folder as the user named it; its last part is in the tracked run's name, unless the config has one.
    """
    name = config.tracking.name or f"{config.name} {Path(shown).name}"
    found: list[Tracker] = []
    for service in config.tracking.to:
        try:
            found.append(Background(service, _open(service, folder, config, name)))
        except Exception as error:  # No login, no network, a server that is down: the run needs none of these.
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            log.warning("%s: %s; the run goes on without it (metrics.jsonl has every value)", service, why)
    return found


def _open(service: str, folder: Path, config: Config, name: str) -> Tracker:
    if service == "wandb":
        from jaxretr.training.trackers.weights_and_biases import WeightsAndBiases

        return WeightsAndBiases(folder, config, name)
    from jaxretr.training.trackers.mlflow import MLflow

    return MLflow(folder, config, name)
