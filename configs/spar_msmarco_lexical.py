"""SPAR's Lambda for MS MARCO (Chen et al. 2022, section 4.3): every sentence of the collection is a query.

    jaxretr mine lexical --corpus data/collection.tsv --out data/spar_msmarco --sampling all --k1 0.82 --b 0.68 --dev 2000

Another sparse retriever's run (UniCOIL's, in the paper) is a teacher as well: `--queries FILE --teacher run:FILE`.
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import ContrastiveConfig, ContrastiveData

WIKI = run_path(str(Path(__file__).with_name("spar_wiki_lexical.py")))
QUERIES = 28_000_000
STEPS = WIKI["EPOCHS"] * QUERIES // WIKI["BATCH"]


def config(data_folder: str = "data") -> ContrastiveConfig:
    wiki: ContrastiveConfig = WIKI["config"](data_folder)
    return dataclasses.replace(
        wiki,
        name="spar_msmarco_lexical",
        data=ContrastiveData(
            train=f"{data_folder}/spar_msmarco",
            dev=f"{data_folder}/spar_msmarco/dev",
            corpus=f"{data_folder}/collection.tsv",
        ),
        optimizer=dataclasses.replace(wiki.optimizer, warmup=10_000 / STEPS),
        train=dataclasses.replace(wiki.train, steps=STEPS),
    )
