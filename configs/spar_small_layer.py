"""SPAR's Lambda with one layer, which counts repeated words as BM25 does before its first step.

    jaxretr train spar_small_layer --data LEXICAL --workdir runs/spar_layer

As spar_small.py, with the same data, except for a layer as wide as its vectors, which makes each word's weight k1 tf / (tf +
k1) (`lexical_start` in jaxretr/models/starts.py). It costs as much as four layers of BERT-base's width for each 1,536
dimensions. docs/results/spar.md has what that brings, and what it takes.
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import BertShape, ContrastiveConfig

SMALL = run_path(str(Path(__file__).with_name("spar_small.py")))


def config() -> ContrastiveConfig:
    small: ContrastiveConfig = SMALL["config"]()
    # Little in between: the layer is there for its attention.
    shape = BertShape(hidden_size=1024, layers=1, heads=8, intermediate_size=256)
    return dataclasses.replace(
        small,
        name="spar_small_layer",
        encoder=dataclasses.replace(small.encoder, fresh=shape),
        contrastive=dataclasses.replace(small.contrastive, chunk=16),
        optimizer=dataclasses.replace(small.optimizer, learning_rate=3e-4),
        train=dataclasses.replace(small.train, steps=200, batch_size=32),
    )
