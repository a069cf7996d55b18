"""jaxretr: train, evaluate and serve dense passage retrievers in JAX."""

import importlib
import inspect
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jaxretr.version import __version__ as __version__

# Imported on first use, so that `import jaxretr` and `jaxretr --help` are instant.
_CLASSES = {
    "Adapter": "jaxretr.models.adapter",
    "Bm25Index": "jaxretr.search.bm25",
    "CausalScorer": "jaxretr.models.pair_scorer",
    "CombinedEncoder": "jaxretr.models.combined_encoder",
    "CrossEncoder": "jaxretr.models.pair_scorer",
    "DualEncoder": "jaxretr.models.dual_encoder",
    "EmbeddingStore": "jaxretr.stores.embedding_store",
    "ExactIndex": "jaxretr.search.exact",
    "QuestionScorer": "jaxretr.models.question_scorer",
    "ScannIndex": "jaxretr.search.scann.index",
    "TypoGenerator": "jaxretr.data.typos",
    "UserError": "jaxretr.errors",
}
_FUNCTIONS = {
    "adapt": "jaxretr.adaptation",
    "assemble": "jaxretr.models.assembling",
    "build_data": "jaxretr.data_files.tfds_builder",
    "combine": "jaxretr.models.combining",
    "configs": "jaxretr.experiment",
    "convert_data": "jaxretr.data_files.conversion",
    "encode": "jaxretr.stores.encoding",
    "evaluate_model": "jaxretr.evaluate.evaluating",
    "evaluate_run": "jaxretr.evaluate.evaluating",
    "evaluate_suite": "jaxretr.evaluate.suite",
    "evaluate_typos": "jaxretr.evaluate.typo_robustness",
    "export": "jaxretr.export.exporting",
    "fuse": "jaxretr.evaluate.run_fusion",
    "inspect_data": "jaxretr.data_files.inspection",
    "load_config": "jaxretr.experiment",
    "load_encoder": "jaxretr.models.combined_encoder",
    "load_scorer": "jaxretr.models.any_scorer",
    "mine": "jaxretr.mine.mining",
    "mine_lexical": "jaxretr.mine.lexical",
    "mine_scores": "jaxretr.teacher_scores",
    "mteb_model": "jaxretr.evaluate.mteb_adapter",
    "report": "jaxretr.reporting.run_report",
    "rerank": "jaxretr.evaluate.reranking",
    "run_overlap": "jaxretr.evaluate.run_overlap",
    "score": "jaxretr.data_files.scoring",
    "search": "jaxretr.search.searching",
    "search_bm25": "jaxretr.search.bm25.searching",
    "train": "jaxretr.train",
    "tune": "jaxretr.evaluate.weight_tuning",
    "update": "jaxretr.export.exporting",
    "validate_data": "jaxretr.data_files.validation",
    "verify": "jaxretr.export.exporting",
    "word_order": "jaxretr.evaluate.word_order",
    "write_typos": "jaxretr.data.typos.writing",
}

__all__ = [
    "Adapter",
    "Bm25Index",
    "CausalScorer",
    "CombinedEncoder",
    "CrossEncoder",
    "DualEncoder",
    "EmbeddingStore",
    "ExactIndex",
    "QuestionScorer",
    "ScannIndex",
    "TypoGenerator",
    "UserError",
    "adapt",
    "assemble",
    "build_data",
    "combine",
    "configs",
    "convert_data",
    "encode",
    "evaluate_model",
    "evaluate_run",
    "evaluate_suite",
    "evaluate_typos",
    "export",
    "fuse",
    "inspect_data",
    "load_config",
    "load_encoder",
    "load_scorer",
    "mine",
    "mine_lexical",
    "mine_scores",
    "mteb_model",
    "report",
    "rerank",
    "run_overlap",
    "score",
    "search",
    "search_bm25",
    "train",
    "tune",
    "update",
    "validate_data",
    "verify",
    "word_order",
    "write_typos",
]

if TYPE_CHECKING:
    from jaxretr.adaptation import adapt
    from jaxretr.data.typos import TypoGenerator
    from jaxretr.data.typos.writing import write_typos
    from jaxretr.data_files.conversion import convert_data
    from jaxretr.data_files.inspection import inspect_data
    from jaxretr.data_files.scoring import score
    from jaxretr.data_files.tfds_builder import build_data
    from jaxretr.data_files.validation import validate_data
    from jaxretr.errors import UserError
    from jaxretr.evaluate.evaluating import evaluate_model, evaluate_run
    from jaxretr.evaluate.mteb_adapter import mteb_model
    from jaxretr.evaluate.reranking import rerank
    from jaxretr.evaluate.run_fusion import fuse
    from jaxretr.evaluate.run_overlap import run_overlap
    from jaxretr.evaluate.suite import evaluate_suite
    from jaxretr.evaluate.typo_robustness import evaluate_typos
    from jaxretr.evaluate.weight_tuning import tune
    from jaxretr.evaluate.word_order import word_order
    from jaxretr.experiment import configs, load_config
    from jaxretr.export.exporting import export, update, verify
    from jaxretr.mine.lexical import mine_lexical
    from jaxretr.mine.mining import mine
    from jaxretr.models.adapter import Adapter
    from jaxretr.models.any_scorer import load_scorer
    from jaxretr.models.assembling import assemble
    from jaxretr.models.combined_encoder import CombinedEncoder, load_encoder
    from jaxretr.models.combining import combine
    from jaxretr.models.dual_encoder import DualEncoder
    from jaxretr.models.pair_scorer import CausalScorer, CrossEncoder
    from jaxretr.models.question_scorer import QuestionScorer
    from jaxretr.reporting.run_report import report
    from jaxretr.search.bm25 import Bm25Index
    from jaxretr.search.bm25.searching import search_bm25
    from jaxretr.search.exact import ExactIndex
    from jaxretr.search.scann.index import ScannIndex
    from jaxretr.search.searching import search
    from jaxretr.stores.embedding_store import EmbeddingStore
    from jaxretr.stores.encoding import encode
    from jaxretr.teacher_scores import mine_scores
    from jaxretr.train import train


def __getattr__(name: str) -> Any:
    home = _CLASSES.get(name) or _FUNCTIONS.get(name)
    if home is None:
        raise AttributeError(f"module 'jaxretr' has no attribute '{name}'")
    found = importlib.import_module(home)
    # Importing may have bound a module of that name, which by now is callable.
    return globals().get(name) or getattr(found, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# ---- names that are both a module and a function ---------------------------------------------------------------------


class _CallableModule(ModuleType):
    """A module that can be called like the public function of the same name: `jaxretr.search(...)`, and
    `jaxretr.search.exact` within it."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return _function_of(self)(*arguments, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(_function_of(self))


def _function_of(module: ModuleType) -> Any:
    name = module.__name__.removeprefix("jaxretr.")
    return vars(importlib.import_module(_FUNCTIONS[name]))[name]


class _Package(ModuleType):
    """Package whose modules become callable when the import system binds them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FUNCTIONS and type(value) is ModuleType:
            value.__class__ = _CallableModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
