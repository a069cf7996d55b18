"""ART as published, for a pod, on TriviaQA's questions: everything else as in art_nq_t0_3b.

Put triviaqa-train.tsv and triviaqa-dev.tsv, the questions of the set's open version with answers, beside psgs_w100.tsv.
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import ArtConfig

ART = run_path(str(Path(__file__).with_name("art_nq_t0_3b.py")))
QUESTIONS = 78_785


def config() -> ArtConfig:
    nq: ArtConfig = ART["config"]()
    return dataclasses.replace(
        nq,
        name="art_triviaqa_t0_3b",
        data=dataclasses.replace(
            nq.data, questions=f"{ART['DATA']}/triviaqa-train.tsv", dev_questions=f"{ART['DATA']}/triviaqa-dev.tsv"
        ),
        train=dataclasses.replace(nq.train, steps=10 * QUESTIONS // nq.train.batch_size),
    )
