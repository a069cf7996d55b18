"""The shape of a BERT encoder."""

from dataclasses import dataclass
from typing import ClassVar, Literal

COUNTED_FROM_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")
"""Architectures whose first position is `pad_token_id` + 1."""

BertArchitecture = Literal["bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet"]


@dataclass(frozen=True)
class BertConfig:
    """The shape of a BERT encoder; the field names are Hugging Face's, except for `pre_layer_norm`."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    """Number of positions of tokens, without the two extra rows of RoBERTa's table."""
    type_vocab_size: int = 2
    """Number of token types; 0: there are none."""
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    initializer_range: float = 0.02
    pre_layer_norm: bool = False
    """Order of Megatron: LayerNorm before each block and after the last one, none on the embeddings."""
    architecture: BertArchitecture = "bert"
    """Architecture of the folder that it is read from and written to; the layers are the same."""
    pad_token_id: int = 0
    """Id of the padding token, for RoBERTa and its kin, whose positions begin after it."""
    relative_attention_num_buckets: int = 0
    """Number of MPNet's biases of relative positions, as T5 has them, which all layers share; 0: none."""

    causal: ClassVar[bool] = False

    @property
    def architecture_name(self) -> str:
        """Name of the architecture whose folders hold such an encoder, see `Architecture.name`."""
        return "megatron" if self.pre_layer_norm else self.architecture

    @property
    def positions_skip_padding(self) -> bool:
        """Whether the padding token has no position and is not counted, also where it stands within a text."""
        return self.architecture in COUNTED_FROM_PADDING

    @property
    def widest(self) -> int:
        """Width of the widest layer; 0 without layers."""
        return max(self.hidden_size, self.intermediate_size) if self.num_hidden_layers else 0

    def dense_sizes(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of a layer's dense layers, which LoRA can adapt, by name."""
        size, inner = self.hidden_size, self.intermediate_size
        square = dict.fromkeys(("query", "key", "value", "attention_out"), (size, size))
        return {**square, "ffn_in": (size, inner), "ffn_out": (inner, size)}

    def sizes(self) -> dict[str, int]:
        """The number of layers and all lengths of the parameters' axes that cannot be 0, by name."""
        names = ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings")
        return {name: getattr(self, name) for name in (*names, *(("type_vocab_size",) if self.type_vocab_size else ()))}
