"""A cross-encoder on MS MARCO passages: all-MiniLM-L6-v2 with a new head, and negatives that were mined.

Localized contrastive estimation (Gao et al. 2021, https://arxiv.org/abs/2101.08751): each positive against seven passages of
the first stage in a listwise loss. Other encoders: --encoder.path. It has not been run to the end yet.

Put the BEIR folder msmarco (corpus, queries, qrels/train.tsv, qrels/dev.tsv) into the folder that --data-folder names,
mine, and search the dev questions once:

    jaxretr mine --corpus DATA/msmarco --train DATA/msmarco --ranks 1:200 --out DATA/msmarco-bm25.jsonl
    jaxretr bm25 --corpus DATA/msmarco --queries DATA/msmarco -k 100 --out DATA/msmarco-dev.trec
"""

from jaxretr.config import Optimizer, PairEncoder, PairNegatives, Ranking, RerankerConfig, RerankerData, Train

QUESTIONS = 502_939
BATCH = 64
STEPS = 2 * QUESTIONS // BATCH


def config(data_folder: str = "data") -> RerankerConfig:
    return RerankerConfig(
        name="cross_encoder_msmarco",
        data=RerankerData(
            train=f"{data_folder}/msmarco",
            mined=f"{data_folder}/msmarco-bm25.jsonl",
            dev_questions=f"{data_folder}/msmarco",
            dev_qrels=f"{data_folder}/msmarco/qrels/dev.tsv",
            dev_run=f"{data_folder}/msmarco-dev.trec",
            dev_depth=100,
        ),
        encoder=PairEncoder(
            path="sentence-transformers/all-MiniLM-L6-v2",
            max_length=192,
            max_question_length=32,
            dtype="bfloat16",
        ),
        negatives=PairNegatives(mined=7),
        ranking=Ranking(loss="listwise", chunk=128),
        optimizer=Optimizer(learning_rate=2e-5, weight_decay=0.01, warmup=0.1, final=0.0),
        train=Train(steps=STEPS, batch_size=BATCH, save_every=1000, eval_every=STEPS // 4, best_metric="mrr@10"),
    )
