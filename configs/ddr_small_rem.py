"""A relevance module of DDR on a CPU: adapters a quarter as wide as the small encoder, which stays as it is.

--encoder.path names the frozen encoder (default: what ddr_small_dam.py wrote as the source), --data a BEIR folder
with the splits train and dev (default: the one that ships with the package). ddr_small_dam.py has the commands in their
order; ddr_small_dr.py trains the whole encoder instead. Parts of the module: --encoder.adapter.bottleneck 0 leaves LoRA
alone, --encoder.adapter.lora-rank 0 the parallel adapter.

What departs from the paper is what the small encoder asks for in the other small runs: cosine at a temperature of .05,
a rate that falls to zero (2e-3), no dropout; and no mined negatives.
"""

from jaxretr.assets import QUICKSTART
from jaxretr.config import (
    AdapterShape,
    Contrastive,
    ContrastiveConfig,
    ContrastiveData,
    Encoder,
    Negatives,
    Optimizer,
    Train,
)

TRAIN = str(QUICKSTART)


def config() -> ContrastiveConfig:
    return ContrastiveConfig(
        name="ddr_small_rem",
        data=ContrastiveData(train=TRAIN, dev=TRAIN, dev_questions=TRAIN, dev_qrels=f"{TRAIN}/qrels/dev.tsv"),
        encoder=Encoder(
            path="runs/ddr_small/source_dam/model",
            adapter=AdapterShape(lora_rank=32, bottleneck=32),
            shared=True,
            pooling="mean",
            normalise=True,
            max_question_length=32,
            max_passage_length=96,
            dropout=0.0,
        ),
        negatives=Negatives(static=0),
        contrastive=Contrastive(temperature=0.05, chunk=16),
        optimizer=Optimizer(learning_rate=2e-3, weight_decay=0.0, warmup=0.1, final=0.0),
        train=Train(steps=200, batch_size=64, log_every=10, save_every=100, eval_every=200),
    )
