"""DPR as published (Karpukhin et al. 2020) on Natural Questions: two BERT-base towers, in-batch and BM25 negatives.

Put biencoder-nq-train.json and biencoder-nq-dev.json, the original's training files, into the folder that --data-folder
names. The paper states a learning rate of 1e-5, the authors' code has 2e-5, which is taken here; the code selects by
the validation loss for 30 epochs and by the average rank from then on, of which the second is taken.
"""

from jaxretr.config import Contrastive, ContrastiveConfig, ContrastiveData, Encoder, Negatives, Optimizer, Train

QUESTIONS = 58_880
BATCH = 128
STEPS = 40 * QUESTIONS // BATCH


def config(data_folder: str = "data") -> ContrastiveConfig:
    return ContrastiveConfig(
        name="dpr_nq",
        data=ContrastiveData(
            train=f"{data_folder}/biencoder-nq-train.json", dev=f"{data_folder}/biencoder-nq-dev.json"
        ),
        encoder=Encoder(
            path="bert-base-uncased",
            pooling="cls",
            max_question_length=256,
            max_passage_length=256,
            dropout=0.1,
            dtype="bfloat16",
        ),
        negatives=Negatives(
            static=1,
            # As the original: every other passage of the batch is a negative, whatever it is.
            mask_known_positives=False,
            mask_duplicates=False,
        ),
        contrastive=Contrastive(temperature=1.0, positives="draw", chunk=64),
        optimizer=Optimizer(learning_rate=2e-5, weight_decay=0.0, clip=2.0, warmup=1237 / STEPS, final=0.0),
        train=Train(steps=STEPS, batch_size=BATCH, save_every=500, eval_every=460, best_metric="average_rank"),
    )
