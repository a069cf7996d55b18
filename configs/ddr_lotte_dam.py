"""A target domain module of DDR for LoTTE: the source module continues masked language modelling there.

JAXRETR_CORPUS names the topic's collection (default: the test collection of LoTTE's writing, as it is published, in the
folder that JAXRETR_DATA names); one run for every topic. JAXRETR_START names the source domain module, by default what
ddr_msmarco_dam.py wrote: training continues from there (sequential initialisation), so that the relevance module that
was trained with the source fits the target as well. JAXRETR_START=bert-base-uncased is the paper's ablation of it.
ddr_msmarco_dam.py has the commands in their order, and what departs from the original.
"""

import os

from jaxretr.config import MlmConfig, Optimizer, PretrainData, Train

DATA = os.environ.get("JAXRETR_DATA", "data")
CORPUS = os.environ.get("JAXRETR_CORPUS", f"{DATA}/lotte/writing/test/collection.tsv")
START = os.environ.get("JAXRETR_START", "runs/ddr/msmarco_dam/model")
STEPS = 50_000


def config() -> MlmConfig:
    return MlmConfig(
        name="ddr_lotte_dam",
        start=START,
        data=PretrainData(corpora=(CORPUS,), max_length=190),
        dropout=0.1,
        optimizer=Optimizer(learning_rate=2e-5, weight_decay=0.01, clip=1.0, warmup=1000 / STEPS, final=1.0),
        chunk=64,
        dtype="bfloat16",
        train=Train(steps=STEPS, batch_size=512, log_every=100, save_every=5000, eval_every=5000, best_metric="loss"),
    )
