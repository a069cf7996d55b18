"""The small BERT encoder that ships with the package: masked language modelling from scratch on a CPU.

Needs wiki_passages and wiki_qa in the folder that JAXRETR_DATA names (default: data).
"""

import os

from jaxretr.config import BertShape, MlmConfig, Optimizer, PretrainData, Train

DATA = os.environ.get("JAXRETR_DATA", "data")


def config() -> MlmConfig:
    return MlmConfig(
        name="pretrain_encoder_small",
        data=PretrainData(corpora=(f"{DATA}/wiki_qa", f"{DATA}/wiki_passages"), max_length=96),
        bert=BertShape(hidden_size=128, layers=4, heads=4, intermediate_size=512),
        optimizer=Optimizer(learning_rate=1e-3, b2=0.98, weight_decay=0.01, warmup=0.05),
        train=Train(steps=800, batch_size=32, log_every=50, save_every=200, eval_every=200, best_metric="loss"),
    )
