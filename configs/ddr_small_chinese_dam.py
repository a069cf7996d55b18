"""DDR in Chinese on a CPU, first part: a small encoder of characters, by masked language modelling from scratch.

Needs cmrc2018_zh, a BEIR folder of 1,104 passages of Chinese Wikipedia with the splits trial and dev, in the folder that
--data-folder names (default: data). In order, or all at once by benchmarks/ddr_chinese.py:

    jaxretr train configs/ddr_small_chinese_dam.py --workdir runs/ddr_chinese/dam
    jaxretr train configs/ddr_small_chinese_rem.py --workdir runs/ddr_chinese/rem
    jaxretr evaluate runs/ddr_chinese/rem --beir data/cmrc2018_zh --split dev

The vocabulary is learnt from the corpus. BERT's rules set every Chinese character apart, so that its pieces are single
characters (and words of the Latin alphabet).
"""

from jaxretr.config import BertShape, MlmConfig, Optimizer, PretrainData, Train


def config(data_folder: str = "data") -> MlmConfig:
    return MlmConfig(
        name="ddr_small_chinese_dam",
        # All passages are read for the vocabulary, as many characters stand in one or two of them alone. 4,443 characters
        # make up 99.95% of the text; that leaves some hundred entries for words in Latin letters.
        data=PretrainData(
            corpora=(f"{data_folder}/cmrc2018_zh",), vocab_size=5120, vocabulary_every=1, max_length=128, held_out=64
        ),
        bert=BertShape(hidden_size=128, layers=4, heads=4, intermediate_size=512),
        chunk=16,
        optimizer=Optimizer(learning_rate=1e-3, b2=0.98, weight_decay=0.01, warmup=0.05),
        train=Train(steps=300, batch_size=32, log_every=50, save_every=300, eval_every=300, best_metric="loss"),
    )
