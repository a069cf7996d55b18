"""jaxretr: train, evaluate and serve dense passage retrievers in JAX."""

import importlib
from typing import TYPE_CHECKING, Any

from jaxretr.version import __version__ as __version__

# Imported on first use, so that `import jaxretr` and `jaxretr --help` are instant.
_HOME = {
    "DualEncoder": "jaxretr.models.dual_encoder",
    "EmbeddingStore": "jaxretr.stores.embedding_store",
    "CombinedEncoder": "jaxretr.models.combined_encoder",
    "load_config": "jaxretr.experiment",
    "load_encoder": "jaxretr.models.formats.combined_folder",
    "Adapter": "jaxretr.models.adapter",
    "QuestionScorer": "jaxretr.models.question_scorer",
    "ExactIndex": "jaxretr.search.exact",
    "ScannIndex": "jaxretr.search.scann.index",
    "Bm25Index": "jaxretr.search.bm25",
    "TypoGenerator": "jaxretr.data.typos",
    "UserError": "jaxretr.errors",
    "encode": "jaxretr.stores.encoding",
    "evaluate_model": "jaxretr.evaluate.beir",
    "mteb_model": "jaxretr.evaluate.mteb_adapter",
}

# Functions that have a module's name: importing that module puts it in the function's place, so it can be called itself.
_CALLABLE = ("search", "train")

__all__ = [
    "Adapter",
    "Bm25Index",
    "CombinedEncoder",
    "DualEncoder",
    "EmbeddingStore",
    "ExactIndex",
    "QuestionScorer",
    "ScannIndex",
    "TypoGenerator",
    "UserError",
    "encode",
    "evaluate_model",
    "load_config",
    "load_encoder",
    "mteb_model",
    "search",
    "train",
]

if TYPE_CHECKING:
    from jaxretr.data.typos import TypoGenerator
    from jaxretr.errors import UserError
    from jaxretr.evaluate.beir import evaluate_model
    from jaxretr.evaluate.mteb_adapter import mteb_model
    from jaxretr.experiment import load_config
    from jaxretr.models.adapter import Adapter
    from jaxretr.models.combined_encoder import CombinedEncoder
    from jaxretr.models.dual_encoder import DualEncoder
    from jaxretr.models.formats.combined_folder import load_encoder
    from jaxretr.models.question_scorer import QuestionScorer
    from jaxretr.search.bm25 import Bm25Index
    from jaxretr.search.exact import ExactIndex
    from jaxretr.search.scann.index import ScannIndex
    from jaxretr.searching import search
    from jaxretr.stores.embedding_store import EmbeddingStore
    from jaxretr.stores.encoding import encode
    from jaxretr.train import train


def __getattr__(name: str) -> Any:
    if name in _CALLABLE:
        return importlib.import_module(f"jaxretr.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'jaxretr' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
