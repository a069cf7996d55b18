"""A tiny training run as a process: `python train_tiny.py KIND MODELS WORKDIR CHANGES`.

CHANGES are fields of sections of the config, as JSON. With "only": N they are made in process N alone; with "pause": S
each step takes S seconds longer, so that a signal meets the run. Each process notes the questions of its steps in
WORKDIR/batches-N.jsonl.
"""

import json
import os
import sys
import time
from pathlib import Path

import tiny

from jaxretr import cli
from jaxretr.runtime.parallel import sharding
from jaxretr.training import experiment
from jaxretr.training import loop as train

STEPS = 4

kind, models, workdir, changes = sys.argv[1:5]
changes = json.loads(changes)
process = int(os.environ.get("JAX_PROCESS_ID", "0"))
pause = changes.pop("pause", 0)
if changes.pop("only", None) not in (None, process):
    changes = {}
# Some biases have no gradient but rounding noise; with the usual eps Adam would take full steps along it.
sections = {"train": {"steps": STEPS, "eval_every": 100, "save_every": 2}, "optimizer": {"eps": 1e-5}}
if kind == "art":
    make, more = tiny.art_config, {"index": {"refresh_every": 2}}
else:
    make, more = tiny.contrastive_config, {"negatives": {"retrieved": 1}, "data": {"corpus": str(tiny.DATA)}}
sections |= more
for name, fields in changes.items():
    sections[name] = {**sections.get(name, {}), **fields}
made = make(Path(models), **sections)
# With `mesh.shard_parameters` the matrices of these models are split, small as they are.
sharding.SPLIT_FROM = 128
build = train.build


def noted(*args):
    run = build(*args)
    step = run.step

    def noting(state, number, batch):
        with open(Path(workdir) / f"batches-{process}.jsonl", "a") as file:
            file.write(json.dumps([number, run.batches.indices(number).tolist()]) + "\n")
        time.sleep(pause)
        return step(state, number, batch)

    run.step = noting
    return run


train.build = noted
experiment.load = lambda *given: made
# Lines of a test come here.
sys.exit(cli.main(["train", "no.py", "--workdir", workdir]))
