"""`jaxretr debug replay`: a training step that went wrong, once more, from the checkpoint before it."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxretr.checkpoint import Checkpoints
from jaxretr.config import from_json
from jaxretr.errors import UserError
from jaxretr.loss_watch import FOLDER, batch_arrays
from jaxretr.parallel.hosts import together
from jaxretr.parallel.mesh import make_mesh
from jaxretr.parallel.sharding import dotted
from jaxretr.storage.run_folder import RunFolder
from jaxretr.train import build


def run(args: argparse.Namespace) -> None:
    """Runs the steps again and prints what each reports."""
    with RunFolder(args.workdir, writes=False, reads=(FOLDER,)) as folder:
        _replay(args, folder)


def _replay(args: argparse.Namespace, folder: RunFolder) -> None:
    workdir = folder.local
    config = from_json(_json(workdir / "config.json", "give the --workdir of a training run"), str(workdir))
    last = args.step or _failed(workdir)
    with together():
        made = build(config, make_mesh(model=config.mesh.model), workdir)
        with Checkpoints(folder.checkpoints, config) as checkpoints:
            before = [step for step in checkpoints.steps if step < last]
            if not before:
                raise UserError(f"{folder.checkpoints}: none is older than step {last}; nothing can be replayed")
            state = checkpoints.restore(made.abstract_state(), before[-1])
        print(f"from the checkpoint of step {before[-1]}")
        for number in range(before[-1], last):
            batch = made.batch(number)
            if number + 1 == last:
                _compare(workdir, last, batch_arrays(batch))
                _broken("before", state)
            state, metrics = made.step(state, number, batch)
            figures = "  ".join(f"{name} {float(value):.6g}" for name, value in metrics.items())
            print(f"step {number + 1}  {figures}")
        _broken("after", state)


def _failed(workdir: Path) -> int:
    steps = [int(path.stem.split("-")[1]) for path in (workdir / FOLDER).glob("step-*.json")]
    if not steps:
        raise UserError(f"{workdir / FOLDER}: no step has failed in this run; name one with --step N")
    return max(steps)


def _compare(workdir: Path, step: int, batch: dict[str, np.ndarray]) -> None:
    """Says whether the batch is the one that was kept."""
    path = workdir / FOLDER / f"step-{step}.npz"
    if not path.exists():
        return
    with np.load(path, allow_pickle=False) as kept:
        same = set(kept.files) == set(batch) and all(np.array_equal(kept[name], batch[name]) for name in batch)
    print(f"the batch of step {step} is {'the one that failed' if same else 'ANOTHER than the one that failed'}")


def _broken(when: str, state: Any) -> None:
    """Names the arrays that hold something that is no number."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    numbers = [(path, x) for path, x in leaves if jax.numpy.issubdtype(x.dtype, jax.numpy.floating)]
    names = [dotted(path) for path, x in numbers if not bool(jax.numpy.isfinite(x).all())]
    shown = ", ".join(re.sub(r"^train\.", "", name) for name in names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    print(f"{when} the step: {f'NaN or infinity in {shown}{more}' if names else 'all parameters are finite'}")


def _json(path: Path, remedy: str) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); {remedy}") from error
