"""The kinds of config, each with its name in JSON, and the checks that they share."""

from jaxretr.config.art import ArtConfig
from jaxretr.config.contrastive import ContrastiveConfig
from jaxretr.config.pretraining import EmbeddingDistillationConfig, MlmConfig, PassageLmConfig
from jaxretr.config.reranker import RerankerConfig
from jaxretr.config.run import Config
from jaxretr.errors import UsageError

KINDS: dict[str, type[Config]] = {
    "art": ArtConfig,
    "contrastive": ContrastiveConfig,
    "cross_encoder": RerankerConfig,
    "mlm": MlmConfig,
    "passage_lm": PassageLmConfig,
    "embedding_distillation": EmbeddingDistillationConfig,
}


def check_numbers(config: Config) -> None:
    """Refuses counts that no run can have, and a way to lie on the devices that this kind of run cannot."""
    for name in ("steps", "batch_size", "log_every", "save_every", "eval_every", "keep"):
        if (value := getattr(config.train, name)) < 1:
            raise UsageError(f"train.{name}={value}: must be at least 1; set --train.{name.replace('_', '-')}")
    if config.train.stop_factor is not None and not config.train.stop_factor > 1:
        raise UsageError(f"train.stop_factor={config.train.stop_factor}: must be above 1; set --train.stop-factor")
    if isinstance(config, ArtConfig | ContrastiveConfig):
        config.index.check()
    if config.mesh.shard_parameters and not isinstance(config, ArtConfig | ContrastiveConfig):
        raise UsageError(
            "mesh.shard_parameters: only art and contrastive runs can split their parameters; leave it out, or split with "
            "--mesh.model"
        )
    if config.train.suites and not isinstance(config, ArtConfig | ContrastiveConfig):
        raise UsageError(
            "train.suites: only art and contrastive runs evaluate on collections; leave it out, and measure the model with "
            "jaxretr evaluate --suite"
        )
    if isinstance(config, ArtConfig) and config.table.capacity < 0:
        raise UsageError(f"table.capacity={config.table.capacity}: must be at least 0; set --table.capacity")
    if isinstance(config, ArtConfig) and config.table.path is not None and not config.table.capacity:
        raise UsageError(
            "table.path fills the table, and table.capacity=0 keeps none; set --table.capacity, or leave it out"
        )
    if config.train.seed < 0:
        raise UsageError(f"train.seed={config.train.seed}: must be at least 0; set --train.seed")
