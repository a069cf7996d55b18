"""A target domain module of DDR for TREC-Covid: as ddr_lotte_dam.py, in 20,000 steps.

Put the BEIR folder trec-covid into the folder that --data-folder names, or name another corpus with --data: all
of the paper's domains but LoTTE's get so many steps. Those with short documents (CPR's shops and videos) take larger
batches: --train.batch-size 1024 --data.max-length 100.
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import MlmConfig, PretrainData

LOTTE = run_path(str(Path(__file__).with_name("ddr_lotte_dam.py")))
STEPS = 20_000


def config(data_folder: str = "data") -> MlmConfig:
    lotte: MlmConfig = LOTTE["config"](data_folder)
    return dataclasses.replace(
        lotte,
        name="ddr_trec_covid_dam",
        data=PretrainData(corpora=(f"{data_folder}/trec-covid",), max_length=190),
        optimizer=dataclasses.replace(lotte.optimizer, warmup=1000 / STEPS),
        train=dataclasses.replace(lotte.train, steps=STEPS),
    )
