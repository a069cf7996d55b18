"""ART on a CPU in a few minutes: the embedded questions and passages, the small encoder and scorer of the package.

Against the paper's setting (art_nq_t0_3b.py): mean pooling, for the small encoder was never trained to put anything
into [CLS]; a smaller K and batch, a shorter passage and a higher learning rate, for it is small; no dropout, which
helps no model that sees each question twice.
"""

from jaxretr.assets import ENCODER_SMALL, QUICKSTART, SCORER_SMALL
from jaxretr.config import Art, ArtConfig, ArtData, Encoder, Optimizer, Scorer, Train


def config() -> ArtConfig:
    return ArtConfig(
        name="art_small",
        data=ArtData(
            corpus=str(QUICKSTART),
            questions=str(QUICKSTART),
            questions_split="train",
            dev_questions=str(QUICKSTART),
            dev_qrels=str(QUICKSTART / "qrels/dev.tsv"),
        ),
        encoder=Encoder(
            path=str(ENCODER_SMALL),
            pooling="mean",
            max_question_length=32,
            max_passage_length=112,
            dropout=0.0,
        ),
        scorer=Scorer(path=str(SCORER_SMALL), max_length=112, max_question_length=32),
        art=Art(top_k=8, refresh_every=50, index_dtype="float32"),
        optimizer=Optimizer(learning_rate=3e-4, weight_decay=0.01, warmup=0.05),
        train=Train(steps=200, batch_size=16, log_every=10, save_every=50, eval_every=50),
    )
