"""DDR's baseline DR: BERT fine-tuned as a whole, on the examples and for the steps of ddr_msmarco_rem.py."""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import ContrastiveConfig

REM = run_path(str(Path(__file__).with_name("ddr_msmarco_rem.py")))


def config(data_folder: str = "data") -> ContrastiveConfig:
    rem: ContrastiveConfig = REM["config"](data_folder)
    return dataclasses.replace(
        rem,
        name="ddr_msmarco_dr",
        encoder=dataclasses.replace(rem.encoder, path="bert-base-uncased", adapter=None),
        optimizer=dataclasses.replace(rem.optimizer, learning_rate=1e-5),
    )
