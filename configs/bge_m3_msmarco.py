"""Fine-tunes BGE-M3's dense embedding (XLM-RoBERTa-large, 568M parameters) on MS MARCO passages with mined negatives.

[CLS], cosines and a temperature of 0.02, as it was trained (Chen et al. 2024, https://arxiv.org/abs/2402.03216); its sparse
and multi-vector heads are not used.

Put the BEIR folder msmarco (corpus, queries, qrels/train.tsv, qrels/dev.tsv) into the folder that --data-folder names,
and mine once:

    jaxretr mine --corpus DATA/msmarco --train DATA/msmarco --ranks 1:200 --out DATA/msmarco-bm25.jsonl
"""

from jaxretr.config import Contrastive, ContrastiveConfig, ContrastiveData, Encoder, Negatives, Optimizer, Train

QUESTIONS = 502_939
BATCH = 512
STEPS = 2 * QUESTIONS // BATCH


def config(data_folder: str = "data") -> ContrastiveConfig:
    return ContrastiveConfig(
        name="bge_m3_msmarco",
        data=ContrastiveData(
            train=f"{data_folder}/msmarco",
            mined=f"{data_folder}/msmarco-bm25.jsonl",
            dev_questions=f"{data_folder}/msmarco",
            dev_qrels=f"{data_folder}/msmarco/qrels/dev.tsv",
        ),
        encoder=Encoder(
            path="BAAI/bge-m3",
            shared=True,
            pooling="cls",
            normalise=True,
            max_question_length=32,
            max_passage_length=144,
            dropout=0.0,
            dtype="bfloat16",
        ),
        negatives=Negatives(static=0, mined=3),
        contrastive=Contrastive(temperature=0.02, chunk=64),
        optimizer=Optimizer(learning_rate=1e-5, weight_decay=0.01, warmup=0.1, final=0.0),
        train=Train(steps=STEPS, batch_size=BATCH, save_every=500, eval_every=STEPS // 2, best_metric="mrr@10"),
    )
