"""Every setting of every run, as frozen dataclasses: one class a kind of run, one section a concern.

An experiment is a Python file with `def config() -> Config`; command-line overrides and the JSON stored with
each checkpoint go through this package; both refuse a name that does not exist.
"""

from jaxretr.config.art import Art, ArtConfig, ArtData, ScoreTable
from jaxretr.config.choices import (
    ENGINE_LABELS,
    LOWER_IS_BETTER,
    SPLADE,
    AutoDtype,
    Dtype,
    EncodeDtype,
    EngineName,
    Keyboard,
    Pooling,
    QueryWeights,
    Replacement,
    ScorerKind,
    TrackerName,
    TypoProfile,
)
from jaxretr.config.contrastive import (
    OF_ALL_SETS,
    Contrastive,
    ContrastiveConfig,
    ContrastiveData,
    Distillation,
    MixtureSet,
    Negatives,
    Validation,
    of_set,
)
from jaxretr.config.data import DevData, ExampleData, PretrainData, token_stores
from jaxretr.config.index import IndexAware, LiveIndex
from jaxretr.config.kinds import KINDS, check_numbers, from_json, to_json
from jaxretr.config.loading import load, override, settings_of, with_settings
from jaxretr.config.models import AdapterShape, BertShape, Encoder, Joint, PairEncoder, Scorer, T5Shape
from jaxretr.config.names import all_settings, nearest_setting
from jaxretr.config.pretraining import EmbeddingDistillationConfig, MlmConfig, PassageLmConfig
from jaxretr.config.reranker import PairNegatives, Ranking, RerankerConfig, RerankerData
from jaxretr.config.run import Config, Mesh, Optimizer, Tracking, Train
from jaxretr.config.typos import Typos

__all__ = [
    "ENGINE_LABELS",
    "KINDS",
    "LOWER_IS_BETTER",
    "OF_ALL_SETS",
    "SPLADE",
    "AdapterShape",
    "Art",
    "ArtConfig",
    "ArtData",
    "AutoDtype",
    "BertShape",
    "Config",
    "Contrastive",
    "ContrastiveConfig",
    "ContrastiveData",
    "DevData",
    "Distillation",
    "Dtype",
    "EmbeddingDistillationConfig",
    "EncodeDtype",
    "Encoder",
    "EngineName",
    "ExampleData",
    "IndexAware",
    "Joint",
    "Keyboard",
    "LiveIndex",
    "Mesh",
    "MixtureSet",
    "MlmConfig",
    "Negatives",
    "Optimizer",
    "PairEncoder",
    "PairNegatives",
    "PassageLmConfig",
    "Pooling",
    "PretrainData",
    "QueryWeights",
    "Ranking",
    "Replacement",
    "RerankerConfig",
    "RerankerData",
    "ScoreTable",
    "Scorer",
    "ScorerKind",
    "T5Shape",
    "TrackerName",
    "Tracking",
    "Train",
    "TypoProfile",
    "Typos",
    "Validation",
    "all_settings",
    "check_numbers",
    "from_json",
    "load",
    "nearest_setting",
    "of_set",
    "override",
    "settings_of",
    "to_json",
    "token_stores",
    "with_settings",
]
