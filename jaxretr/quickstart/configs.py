"""The quickstart's experiment. Imports no JAX, so that `jaxretr train art_small --help` answers at once."""

from pathlib import Path

from jaxretr.assets import ENCODER_SMALL, QUICKSTART, SCORER_SMALL
from jaxretr.config import (
    Art,
    ArtConfig,
    ArtData,
    BertShape,
    Contrastive,
    ContrastiveConfig,
    ContrastiveData,
    Encoder,
    LiveIndex,
    Negatives,
    Optimizer,
    Scorer,
    Train,
    Validation,
)


def config(workdir: str = "runs") -> ArtConfig:
    """ART at a size for a CPU; also configs/art_small.py.

    Differences from the paper's setting (configs/art_nq_t0_3b.py), for a small encoder and few steps: one tower for
    both sides; mean pooling and cosine, as the encoder was trained; a higher learning rate; no dropout; and the
    posterior under the encoder as its target, since a T5 of four million parameters alone ranks no better than the
    encoder does. The index is refreshed every 16 steps and nothing is written back in between.
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
            normalise=True,
            max_question_length=32,
            max_passage_length=96,
            dropout=0.0,
        ),
        scorer=Scorer(path=str(SCORER_SMALL), max_length=96, max_question_length=32, dtype="bfloat16"),
        art=Art(
            top_k=8,
            temperature=0.05,
            teacher_temperature=0.2,
            prior_weight=1.0,
            chunk=16,  # Small pieces stay in a CPU's cache.
        ),
        index=LiveIndex(refresh_every=16, write_back=False, dtype="float32", encode_rows=16),
        optimizer=Optimizer(learning_rate=1e-4, weight_decay=0.01, warmup=0.05),
        train=Train(steps=32, batch_size=16, log_every=4, save_every=16, eval_every=16, best_metric="ndcg@10"),
    )


def lexical_config(workdir: str = "runs") -> ContrastiveConfig:
    """SPAR's Lambda for the quickstart, trained on the set that `jaxretr mine lexical` makes of its passages.

    The model is a bag of word pieces: an encoder without layers, which begins as weighted random projections. It reads
    the same tokens as the small encoder, so that both can be trained and searched as one.
    """
    base = config(workdir).encoder
    return ContrastiveConfig(
        name="quickstart_lexical",
        data=ContrastiveData(
            train=f"{workdir}/sentences",
            dev=f"{workdir}/sentences/dev",
            corpus=str(QUICKSTART),
            token_cache=str(Path(workdir) / "tokens"),
        ),
        encoder=Encoder(
            path=str(ENCODER_SMALL),
            fresh=BertShape(hidden_size=512, layers=0, heads=8, intermediate_size=2048),
            fresh_start="lexical",
            shared=True,
            pooling="mean",
            normalise=True,
            max_question_length=base.max_question_length,
            max_passage_length=base.max_passage_length,
            dropout=0.0,
        ),
        negatives=Negatives(static=1, mask_known_positives=False, mask_duplicates=False),
        contrastive=Contrastive(temperature=0.05, chunk=64),
        optimizer=Optimizer(learning_rate=5e-4, weight_decay=0.0, clip=2.0, warmup=0.1, final=0.0),
        validation=Validation(hard_negatives=1, other_negatives=0),
        train=Train(steps=80, batch_size=128, log_every=20, save_every=80, eval_every=80, best_metric="mrr"),
    )
