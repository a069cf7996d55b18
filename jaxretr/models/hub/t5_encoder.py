"""The encoders of T5 checkpoints (GTR, sentence-T5, and those of whole T5s) in Hugging Face folders."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxretr.models.backbones.t5_encoder_config import T5_DENSE, T5EncoderConfig
from jaxretr.models.hub.architecture import Architecture
from jaxretr.models.hub.t5_params import ENCODER_LAYER, check_t5, encoder_modules, without_second_names
from jaxretr.models.hub.tensor_files import TensorFiles
from jaxretr.runtime.errors import UserError


@dataclass(frozen=True, kw_only=True)
class T5Family(Architecture):
    """The record of T5's encoder with one kind of feed-forward block."""

    def shape(self, config: Mapping[str, Any], where: str) -> T5EncoderConfig:
        shape = replace(self.defaults, **self.values(config, where))
        self.check(shape, where)
        return shape

    def content(self, shape: T5EncoderConfig, identity: Mapping[str, Any]) -> dict[str, Any]:
        content = super().content(shape, {**identity, "is_encoder_decoder": False, "use_cache": False})
        content["dropout_rate"] = content.pop("dropout_rate")  # The last, as earlier versions wrote it.
        return content

    def check(self, shape: T5EncoderConfig, where: str, *, bag_of_words: bool = False) -> None:
        check_t5(shape, where)
        buckets, furthest = shape.relative_attention_num_buckets, shape.relative_attention_max_distance
        if buckets < 4 or furthest <= buckets // 4:
            raise UserError(
                f"{where}: has relative_attention_num_buckets {buckets} and relative_attention_max_distance {furthest}; "
                "give at least 4 buckets, and a distance of more than a quarter as many"
            )

    def prepared(self, tensors: TensorFiles) -> TensorFiles:
        """Return the encoder's tensors, with its embedding only as shared.weight."""
        return without_second_names(tensors.select(lambda name: not name.startswith(("decoder.", "lm_head."))))


_SETTINGS = {
    name: (name,)
    for name in (
        *("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads", "relative_attention_num_buckets"),
        *("relative_attention_max_distance", "layer_norm_epsilon", "feed_forward_proj"),
    )
}


def _t5(name: str, *, gated: bool) -> T5Family:
    stored = encoder_modules(gated=gated)
    places = {dense: "/".join(place) for dense, place in T5_DENSE.items()}
    return T5Family(
        name=name,
        model_type="t5",
        cls="T5Encoder",
        classes=("T5Model", "T5ForConditionalGeneration", "T5WithLMHeadModel"),
        words="shared",
        # Only the first layer has a table of relative positions; the others reuse it.
        outer={
            "relative_positions": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
            "norm": "encoder.final_layer_norm",
        },
        modules={dense: stored[place] for dense, place in places.items() if place in stored},
        layer=ENCODER_LAYER,
        stored=stored,
        defaults=T5EncoderConfig(),
        settings=_SETTINGS | dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), ("dropout_rate",)),
        loaded_by="T5EncoderModel",  # AutoModel would add a decoder.
        pooling="mean",
        length=512,
        title="T5",
    )


T5_FAMILY = (_t5("t5", gated=False), _t5("gated-t5", gated=True))
"""The records by `T5EncoderConfig.architecture_name`; a config.json belongs to either."""
