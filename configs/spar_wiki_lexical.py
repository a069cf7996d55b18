"""SPAR's Wiki Lambda with the paper's settings (Chen et al. 2022, sections 3.1 and 4.1), for a pod.

The published run used 64 GPUs with 32 queries each. The training set, 37 million sentences of 22 million passages with
BM25's ranks 1-10 and 46-50:

    jaxretr mine lexical --corpus data/psgs_w100.tsv --out data/spar_wiki --sampling position --dev 2000

Afterwards `jaxretr tune BASE runs/spar_wiki --corpus ... --out runs/spar` finds the weight and writes the whole model.
"""

from jaxretr.config import (
    Contrastive,
    ContrastiveConfig,
    ContrastiveData,
    Encoder,
    Negatives,
    Optimizer,
    Train,
    Validation,
)

BATCH = 2048
EPOCHS = 20
STEPS = EPOCHS * 37_000_000 // BATCH


def config(data_folder: str = "data") -> ContrastiveConfig:
    return ContrastiveConfig(
        name="spar_wiki_lexical",
        data=ContrastiveData(
            train=f"{data_folder}/spar_wiki",
            dev=f"{data_folder}/spar_wiki/dev",
            corpus=f"{data_folder}/psgs_w100.tsv",
        ),
        encoder=Encoder(
            path="google-bert/bert-base-uncased",
            pooling="cls",
            max_question_length=256,
            max_passage_length=256,
            dropout=0.1,
            dtype="bfloat16",
        ),
        # One of the ten positives and one of the five negatives are drawn for each query at each step; another positive
        # of a query that is in the batch counts as a negative, as in the original.
        negatives=Negatives(static=1, mask_known_positives=False, mask_duplicates=False),
        contrastive=Contrastive(temperature=1.0, chunk=64),
        optimizer=Optimizer(learning_rate=3e-5, weight_decay=0.0, clip=2.0, warmup=10_000 / STEPS, final=0.0),
        # The mini-index of two passages a dev query.
        validation=Validation(hard_negatives=1, other_negatives=0),
        train=Train(steps=STEPS, batch_size=BATCH, save_every=500, eval_every=500, best_metric="mrr"),
    )
