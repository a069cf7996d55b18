"""A cross-encoder on a CPU: the small encoder with a new head, and negatives from BM25's ranking.

It shows how such a run goes. For a cross-encoder that beats BM25, start from a pretrained encoder
(docs/guides/training_cross_encoders.md).

The pairs and the corpus are those that ship with the package; --data takes another BEIR folder with the splits train and
dev.
"""

from jaxretr.assets import ENCODER_SMALL, QUICKSTART
from jaxretr.config import Optimizer, PairEncoder, PairNegatives, Ranking, RerankerConfig, RerankerData, Train

FOLDER = str(QUICKSTART)


def config() -> RerankerConfig:
    return RerankerConfig(
        name="cross_encoder_small",
        data=RerankerData(
            train=FOLDER,
            dev_questions=FOLDER,
            dev_qrels=f"{FOLDER}/qrels/dev.tsv",
            dev_depth=20,
        ),
        encoder=PairEncoder(
            path=str(ENCODER_SMALL),
            max_length=96,
            max_question_length=32,
            dropout=0.0,
        ),
        # Random passages show what to look at first; BM25's are too hard to begin with.
        negatives=PairNegatives(bm25=1, last_rank=50, random=2),
        ranking=Ranking(loss="listwise", chunk=16),  # Small pieces stay in a CPU's cache.
        optimizer=Optimizer(learning_rate=5e-4, weight_decay=0.01, warmup=0.1, final=0.0),
        train=Train(steps=600, batch_size=32, log_every=10, save_every=100, eval_every=100, best_metric="ndcg@10"),
    )
