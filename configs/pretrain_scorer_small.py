"""The small T5 scorer that ships with the package, trained from scratch on a CPU.

Needs wiki_passages and wiki_qa in the folder that --data-folder names (default: data). Two fifths of each batch are
question-passage pairs of wiki_qa's SQuAD, TyDi and BoolQ train parts; the NQ questions, which the quickstart and
configs/art_small.py train and test on, are left out.
"""

from jaxretr.config import Optimizer, PassageLmConfig, PretrainData, T5Shape, Train


def config(data_folder: str = "data") -> PassageLmConfig:
    return PassageLmConfig(
        name="pretrain_scorer_small",
        data=PretrainData(
            corpora=(f"{data_folder}/wiki_qa", f"{data_folder}/wiki_passages"),
            pairs=f"{data_folder}/wiki_qa",
            exclude_pairs="nq:",
            pair_share=0.4,
            max_length=112,
        ),
        t5=T5Shape(),
        optimizer=Optimizer(learning_rate=1e-3, b2=0.98, weight_decay=0.0, warmup=0.03),
        train=Train(steps=2000, batch_size=32, log_every=50, save_every=500, eval_every=500, best_metric="loss"),
    )
