"""A domain module from nothing on a CPU: a small BERT that has read one corpus and done nothing but fill in its words.

--data names the corpus (default: the 5,000 passages that ship with the package), from which the vocabulary is
learnt as well. `benchmarks/ddr_domains.py --start new` begins with it: it is what DDR's paper supposes, an encoder that
knows texts and no retrieval, while the small encoder of the package has learnt to retrieve (docs/results/ddr.md).
"""

from jaxretr.assets import QUICKSTART
from jaxretr.config import BertShape, MlmConfig, Optimizer, PretrainData, Train


def config() -> MlmConfig:
    return MlmConfig(
        name="ddr_small_new_dam",
        data=PretrainData(corpora=(str(QUICKSTART),), vocab_size=8192, max_length=64, held_out=512),
        bert=BertShape(hidden_size=128, layers=4, heads=4, intermediate_size=512),
        # Small blocks stay in a CPU's cache.
        chunk=16,
        optimizer=Optimizer(learning_rate=1e-3, b2=0.98, weight_decay=0.01, warmup=0.05),
        train=Train(steps=1500, batch_size=32, log_every=50, save_every=1500, eval_every=500, best_metric="loss"),
    )
