"""DDR's relevance module, learnt from a cross-encoder's margins instead of judgements: 20 epochs of Margin-MSE.

--data.train names a training file with the teacher's raw scores (default: msmarco-scores.jsonl in the folder that
--data-folder names). The original's are in sentence-transformers/msmarco-hard-negatives, as {question: {passage: score}};
rewrite each question as a line of

    {"question_id": "3", "question": "...", "positive_ctxs": [{"id": "8", "score": 9.1}],
     "hard_negative_ctxs": [{"id": "21", "score": -2.5}, ...]}

with the judged passage as the positive and at least three others. Everything else is as in ddr_msmarco_rem.py.
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import ContrastiveConfig, Distillation

REM = run_path(str(Path(__file__).with_name("ddr_msmarco_rem.py")))
STEPS = 20 * REM["QUESTIONS"] // REM["BATCH"]


def config(data_folder: str = "data") -> ContrastiveConfig:
    rem: ContrastiveConfig = REM["config"](data_folder)
    return dataclasses.replace(
        rem,
        name="ddr_msmarco_rem_margin_mse",
        data=dataclasses.replace(rem.data, train=f"{data_folder}/msmarco-scores.jsonl"),
        # The margins alone: no softmax over the batch, so that the masks of `negatives` have nothing to do.
        distillation=Distillation(loss="margin_mse", weight=1.0, contrastive_weight=0.0),
        train=dataclasses.replace(rem.train, steps=STEPS, eval_every=20_000),
    )
