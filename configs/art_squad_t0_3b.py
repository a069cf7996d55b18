"""ART as published, for a pod, on SQuAD-Open's questions: everything else as in art_nq_t0_3b.

Put squad-train.tsv and squad-dev.tsv, the questions of the set's open version with answers, beside psgs_w100.tsv.
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import ArtConfig

ART = run_path(str(Path(__file__).with_name("art_nq_t0_3b.py")))
QUESTIONS = 78_713


def config(data_folder: str = "data") -> ArtConfig:
    nq: ArtConfig = ART["config"](data_folder)
    return dataclasses.replace(
        nq,
        name="art_squad_t0_3b",
        data=dataclasses.replace(
            nq.data, questions=f"{data_folder}/squad-train.tsv", dev_questions=f"{data_folder}/squad-dev.tsv"
        ),
        train=dataclasses.replace(nq.train, steps=10 * QUESTIONS // nq.train.batch_size),
    )
