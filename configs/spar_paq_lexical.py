"""SPAR's PAQ Lambda with the paper's settings (Chen et al. 2022, sections 3.1 and 4.1), for a pod.

The training queries are PAQ's 65 million generated questions instead of sentences; 10 epochs instead of 20. Put them in a
file of questions and make the training set, with BM25's ranks 1-10 and 46-50:

    jaxretr mine lexical --corpus data/psgs_w100.tsv --queries data/paq_questions.jsonl --out data/spar_paq --dev 2000

Afterwards `jaxretr tune BASE runs/spar_paq --corpus ... --out runs/spar` finds the weight and writes the whole model.
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import ContrastiveConfig

WIKI = run_path(str(Path(__file__).with_name("spar_wiki_lexical.py")))
STEPS = 10 * 65_000_000 // WIKI["BATCH"]


def config(data_folder: str = "data") -> ContrastiveConfig:
    wiki: ContrastiveConfig = WIKI["config"](data_folder)
    return dataclasses.replace(
        wiki,
        name="spar_paq_lexical",
        data=dataclasses.replace(wiki.data, train=f"{data_folder}/spar_paq", dev=f"{data_folder}/spar_paq/dev"),
        optimizer=dataclasses.replace(wiki.optimizer, warmup=10_000 / STEPS),
        train=dataclasses.replace(wiki.train, steps=STEPS),
    )
