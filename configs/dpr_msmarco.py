"""A modern supervised run on MS MARCO passages: larger batches, cosine, BM25-mined and in-step retrieved negatives.

Put the BEIR folder msmarco (corpus, queries, qrels/train.tsv, qrels/dev.tsv) into the folder that --data-folder names,
and mine once:

    jaxretr mine --corpus DATA/msmarco --train DATA/msmarco --ranks 1:200 --out DATA/msmarco-bm25.jsonl
"""

from jaxretr.config import (
    Contrastive,
    ContrastiveConfig,
    ContrastiveData,
    Encoder,
    LiveIndex,
    Negatives,
    Optimizer,
    Train,
)

QUESTIONS = 502_939
BATCH = 1024
STEPS = 10 * QUESTIONS // BATCH


def config(data_folder: str = "data") -> ContrastiveConfig:
    return ContrastiveConfig(
        name="dpr_msmarco",
        data=ContrastiveData(
            train=f"{data_folder}/msmarco",
            mined=f"{data_folder}/msmarco-bm25.jsonl",
            dev_questions=f"{data_folder}/msmarco",
            dev_qrels=f"{data_folder}/msmarco/qrels/dev.tsv",
        ),
        encoder=Encoder(
            path="bert-base-uncased",
            shared=True,
            pooling="mean",
            normalise=True,
            max_question_length=32,
            max_passage_length=144,
            dtype="bfloat16",
        ),
        # Half of MS MARCO's relevant passages are not judged: the first ranks are left alone, and so is what scores
        # nearly as high as the positive.
        negatives=Negatives(static=0, mined=2, retrieved=2, first_rank=10, last_rank=200, margin=0.05),
        contrastive=Contrastive(temperature=0.02, chunk=128),
        index=LiveIndex(refresh_every=500),
        optimizer=Optimizer(learning_rate=5e-5, weight_decay=0.01, warmup=0.05, final=0.0),
        train=Train(steps=STEPS, batch_size=BATCH, save_every=500, eval_every=1000, best_metric="mrr@10"),
    )
