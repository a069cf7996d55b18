"""Typo-robust DPR on MS MARCO with 40 misspelt forms of each query as positives (Sidiropoulos & Kanoulas 2024).

With b = .5, g = .5 and s = .2 the loss is

    (1 - b) [(1 - g) CE(q -> P) + g CE(P -> q, q~)] + b [(1 - s) KL(q -> P || q~ -> P) + s KL(P -> q || P -> q~)],

where all 40 forms of a passage's query are its positives, drawn once before the first step. Data, batch, learning rate and
mined negatives are those of typos_msmarco, and so is the dictionary profile of typos. It was not run.
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import ContrastiveConfig, Typos

TYPOS = run_path(str(Path(__file__).with_name("typos_msmarco.py")))
B, S = 0.5, 0.2
FORMS = 40


def config(data_folder: str = "data") -> ContrastiveConfig:
    plain: ContrastiveConfig = TYPOS["config"](data_folder)
    return dataclasses.replace(
        plain,
        name="typos_msmarco_multi_positive",
        # `symmetric` halves both directions, which is g = .5.
        contrastive=dataclasses.replace(plain.contrastive, symmetric=True),
        typos=Typos(
            profile="dictionary",
            variants=FORMS,
            pre_drawn=FORMS,
            multi_positive=True,
            clean_weight=1 - B,
            self_teaching_weight=B * (1 - S),
            passage_self_teaching_weight=B * S,
        ),
    )
