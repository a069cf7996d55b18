"""DDR's Chinese relevance module: one epoch of Dureader, cosine times 20, in-batch negatives alone.

The source domain module is what ddr_dureader_dam.py wrote (another: --encoder.path), which has the commands in their
order. The data set has too many unjudged right passages for mined negatives to be wrong ones. No dev questions: the last
checkpoint is the model, as in the original.
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import ContrastiveConfig, ContrastiveData

REM = run_path(str(Path(__file__).with_name("ddr_msmarco_rem.py")))
QUESTIONS = 300_000  # As the paper rounds it.
STEPS = QUESTIONS // REM["BATCH"]


def config(data_folder: str = "data") -> ContrastiveConfig:
    rem: ContrastiveConfig = REM["config"](data_folder)
    return dataclasses.replace(
        rem,
        name="ddr_dureader_rem",
        data=ContrastiveData(train=f"{data_folder}/dureader"),
        encoder=dataclasses.replace(
            rem.encoder, path="runs/ddr/dureader_dam/model", normalise=True, max_passage_length=384
        ),
        negatives=dataclasses.replace(rem.negatives, static=0),
        # The original multiplies cosines by 20.
        contrastive=dataclasses.replace(rem.contrastive, temperature=1 / 20, chunk=32),
        train=dataclasses.replace(rem.train, steps=STEPS, save_every=500),
    )
