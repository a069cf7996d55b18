"""Qwen3-Embedding-0.6B trained as a whole, on the examples and for the steps of qwen3_embedding_lora.py.

Parameters and moments are split over the devices, so that 16 TPU v5e chips also train the 4B
(--encoder.path Qwen/Qwen3-Embedding-4B), see docs/results/encoder_plans.md.
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import ContrastiveConfig, Mesh

LORA = run_path(str(Path(__file__).with_name("qwen3_embedding_lora.py")))


def config(data_folder: str = "data") -> ContrastiveConfig:
    lora: ContrastiveConfig = LORA["config"](data_folder)
    return dataclasses.replace(
        lora,
        name="qwen3_embedding_full",
        encoder=dataclasses.replace(lora.encoder, adapter=None),
        optimizer=dataclasses.replace(lora.optimizer, learning_rate=1e-5),
        mesh=Mesh(shard_parameters=True),
    )
