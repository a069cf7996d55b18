"""Typo-robust training on a CPU: dpr_small.py with one misspelt form of each question a step, in the paper's two terms.

    jaxretr train configs/typos_small.py --workdir runs/typos
    jaxretr evaluate runs/typos --beir DATA/wiki_qa --split squad,tydi --typos

Other ways to learn it, as settings (jaxretr/training/steps/typo_terms.py has the formulas):

  augmentation alone        --typos.contrast-weight 0 --typos.passage-weight 0 --typos.augmentation 0.5
  contrast alone            --typos.passage-weight 0
  self-teaching             --typos.contrast-weight 0 --typos.passage-weight 0 --typos.self-teaching-weight 1
  multi-positive, 40 forms  --typos.contrast-weight 0 --typos.passage-weight 0 --typos.variants 40 --typos.pre-drawn 40
                            --contrastive.symmetric --typos.multi-positive --typos.clean-weight 0.5
                            --typos.self-teaching-weight 0.4 --typos.passage-self-teaching-weight 0.1

The same settings go with configs/art_small.py, spar_small.py and ddr_small_rem.py.
"""

import dataclasses
from pathlib import Path
from runpy import run_path

from jaxretr.config import ContrastiveConfig, Typos

DPR = run_path(str(Path(__file__).with_name("dpr_small.py")))


def config() -> ContrastiveConfig:
    return dataclasses.replace(
        DPR["config"](),
        name="typos_small",
        typos=Typos(profile="dictionary", contrast_weight=1.0, passage_weight=1.0),
    )
