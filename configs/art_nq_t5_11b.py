"""ART with the paper's largest teacher, for a pod: the language-model adapted T5 of 11 billion parameters.

Batches of 32 questions with 16 passages each, for 10 epochs; the authors' script refreshes the index every 1,000 steps, the
paper every 500. The teacher's weights are 21 GiB in bfloat16: on chips of 16 GiB split them with --mesh.model 4. T0 of that size
is --scorer.path bigscience/T0.
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import ArtConfig

ART = run_path(str(Path(__file__).with_name("art_nq_t0_3b.py")))
BATCH = 32


def config(data_folder: str = "data") -> ArtConfig:
    nq: ArtConfig = ART["config"](data_folder)
    return dataclasses.replace(
        nq,
        name="art_nq_t5_11b",
        scorer=dataclasses.replace(nq.scorer, path="google/t5-xxl-lm-adapt", chunk=8),
        art=dataclasses.replace(nq.art, top_k=16),
        train=dataclasses.replace(nq.train, steps=10 * ART["QUESTIONS"] // BATCH, batch_size=BATCH),
    )
