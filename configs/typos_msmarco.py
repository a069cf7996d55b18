"""Typo-robust DPR on MS MARCO passages (Sidiropoulos & Kanoulas 2022): both terms, one fresh typo of each query a step.

Two BERT-base towers, [CLS], inner products; L = CE(q -> P) + CE(q -> Q~) + CE(q~ -> P), all weights 1, with the
dictionary profile of typos. The batch, the rate and the hard negative of each query are DPR's own, which the paper builds
on. Put the BEIR folder msmarco (corpus, queries, qrels/train.tsv, qrels/dev.tsv) into the folder that --data-folder names,
and mine once:

    jaxretr mine --corpus DATA/msmarco --train DATA/msmarco --ranks 1:200 --out DATA/msmarco-bm25.jsonl

Validation is on clean queries and on the same queries with fixed typos (typo_mrr@10).
"""

from jaxretr.config import Contrastive, ContrastiveConfig, ContrastiveData, Encoder, Negatives, Optimizer, Train, Typos

QUESTIONS = 502_939
BATCH = 128
STEPS = 10 * QUESTIONS // BATCH


def config(data_folder: str = "data") -> ContrastiveConfig:
    return ContrastiveConfig(
        name="typos_msmarco",
        data=ContrastiveData(
            train=f"{data_folder}/msmarco",
            mined=f"{data_folder}/msmarco-bm25.jsonl",
            dev_questions=f"{data_folder}/msmarco",
            dev_qrels=f"{data_folder}/msmarco/qrels/dev.tsv",
        ),
        encoder=Encoder(
            path="bert-base-uncased",
            pooling="cls",
            max_question_length=32,
            max_passage_length=256,
            dropout=0.1,
            dtype="bfloat16",
        ),
        # As the original: every other passage of the batch is a negative, whatever it is.
        negatives=Negatives(static=0, mined=1, mask_known_positives=False, mask_duplicates=False),
        contrastive=Contrastive(temperature=1.0, chunk=64),
        typos=Typos(profile="dictionary", contrast_weight=1.0, passage_weight=1.0),
        optimizer=Optimizer(learning_rate=2e-5, weight_decay=0.0, clip=2.0, warmup=0.05, final=0.0),
        train=Train(steps=STEPS, batch_size=BATCH, save_every=1000, eval_every=5000, best_metric="typo_mrr@10"),
    )
