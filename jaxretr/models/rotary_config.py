"""The shape of an encoder with rotary positions."""

from dataclasses import dataclass
from typing import Literal

RotaryArchitecture = Literal[
    "modernbert", "nomic_bert", "gte", "new", "qwen2", "qwen3", "llama", "mistral", "gemma3_text"
]


@dataclass(frozen=True)
class RotaryScaling:
    """How the frequencies of rotary positions are stretched for texts longer than those of the pretraining."""

    kind: Literal["linear", "llama3", "ntk"]
    """linear: all divided by `factor`; llama3: only the slow ones (Llama 3.1); ntk: the base multiplied by `factor` (as
    Alibaba's "new" models do it)."""
    factor: float
    low_freq_factor: float = 1.0
    """llama3: wavelengths above original_length / this are stretched by the whole factor."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths below original_length / this are left alone."""
    original_length: int = 8192
    """llama3: tokens of the pretraining."""


@dataclass(frozen=True)
class RotaryConfig:
    """The shape of an encoder with rotary positions and gated feed-forward blocks.

    Every difference between the architectures is a setting here, so that one set of layers computes all of them;
    formats/rotary_names.py has the values of each. Names are Hugging Face's where several architectures share one.
    """

    architecture: RotaryArchitecture
    """Whose folder it is read from and written to; it decides nothing that is computed."""
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    """Groups of query heads share one head of keys and values."""
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    hidden_act: str
    norm: Literal["layer", "rms"]
    norm_eps: float
    norm_bias: bool = False
    """Of layer norms."""
    norm_offset: bool = False
    """The norm's weights are stored less 1 (Gemma)."""
    norm_order: Literal["pre", "post", "sandwich"] = "pre"
    """pre: before each block, and after the last layer; post: after each block's residual sum, as in BERT; sandwich: pre,
    and each block's result once more (Gemma 3)."""
    first_norm: bool = True
    """False: the first layer's attention reads the embeddings without its norm (ModernBERT)."""
    embedding_norm: bool = False
    """A norm of the embeddings; with norm_order "post" it is the only one outside of the layers."""
    embedding_scale: float = 1.0
    qk_norm: bool = False
    """An RMS norm of each head's queries and keys, before the rotation."""
    fused: bool = False
    """One kernel for queries, keys and values, and one for both halves of the gated feed-forward (ModernBERT)."""
    qkv_bias: bool = False
    attention_out_bias: bool = False
    ffn_in_bias: bool = False
    ffn_out_bias: bool = False
    type_vocab_size: int = 0
    """0: there are no token types."""
    causal: bool = False
    """A token attends to itself and those before it; else to all."""
    window: int = 0
    """Local layers attend to tokens at most this far away; 0: there are none."""
    local_layers: tuple[bool, ...] = ()
    """Of each layer, whether it is local; empty: none is."""
    rope_theta: float = 10000.0
    rope_scaling: RotaryScaling | None = None
    local_rope_theta: float = 10000.0
    """Of local layers, which are never scaled."""
    attention_scale: float = 0.0
    """Multiplies the scores; 0: head_dim ** -0.5."""
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    initializer_range: float = 0.02

    @property
    def widest(self) -> int:
        """The width of the widest layer; 0 without layers."""
        return max(self.hidden_size, *(outputs for _, outputs in self.dense_sizes().values()))

    def dense_sizes(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of a layer's dense layers, by name: what LoRA can adapt."""
        size, inner = self.hidden_size, self.intermediate_size
        heads, groups = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        out = {"attention_out": (heads, size)}
        if self.fused:
            return {"qkv": (size, heads + 2 * groups), **out, "ffn_in": (size, 2 * inner), "ffn_out": (inner, size)}
        read = {"query": (size, heads), "key": (size, groups), "value": (size, groups)}
        return {**read, **out, "ffn_gate": (size, inner), "ffn_in": (size, inner), "ffn_out": (inner, size)}

    def dense_biases(self) -> dict[str, bool]:
        """Whether each of the layers in `dense_sizes` has a bias."""
        read = dict.fromkeys(("query", "key", "value", "qkv"), self.qkv_bias)
        inner = dict.fromkeys(("ffn_gate", "ffn_in"), self.ffn_in_bias)
        stated = {**read, **inner, "attention_out": self.attention_out_bias, "ffn_out": self.ffn_out_bias}
        return {name: stated[name] for name in self.dense_sizes()}

    def sizes(self) -> dict[str, int]:
        """The number of layers and all lengths of the parameters' axes that cannot be 0, by name."""
        names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        more = ("head_dim", "intermediate_size", *(("type_vocab_size",) if self.type_vocab_size else ()))
        return {name: getattr(self, name) for name in (*names, *more)}
