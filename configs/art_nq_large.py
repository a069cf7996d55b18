"""ART with the paper's large retriever, for a pod: two BERT-large towers, 1,024 dimensions (Sachan et al. 2023, table 4).

The paper names no other setting for this size, so that all others are those of art_nq_t0_3b; the embeddings take a third
more.
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import ArtConfig

ART = run_path(str(Path(__file__).with_name("art_nq_t0_3b.py")))


def config(data_folder: str = "data") -> ArtConfig:
    nq: ArtConfig = ART["config"](data_folder)
    return dataclasses.replace(
        nq,
        name="art_nq_large",
        encoder=dataclasses.replace(nq.encoder, path="bert-large-uncased"),
    )
