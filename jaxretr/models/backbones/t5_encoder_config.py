"""The shape of a T5 encoder without its decoder."""

from dataclasses import dataclass
from typing import ClassVar

T5_DENSE = {
    "query": ("attention", "query"),
    "key": ("attention", "key"),
    "value": ("attention", "value"),
    "attention_out": ("attention", "out"),
    "ffn_in": ("ffn", "inner"),
    "ffn_gate": ("ffn", "gate"),
    "ffn_out": ("ffn", "outer"),
}
"""Places of a layer's dense parts in T5's layer, by the names that all encoders share."""


@dataclass(frozen=True)
class T5EncoderConfig:
    """The shape of a T5 encoder (GTR, sentence-T5); the field names are Hugging Face's where T5 has such a setting.

    Positions are relative, so texts of any length can be read.
    """

    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: int = 6
    num_heads: int = 8
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "relu"
    """Kind of the feed-forward block: "relu" (v1.0) or "gated-gelu" (v1.1)."""
    hidden_dropout_prob: float = 0.1
    """Dropout rate of the states; T5's dropout_rate, like the next setting."""
    attention_probs_dropout_prob: float = 0.1
    initializer_range: float = 0.02
    """Standard deviation of a new projection after the encoder; the encoder's own are drawn by size, as in T5."""

    causal: ClassVar[bool] = False
    initializer_factor: ClassVar[float] = 1.0
    max_position_embeddings: ClassVar[int] = 1 << 20
    """Number of positions for callers that need a bound; T5 has none."""

    @property
    def architecture_name(self) -> str:
        """Name of the architecture whose folders hold such an encoder, see `Architecture.name`."""
        return "gated-t5" if self.feed_forward_proj.startswith("gated-") else "t5"

    @property
    def hidden_size(self) -> int:
        """D, the width of the states."""
        return self.d_model

    @property
    def num_hidden_layers(self) -> int:
        """Number of layers."""
        return self.num_layers

    @property
    def widest(self) -> int:
        """Width of the widest layer."""
        return max(self.d_model, *(outputs for _, outputs in self.dense_sizes().values()))

    def dense_sizes(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of a layer's dense layers, which LoRA can adapt, by name."""
        size, inner, heads = self.d_model, self.d_ff, self.num_heads * self.d_kv
        read = dict.fromkeys(("query", "key", "value"), (size, heads))
        gate = {"ffn_gate": (size, inner)} if self.feed_forward_proj.startswith("gated-") else {}
        return {**read, "attention_out": (heads, size), "ffn_in": (size, inner), **gate, "ffn_out": (inner, size)}

    def sizes(self) -> dict[str, int]:
        """The number of layers and all lengths of the parameters' axes, and their factors, by name."""
        names = ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads", "relative_attention_num_buckets")
        return {name: getattr(self, name) for name in names}
