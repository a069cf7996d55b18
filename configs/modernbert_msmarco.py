"""ModernBERT-base as a retriever: one tower, mean pooling, MS MARCO passages with mined negatives.

The model is that of Warner et al. 2024 (https://arxiv.org/abs/2412.13663); it was pretrained without a retriever's objective,
hence the high learning rate and the four rounds.

Put the BEIR folder msmarco (corpus, queries, qrels/train.tsv, qrels/dev.tsv) into the folder that --data-folder names,
and mine once:

    jaxretr mine --corpus DATA/msmarco --train DATA/msmarco --ranks 1:200 --out DATA/msmarco-bm25.jsonl
"""

from jaxretr.config import Contrastive, ContrastiveConfig, ContrastiveData, Encoder, Negatives, Optimizer, Train

QUESTIONS = 502_939
BATCH = 512
STEPS = 4 * QUESTIONS // BATCH


def config(data_folder: str = "data") -> ContrastiveConfig:
    return ContrastiveConfig(
        name="modernbert_msmarco",
        data=ContrastiveData(
            train=f"{data_folder}/msmarco",
            mined=f"{data_folder}/msmarco-bm25.jsonl",
            dev_questions=f"{data_folder}/msmarco",
            dev_qrels=f"{data_folder}/msmarco/qrels/dev.tsv",
        ),
        encoder=Encoder(
            path="answerdotai/ModernBERT-base",
            shared=True,
            pooling="mean",
            normalise=True,
            max_question_length=32,
            max_passage_length=144,
            dropout=0.0,
            dtype="bfloat16",
        ),
        negatives=Negatives(static=0, mined=3),
        contrastive=Contrastive(temperature=0.02, chunk=128),
        optimizer=Optimizer(learning_rate=8e-5, weight_decay=0.01, warmup=0.05, final=0.0),
        train=Train(steps=STEPS, batch_size=BATCH, save_every=500, eval_every=STEPS // 4, best_metric="mrr@10"),
    )
