"""A target domain module of DDR for LoTTE: the source module continues masked language modelling there.

--data names the topic's collection (default: the test collection of LoTTE's writing, as it is published, in the folder
that --data-folder names); one run for every topic. --start names the source domain module, by default what
ddr_msmarco_dam.py wrote: training continues from there (sequential initialisation), so that the relevance module that
was trained with the source fits the target as well. --start bert-base-uncased is the paper's ablation of it.
ddr_msmarco_dam.py has the commands in their order, and what departs from the original.
"""

from jaxretr.config import MlmConfig, Optimizer, PretrainData, Train

STEPS = 50_000


def config(data_folder: str = "data") -> MlmConfig:
    return MlmConfig(
        name="ddr_lotte_dam",
        start="runs/ddr/msmarco_dam/model",
        data=PretrainData(corpora=(f"{data_folder}/lotte/writing/test/collection.tsv",), max_length=190),
        dropout=0.1,
        optimizer=Optimizer(learning_rate=2e-5, weight_decay=0.01, clip=1.0, warmup=1000 / STEPS, final=1.0),
        chunk=64,
        dtype="bfloat16",
        train=Train(steps=STEPS, batch_size=512, log_every=100, save_every=5000, eval_every=5000, best_metric="loss"),
    )
