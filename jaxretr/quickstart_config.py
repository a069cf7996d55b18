"""The quickstart's experiment. Imports no JAX, so that `jaxretr train art_small --help` answers at once."""

from pathlib import Path

from jaxretr.assets import ENCODER_SMALL, QUICKSTART, SCORER_SMALL
from jaxretr.config import Art, ArtConfig, ArtData, Encoder, LiveIndex, Optimizer, Scorer, Train


def config(workdir: str = "runs") -> ArtConfig:
    """ART at a size for a CPU; also configs/art_small.py.

    Against the paper's setting (configs/art_nq_t0_3b.py), what a small encoder and few steps ask for: one tower for
    both sides; mean pooling, for nothing was ever trained into [CLS]; cosine instead of the dot product, without which
    a few long vectors are everybody's neighbours; a sharper teacher and student; a higher learning rate; no dropout.
    The index is refreshed every 10 steps and nothing is written back in between: at this learning rate freshly
    written rows share the drift of the question vectors, win over the stale ones and are retrieved again and again.
    """
    return ArtConfig(
        name="art_small",
        data=ArtData(
            corpus=str(QUICKSTART),
            questions=str(QUICKSTART),
            questions_split="train",
            dev_questions=str(QUICKSTART),
            dev_qrels=str(QUICKSTART / "qrels/dev.tsv"),
            token_cache=str(Path(workdir) / "tokens"),
        ),
        encoder=Encoder(
            path=str(ENCODER_SMALL),
            shared=True,
            pooling="mean",
            normalise=True,
            max_question_length=32,
            max_passage_length=96,
            dropout=0.0,
        ),
        scorer=Scorer(path=str(SCORER_SMALL), max_length=96, max_question_length=32, dtype="bfloat16"),
        art=Art(
            top_k=8,
            temperature=0.05,
            teacher_temperature=0.15,
            chunk=16,  # Small pieces stay in a CPU's cache.
        ),
        index=LiveIndex(refresh_every=10, write_back=False, dtype="float32", encode_rows=16),
        optimizer=Optimizer(learning_rate=2e-4, weight_decay=0.01, warmup=0.05),
        train=Train(steps=40, batch_size=16, log_every=5, save_every=20, eval_every=10),
    )
