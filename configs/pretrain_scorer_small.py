"""The small T5 scorer that ships with the package, trained from scratch on a CPU.

Needs wiki_passages and wiki_qa in the folder that JAXRETR_DATA names (default: data). Each step reads thinned-out
windows of passages, and questions of wiki_qa's SQuAD, TyDi and BoolQ train parts, each with its own passage and with
others that BM25 ranks high; the NQ questions, which the quickstart and configs/art_small.py train and test on, are left
out.
"""

import os

from jaxretr.config import Optimizer, PassageLmConfig, PretrainData, T5Shape, Train

DATA = os.environ.get("JAXRETR_DATA", "data")


def config() -> PassageLmConfig:
    return PassageLmConfig(
        name="pretrain_scorer_small",
        data=PretrainData(
            corpora=(f"{DATA}/wiki_qa", f"{DATA}/wiki_passages"),
            pairs=f"{DATA}/wiki_qa",
            exclude_pairs="nq:",
            max_length=112,
        ),
        t5=T5Shape(),
        ranked_questions=8,
        ranked_passages=8,
        dtype="bfloat16",
        optimizer=Optimizer(learning_rate=1e-3, b2=0.98, weight_decay=0.0, warmup=0.03),
        train=Train(steps=3000, batch_size=16, log_every=50, save_every=500, eval_every=500, best_metric="loss"),
    )
