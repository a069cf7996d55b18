"""DDR in Chinese on a CPU, second part: a relevance module in the frozen encoder of ddr_small_chinese_dam.py.

--encoder.path names that encoder (default: runs/ddr_chinese/dam/model), --data-folder the folder with cmrc2018_zh, whose 1,002
questions of the split trial are trained on. Cosine times 20, as in the paper's Chinese experiments. The split dev is what
benchmarks/ddr_chinese.py measures, so that no checkpoint is chosen by it: the last one is the model.
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import ContrastiveConfig, ContrastiveData

REM = run_path(str(Path(__file__).with_name("ddr_small_rem.py")))


def config(data_folder: str = "data") -> ContrastiveConfig:
    rem: ContrastiveConfig = REM["config"]()
    return dataclasses.replace(
        rem,
        name="ddr_small_chinese_rem",
        data=ContrastiveData(train=f"{data_folder}/cmrc2018_zh", split="trial"),
        # Half of the passages have more than 460 characters; their beginnings are read, here as in every search.
        encoder=dataclasses.replace(
            rem.encoder, path="runs/ddr_chinese/dam/model", max_question_length=40, max_passage_length=256
        ),
        contrastive=dataclasses.replace(rem.contrastive, temperature=1 / 20),
        # Of an encoder that has only filled in masked characters.
        optimizer=dataclasses.replace(rem.optimizer, learning_rate=5e-3),
        train=dataclasses.replace(rem.train, steps=60, batch_size=32),
    )
