"""The second stage of the small T5 scorer that ships with the package: it learns to rank, on a CPU.

Goes on from the run of configs/pretrain_scorer_small.py that --start names (default: runs/scorer/model), with the
same data. Each step has questions of wiki_qa's SQuAD, TyDi and BoolQ train parts, each with its own passage and seven of
BM25's first 32; the NQ questions, which the quickstart and configs/art_small.py train and test on, are left out.
"""

from jaxretr.config import Optimizer, PassageLmConfig, PretrainData, Train


def config(data_folder: str = "data") -> PassageLmConfig:
    return PassageLmConfig(
        name="rank_scorer_small",
        data=PretrainData(
            corpora=(f"{data_folder}/wiki_qa", f"{data_folder}/wiki_passages"),
            pairs=f"{data_folder}/wiki_qa",
            exclude_pairs="nq:",
            max_length=112,
        ),
        start="runs/scorer/model",
        ranked_questions=8,
        ranked_passages=8,
        ranked_temperature=0.25,
        dtype="bfloat16",
        optimizer=Optimizer(learning_rate=3e-4, b2=0.98, weight_decay=0.0, warmup=0.03, final=0.0),
        train=Train(steps=1500, batch_size=8, log_every=50, save_every=500, eval_every=500, best_metric="loss"),
    )
