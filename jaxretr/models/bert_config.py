"""The shape of a BERT encoder."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BertConfig:
    """The shape of a BERT encoder; the field names are Hugging Face's, except for `pre_layer_norm`."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    initializer_range: float = 0.02
    pre_layer_norm: bool = False
    """Megatron's order: LayerNorm before each block and after the last one, none on the embeddings."""

    @property
    def widest(self) -> int:
        """The width of the widest layer; 0 without layers."""
        return max(self.hidden_size, self.intermediate_size) if self.num_hidden_layers else 0

    def sizes(self) -> dict[str, int]:
        """The number of layers and all lengths of the parameters' axes, by name."""
        names = ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings")
        return {name: getattr(self, name) for name in (*names, "type_vocab_size")}
