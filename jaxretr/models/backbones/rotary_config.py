"""The shape of an encoder with rotary positions."""

from dataclasses import dataclass
from typing import Literal

RotaryArchitecture = Literal[
    "modernbert", "nomic_bert", "gte", "new", "qwen2", "qwen3", "llama", "mistral", "gemma3_text"
]


@dataclass(frozen=True)
class RotaryScaling:
    """Stretch of the frequencies of rotary positions for texts longer than those of the pretraining."""

    kind: Literal["linear", "llama3", "ntk"]
    """Kind of stretch. linear: all frequencies divided by `factor`; llama3: only the slow ones (Llama 3.1); ntk: the
    base multiplied by `factor` (as in Alibaba's "new" models)."""
    factor: float
    low_freq_factor: float = 1.0
    """Divisor of `original_length` that gives the wavelength above which the whole factor applies (llama3)."""
    high_freq_factor: float = 4.0
    """Divisor of `original_length` that gives the wavelength below which frequencies stay unchanged (llama3)."""
    original_length: int = 8192
    """Number of tokens of the pretraining (llama3)."""


@dataclass(frozen=True)
class RotaryConfig:
    """The shape of an encoder with rotary positions and gated feed-forward blocks.

    Every difference between the architectures is a setting here, so that one set of layers computes all of them;
    hub/rotary_names.py has the values of each. Names are Hugging Face's where several architectures share one.
    """

    architecture: RotaryArchitecture
    """Architecture of the folder that it is read from and written to; nothing that is computed depends on it."""
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    """Number of heads of keys and values; each is shared by a group of query heads."""
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    hidden_act: str
    norm: Literal["layer", "rms"]
    norm_eps: float
    norm_bias: bool = False
    """Whether layer norms have a bias."""
    norm_offset: bool = False
    """Whether the norm's weights are stored less 1 (Gemma)."""
    norm_order: Literal["pre", "post", "sandwich"] = "pre"
    """Places of the norms. pre: before each block, and after the last layer; post: after each block's residual sum, as
    in BERT; sandwich: pre, and each block's result once more (Gemma 3)."""
    first_norm: bool = True
    """Whether the first layer's attention normalises the embeddings; ModernBERT's reads them as they are."""
    embedding_norm: bool = False
    """Whether the embeddings are normalised; with norm_order "post" this norm is the only one outside of the layers."""
    embedding_scale: float = 1.0
    qk_norm: bool = False
    """Whether each head's queries and keys have an RMS norm, before the rotation."""
    fused: bool = False
    """Whether one kernel holds queries, keys and values, and one both halves of the gated feed-forward (ModernBERT)."""
    qkv_bias: bool = False
    attention_out_bias: bool = False
    ffn_in_bias: bool = False
    ffn_out_bias: bool = False
    type_vocab_size: int = 0
    """Number of token types; 0: there are none."""
    causal: bool = False
    """Whether a token attends only to itself and the tokens before it, instead of all."""
    window: int = 0
    """Largest distance of tokens that local layers attend to; 0: there are no local layers."""
    local_layers: tuple[bool, ...] = ()
    """Whether each layer is local; empty: none is."""
    rope_theta: float = 10000.0
    rope_scaling: RotaryScaling | None = None
    local_rope_theta: float = 10000.0
    """Base of the rotary angles of local layers, which are never scaled."""
    attention_scale: float = 0.0
    """Factor of the scores; 0: head_dim ** -0.5."""
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    initializer_range: float = 0.02

    @property
    def architecture_name(self) -> str:
        """Name of the architecture whose folders hold such an encoder, see `Architecture.name`."""
        return self.architecture

    @property
    def widest(self) -> int:
        """Width of the widest layer; 0 without layers."""
        return max(self.hidden_size, *(outputs for _, outputs in self.dense_sizes().values()))

    def dense_sizes(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of a layer's dense layers, which LoRA can adapt, by name."""
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
