"""jaxretr: train, evaluate and serve dense passage retrievers in JAX."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Imported on first use, so that `import jaxretr` and `jaxretr --help` are instant.
_HOME = {
    "DualEncoder": "jaxretr.models.dual_encoder",
    "CombinedEncoder": "jaxretr.models.combined_encoder",
    "load_config": "jaxretr.experiment",
    "load_encoder": "jaxretr.models.combined_folder",
    "Adapter": "jaxretr.models.adapter",
    "QuestionScorer": "jaxretr.models.question_scorer",
    "ExactIndex": "jaxretr.search.exact",
    "ScannIndex": "jaxretr.search.scann",
    "Bm25Index": "jaxretr.search.bm25",
    "TypoGenerator": "jaxretr.data.typos",
    "UserError": "jaxretr.errors",
    "mteb_model": "jaxretr.evaluate.mteb_adapter",
}

__all__ = [
    "Adapter",
    "Bm25Index",
    "CombinedEncoder",
    "DualEncoder",
    "ExactIndex",
    "QuestionScorer",
    "ScannIndex",
    "TypoGenerator",
    "UserError",
    "load_config",
    "load_encoder",
    "mteb_model",
]

if TYPE_CHECKING:
    from jaxretr.data.typos import TypoGenerator
    from jaxretr.errors import UserError
    from jaxretr.evaluate.mteb_adapter import mteb_model
    from jaxretr.experiment import load_config
    from jaxretr.models.adapter import Adapter
    from jaxretr.models.combined_encoder import CombinedEncoder
    from jaxretr.models.combined_folder import load_encoder
    from jaxretr.models.dual_encoder import DualEncoder
    from jaxretr.models.question_scorer import QuestionScorer
    from jaxretr.search.bm25 import Bm25Index
    from jaxretr.search.exact import ExactIndex
    from jaxretr.search.scann import ScannIndex


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'jaxretr' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)
