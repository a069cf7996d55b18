"""The kinds of config, as JSON as each checkpoint and run folder stores them, and the checks that they share."""

import dataclasses
import json
import re
from typing import Any

from jaxretr.config.art import ArtConfig
from jaxretr.config.contrastive import ContrastiveConfig
from jaxretr.config.pretraining import EmbeddingDistillationConfig, MlmConfig, PassageLmConfig
from jaxretr.config.reranker import RerankerConfig
from jaxretr.config.run import Config
from jaxretr.runtime.errors import UsageError, did_you_mean
from jaxretr.runtime.json_dataclass import dataclass_from

KINDS: dict[str, type[Config]] = {
    "art": ArtConfig,
    "contrastive": ContrastiveConfig,
    "cross_encoder": RerankerConfig,
    "mlm": MlmConfig,
    "passage_lm": PassageLmConfig,
    "embedding_distillation": EmbeddingDistillationConfig,
}

# What evaluations measure: by searching, with a cut that the user chooses; the others, by what is held out.
_AT_K, _WITHOUT_K = (
    ("ndcg", "mrr", "recall", "acc"),
    ("mrr", "loss", "average_rank", "perplexity", "cosine", "teacher@5"),
)
_METRIC = re.compile(rf"(.+:)?(typo_)?(({'|'.join(_AT_K)})@[1-9][0-9]*|{'|'.join(_WITHOUT_K)})")


def check_numbers(config: Config) -> None:
    """Refuse numbers and metrics that no run can have, and a way to lie on the devices that this kind of run cannot."""
    config.check_sections()
    if not _METRIC.fullmatch(metric := config.train.best_metric):
        hint = did_you_mean(metric, [*(f"{name}@10" for name in _AT_K), *_WITHOUT_K])
        raise UsageError(
            f"train.best_metric={metric}: no metric of an evaluation{hint or ', such as mrr@10'}; set train.best_metric"
        )
    if config.mesh.shard_parameters and not isinstance(config, ArtConfig | ContrastiveConfig):
        raise UsageError(
            "mesh.shard_parameters: only art and contrastive runs can split their parameters; leave it out, or split with "
            "mesh.model"
        )
    if config.train.suites and not isinstance(config, ArtConfig | ContrastiveConfig):
        raise UsageError(
            "train.suites: only art and contrastive runs evaluate on collections; leave it out, and measure the model with "
            "jaxretr evaluate --suite"
        )


# ---- as JSON ---------------------------------------------------------------------------------------------------------

# The section `art` held the settings of the index before `index` was a section: old name in `art` -> name in `index`.
_INDEX_IN_ART = {
    "refresh_every": "refresh_every",
    "write_back": "write_back",
    "index_dtype": "dtype",
    "block_rows": "block_rows",
    "encode_rows": "encode_rows",
}


def to_json(config: Config) -> dict[str, Any]:
    """Return the config as plain JSON values, with its kind."""
    kind = next(name for name, cls in KINDS.items() if type(config) is cls)
    # Through json once, so that tuples become lists and a reader gets what a file would give.
    return {"kind": kind, **json.loads(json.dumps(dataclasses.asdict(config)))}


def from_json(values: dict[str, Any], where: str = "config") -> Config:
    """Rebuild a config from `to_json`'s values; an unknown key is a UsageError with a suggestion."""
    if not isinstance(values, dict):
        raise UsageError(f"{where}: a JSON object is expected, not {type(values).__name__}; restore the file")
    values = dict(values)
    kind = values.pop("kind", None)
    if kind not in KINDS:
        raise UsageError(f"{where}: unknown kind {kind!r}{did_you_mean(str(kind), KINDS)}")
    if kind == "art" and "index" not in values and isinstance(values.get("art"), dict):
        art = dict(values["art"])
        index = {new: art.pop(old) for old, new in _INDEX_IN_ART.items() if old in art}
        values |= {"art": art} | ({"index": index} if index else {})
    return dataclass_from(KINDS[kind], values, where)
