"""A domain module of DDR on a CPU: the small encoder continues masked language modelling on a corpus.

The same config makes source and target: --data names the corpus (default: the 5,000 passages that ship with the
package), --start the model to start from (default: the small encoder). The whole recipe, in order, where SOURCE is a
BEIR folder with the splits train and dev, and TARGET a corpus of another domain:

    jaxretr train configs/ddr_small_dam.py --data SOURCE --workdir runs/ddr_small/source_dam
    jaxretr train configs/ddr_small_rem.py --data SOURCE --workdir runs/ddr_small/rem
    jaxretr train configs/ddr_small_dam.py --data TARGET --start runs/ddr_small/source_dam/model \
        --workdir runs/ddr_small/target_dam
    jaxretr assemble --rem runs/ddr_small/rem --dam runs/ddr_small/target_dam/model --out runs/ddr_small/target

What departs from the paper, and why: a short run whose rate falls to its end, and no dropout. The rate is low because the
small encoder has learnt to retrieve: masked language modelling at 1e-4 and more takes that away faster than it teaches the
corpus's words (docs/results/ddr.md). An encoder that has learnt nothing else takes 1e-3.
"""

from jaxretr.assets import ENCODER_SMALL, QUICKSTART
from jaxretr.config import MlmConfig, Optimizer, PretrainData, Train


def config() -> MlmConfig:
    return MlmConfig(
        name="ddr_small_dam",
        start=str(ENCODER_SMALL),
        data=PretrainData(corpora=(str(QUICKSTART),), max_length=96, held_out=512),
        # Small blocks stay in a CPU's cache.
        chunk=16,
        optimizer=Optimizer(learning_rate=3e-5, b2=0.98, weight_decay=0.01, warmup=0.1, final=0.05),
        train=Train(steps=600, batch_size=32, log_every=50, save_every=200, eval_every=200, best_metric="loss"),
    )
