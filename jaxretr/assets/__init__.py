"""The data and models that ship with the package: a small corpus with questions, a small encoder and a small scorer."""

from pathlib import Path

_HERE = Path(__file__).parent

QUICKSTART = _HERE / "quickstart"
"""BEIR folder of 5,000 passages and the questions they answer; see its NOTICE.txt."""

REPHRASED = QUICKSTART / "rephrased.jsonl"
"""Sixty of its test questions in other words, with the same ids."""

ENCODER_SMALL = _HERE / "encoder_small"
"""BERT, 3 layers of 256, which learnt all-MiniLM-L6-v2's embeddings; see its model card."""

SCORER_SMALL = _HERE / "scorer_small"
"""T5 scorer, 2 + 3 layers of 192; see its model card."""

ARXIV_VISION = _HERE / "arxiv/cv"
"""BEIR folder of 2,500 abstracts of cs.CV and their titles, with the splits train, dev and test; see NOTICE.txt."""

ARXIV_LANGUAGE = _HERE / "arxiv/cl"
"""The same of cs.CL: another domain of the same collection."""

MISSPELLINGS = _HERE / "misspellings/misspellings.json.gz"
"""{word: [misspellings]} of 17,833 English words; see NOTICE.txt there."""
