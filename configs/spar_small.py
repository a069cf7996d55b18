"""SPAR's Lambda on a CPU: a wide encoder without layers that learns BM25's ranking from sentences.

The corpus is the 5,000 passages that ship with the package. First make the training set from it; --data names another one
than runs/spar/lexical. Of a larger corpus, with the same files in the same order for both commands:

    jaxretr mine lexical --corpus DATA/wiki_qa --corpus DATA/wiki_passages --limit 160000 --dev 2000 --out runs/spar/lexical
    jaxretr train spar_small --data.corpus DATA/wiki_qa --data.more-corpora DATA/wiki_passages --workdir runs/lambda

What departs from the paper, and why: a bag of word pieces imitates a bag of words in a minute, where a BERT takes days;
its vectors begin as weighted random projections (`fresh_start`); one tower, mean pooling and cosine at a temperature of
.05, as for the other small models. --encoder.path can name a tokenizer with a larger vocabulary than the small
encoder's 8,192 pieces: fewer words fall apart then.
"""

from jaxretr.assets import ENCODER_SMALL, QUICKSTART
from jaxretr.config import (
    BertShape,
    Contrastive,
    ContrastiveConfig,
    ContrastiveData,
    Encoder,
    Negatives,
    Optimizer,
    Train,
    Validation,
)


def config() -> ContrastiveConfig:
    return ContrastiveConfig(
        name="spar_small",
        data=ContrastiveData(
            train="runs/spar/lexical",
            dev="runs/spar/lexical/dev",
            corpus=str(QUICKSTART),
        ),
        encoder=Encoder(
            path=str(ENCODER_SMALL),
            fresh=BertShape(hidden_size=768, layers=0, heads=12, intermediate_size=3072),
            fresh_start="lexical",
            shared=True,
            pooling="mean",
            normalise=True,
            max_question_length=64,
            max_passage_length=128,
            dropout=0.0,
        ),
        # One of the ten positives and one of the five negatives, drawn anew at each step.
        negatives=Negatives(static=1, mask_known_positives=False, mask_duplicates=False),
        contrastive=Contrastive(temperature=0.05, chunk=64),
        optimizer=Optimizer(learning_rate=1.5e-3, weight_decay=0.0, clip=2.0, warmup=0.1, final=0.0),
        validation=Validation(hard_negatives=1, other_negatives=0),
        train=Train(steps=600, batch_size=128, log_every=20, save_every=600, eval_every=200, best_metric="mrr"),
    )
