"""ART as published, for a pod, on WebQuestions: 20 epochs of batches of 16, for the set is small.

Put webq-train.tsv and webq-dev.tsv, 3,417 and 361 questions with answers, beside psgs_w100.tsv.
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import ArtConfig

ART = run_path(str(Path(__file__).with_name("art_nq_t0_3b.py")))
QUESTIONS = 3_417
BATCH = 16


def config(data_folder: str = "data") -> ArtConfig:
    nq: ArtConfig = ART["config"](data_folder)
    return dataclasses.replace(
        nq,
        name="art_webq_t0_3b",
        data=dataclasses.replace(
            nq.data, questions=f"{data_folder}/webq-train.tsv", dev_questions=f"{data_folder}/webq-dev.tsv"
        ),
        train=dataclasses.replace(nq.train, steps=20 * QUESTIONS // BATCH, batch_size=BATCH),
    )
