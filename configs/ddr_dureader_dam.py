"""DDR's Chinese source domain module: bert-base-chinese continues masked language modelling on Dureader.

Put Dureader as a BEIR folder (corpus, queries, qrels/train.tsv) into the folder that --data-folder names (default: data).
The whole recipe, in order; CORPUS is a Chinese collection of another domain:

    jaxretr train configs/ddr_dureader_dam.py --workdir runs/ddr/dureader_dam
    jaxretr train configs/ddr_dureader_rem.py --workdir runs/ddr/dureader_rem
    jaxretr train configs/ddr_trec_covid_dam.py --start runs/ddr/dureader_dam/model --data CORPUS \
        --workdir runs/ddr/medical_dam
    jaxretr assemble --rem runs/ddr/dureader_rem --dam runs/ddr/medical_dam/model --out runs/ddr/medical

BERT's tokenizer splits Chinese text into single characters, so the model reads characters. The rate is the paper's for
source domain modules, batch and length are those for long documents. The number of steps is stated for MS MARCO only, and
taken from there.
"""

from jaxretr.config import MlmConfig, Optimizer, PretrainData, Train

STEPS = 100_000


def config(data_folder: str = "data") -> MlmConfig:
    return MlmConfig(
        name="ddr_dureader_dam",
        start="bert-base-chinese",
        data=PretrainData(corpora=(f"{data_folder}/dureader",), max_length=190),
        dropout=0.1,
        optimizer=Optimizer(learning_rate=5e-5, weight_decay=0.01, clip=1.0, warmup=1000 / STEPS, final=1.0),
        chunk=64,
        dtype="bfloat16",
        train=Train(steps=STEPS, batch_size=512, log_every=100, save_every=5000, eval_every=5000, best_metric="loss"),
    )
