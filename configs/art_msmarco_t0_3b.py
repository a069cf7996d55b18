"""ART as published, for a pod, on MS MARCO's questions and passages: batches of 512 questions with 8 passages each.

The authors' script has 4 passages (--art.top-k 4). Neither it nor the paper says for how long they trained: 10 epochs, as
for the other sets, are this config's own choice. Put the BEIR folder msmarco into the folder that --data-folder names. It is
evaluated on its dev questions; the paper's own evaluation is BEIR's: jaxretr evaluate RUN --suite beir.
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import ArtConfig

ART = run_path(str(Path(__file__).with_name("art_nq_t0_3b.py")))
QUESTIONS = 502_939
BATCH = 512


def config(data_folder: str = "data") -> ArtConfig:
    nq: ArtConfig = ART["config"](data_folder)
    return dataclasses.replace(
        nq,
        name="art_msmarco_t0_3b",
        data=dataclasses.replace(
            nq.data,
            corpus=f"{data_folder}/msmarco",
            questions=f"{data_folder}/msmarco",
            questions_split="train",
            dev_questions=f"{data_folder}/msmarco",
            dev_qrels=f"{data_folder}/msmarco/qrels/dev.tsv",
        ),
        art=dataclasses.replace(nq.art, top_k=8),
        train=dataclasses.replace(nq.train, steps=10 * QUESTIONS // BATCH, batch_size=BATCH, best_metric="mrr@10"),
    )
