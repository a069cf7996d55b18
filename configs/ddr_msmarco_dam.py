"""DDR's source domain module (Zhan et al. 2023, section 3.3.1): BERT continues masked language modelling on MS MARCO.

Put the BEIR folder msmarco into the folder that --data-folder names (default: data). The whole recipe, in order:

    jaxretr train configs/ddr_msmarco_dam.py --workdir runs/ddr/msmarco_dam
    jaxretr train configs/ddr_msmarco_rem.py --workdir runs/ddr/msmarco_rem
    jaxretr train configs/ddr_lotte_dam.py --workdir runs/ddr/lotte_dam
    jaxretr assemble --rem runs/ddr/msmarco_rem --dam runs/ddr/lotte_dam/model --out runs/ddr/lotte

The last two are repeated for every further domain (ddr_trec_covid_dam.py); the relevance module stays. It can also learn
from a cross-encoder (ddr_msmarco_rem_margin_mse.py); ddr_msmarco_dr.py is the baseline without modules.

What the original does not state: gradients are clipped at 1, as BERT's were. What departs from it: 1,000 passages are
held out, for a perplexity that picks the best checkpoint; an empty title leaves a second [SEP] in the row.
"""

from jaxretr.config import MlmConfig, Optimizer, PretrainData, Train

STEPS = 100_000


def config(data_folder: str = "data") -> MlmConfig:
    return MlmConfig(
        name="ddr_msmarco_dam",
        start="bert-base-uncased",
        data=PretrainData(corpora=(f"{data_folder}/msmarco",), max_length=100),
        dropout=0.1,
        # 1,000 steps of warm-up, then constant.
        optimizer=Optimizer(learning_rate=5e-5, weight_decay=0.01, clip=1.0, warmup=1000 / STEPS, final=1.0),
        chunk=128,
        dtype="bfloat16",
        train=Train(steps=STEPS, batch_size=1024, log_every=100, save_every=5000, eval_every=5000, best_metric="loss"),
    )
