"""ART as published, for a pod, on TriviaQA's questions: everything else as in art_nq_t0_3b.

Put triviaqa-train.tsv and triviaqa-dev.tsv, the questions of the set's open version with answers, beside psgs_w100.tsv.
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import ArtConfig

ART = run_path(str(Path(__file__).with_name("art_nq_t0_3b.py")))
QUESTIONS = 78_785


def config(data_folder: str = "data") -> ArtConfig:
    nq: ArtConfig = ART["config"](data_folder)
    return dataclasses.replace(
        nq,
        name="art_triviaqa_t0_3b",
        data=dataclasses.replace(
            nq.data, questions=f"{data_folder}/triviaqa-train.tsv", dev_questions=f"{data_folder}/triviaqa-dev.tsv"
        ),
        train=dataclasses.replace(nq.train, steps=10 * QUESTIONS // nq.train.batch_size),
    )
