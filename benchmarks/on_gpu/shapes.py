"""The models that are measured, by their shapes."""

import dataclasses

from jaxretr.models.backbones.backbone_config import Backbone
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.t5 import T5Config
from jaxretr.models.embed import DualEncoderConfig
from jaxretr.models.scorers.t5_scorer import Prompt
from on_gpu.measuring import Part

WIDTH = 256

MINILM = BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536)
BERT_BASE = BertConfig()
TOY_BERT = BertConfig(vocab_size=500, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
T5_BASE = T5Config(d_model=768, d_ff=2048, num_layers=12, num_decoder_layers=12, num_heads=12)
T5_XL = T5Config(d_model=2048, d_ff=5120, num_layers=24, num_decoder_layers=24, num_heads=32)
TOY_T5 = T5Config(vocab_size=500, d_model=32, d_kv=16, d_ff=48, num_layers=2, num_decoder_layers=2, num_heads=2)
# ART's instruction in T5's own pieces.
PROMPT = Prompt((3424, 545, 10), (3, 5, 863, 1431, 3, 9, 822, 3, 390, 30, 48, 5454, 5, 1))
TOY_PROMPT = Prompt((7, 8, 9), (3, 5, 1))


def encoder_of(part: Part, bert: BertConfig, *, dropout: float = 0.0, shared: bool = False) -> DualEncoderConfig:
    """An encoder of this shape, or of the toy's."""
    bert = TOY_BERT if part.toy else bert
    bert = dataclasses.replace(bert, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    return DualEncoderConfig(bert, shared=shared)


def words_of(bert: Backbone) -> str:
    """A shape in words."""
    return f"{bert.num_hidden_layers} layers of {bert.hidden_size}"
