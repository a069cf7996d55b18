"""The models of a run: what they start from, their shape, and what they read."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from jaxretr.config.choices import Dtype, Pooling, QueryWeights, ScorerKind


@dataclass(frozen=True)
class BertShape:
    """A BERT to be trained from scratch."""

    hidden_size: int = 128
    """Width of the layers, and of the embedding."""
    layers: int = 4
    """Number of layers."""
    heads: int = 4
    """Attention heads of a layer."""
    intermediate_size: int = 512
    """Width of the feed-forward network."""


@dataclass(frozen=True)
class T5Shape:
    """A T5 (v1.0: relu, tied) to be trained from scratch."""

    d_model: int = 192
    """Width of the layers."""
    d_kv: int = 32
    """Width of an attention head."""
    d_ff: int = 768
    """Width of the feed-forward network."""
    heads: int = 6
    """Attention heads of a layer."""
    encoder_layers: int = 2
    """Layers of the encoder."""
    decoder_layers: int = 3
    """Layers of the decoder."""


@dataclass(frozen=True)
class AdapterShape:
    """Small modules in an encoder that is frozen otherwise: DDR's relevance module (Zhan et al. 2023, section 3.2)."""

    lora_rank: int = 0
    """Rank of LoRA's matrices, a quarter of the encoder's width in DDR; 0: no LoRA."""
    lora_alpha: float | None = None
    """alpha, where alpha / rank multiplies LoRA's product; None: the rank itself, for a factor of 1."""
    lora_targets: tuple[str, ...] = ("query", "value")
    """Layers that LoRA changes, among query, key, value, attention_out, ffn_in, ffn_out; ffn_gate as well where the
    feed-forward network is gated (Nomic, GTE, Qwen, Llama, Mistral, Gemma). ModernBERT has qkv for the first three, and
    its ffn_in includes the gate."""
    bottleneck: int = 0
    """Width of the adapter parallel to the feed-forward network, a quarter of the encoder's width in DDR; 0: none."""
    scale: float = 4.0
    """Factor of the parallel adapter's result, its bias included."""

    @property
    def lora_factor(self) -> float:
        """Factor of LoRA's product: alpha / rank."""
        return 1.0 if self.lora_alpha is None or not self.lora_rank else self.lora_alpha / self.lora_rank

    def equals(self, other: "AdapterShape") -> bool:
        """Whether both are the same modules; an alpha that is the rank is the same as none."""
        one, two = (dataclasses.replace(shape, lora_alpha=shape.lora_factor) for shape in (self, other))
        return one == two

    def without_lora(self) -> "AdapterShape":
        """Return the shape that is left when LoRA has been merged into the kernels."""
        return dataclasses.replace(self, lora_rank=0)


@dataclass(frozen=True)
class Encoder:
    """The dual encoder that is trained: where it starts from, and how it pools."""

    path: str
    """A folder or hub name: Hugging Face, DPR, sentence-transformers or our own."""
    passage_path: str | None = None
    """The second tower's folder, where the towers are in separate folders (DPR's context encoder)."""
    fresh: BertShape | None = None
    """Start with random weights in this shape, drawn with the run's seed; only the tokenizer comes from `path`."""
    fresh_start: Literal["random", "lexical"] = "random"
    """Random weights that `fresh` starts with. random: BERT's own. lexical: weights with which texts that share words
    are near each other from the start, rare words counting most (see `lexical_start` in jaxretr/models/starts.py); for
    supervised runs with a corpus."""
    adapter: AdapterShape | None = None
    """Train adapters of this shape and nothing else. Where `path` has such adapters already, their training continues."""
    shared: bool = False
    """One tower for questions and passages instead of two."""
    pooling: Pooling | None = None
    """Pooling of the last layer's token vectors, see `pool` in jaxretr/models/embed.py; None: as the folder states,
    otherwise cls, or lasttoken for decoders."""
    query_weights: QueryWeights | None = None
    """Let no encoder read the questions of a sparse one (inference-free): each of their words has a weight of its own, which
    begins at its IDF in the run's passages and is learnt, or stays frozen; None: as the folder states, whose weights go on."""
    normalise: bool = False
    """Scale the embeddings to length 1, so that scores are cosines."""
    max_question_length: int = 64
    """Tokens of a question, special ones included; the rest is cut off."""
    max_passage_length: int = 256
    """Tokens of a passage with its title, special ones included; the rest is cut off."""
    query_prompt: str | None = None
    """Text put before every question, in training and afterwards; None: the model's own, "" for none."""
    passage_prompt: str | None = None
    """Text put before every passage and its title, in training and afterwards; None: the model's own, "" for none."""
    dropout: float = 0.1
    """Dropout rate in all layers, while training."""
    dtype: Dtype = "float32"
    """Floating-point type of the matmuls' operands; parameters, loss and optimizer state are float32."""
    residual: Dtype = "float32"
    """Floating-point type of the states between layers, in the run's steps, refreshes and evaluations. bfloat16, with
    dtype bfloat16, saves a tenth of a step's traffic with a GPU's memory and rounds twice more in each layer."""
    activations: Literal["auto", "keep", "recompute"] = "auto"
    """Memory that a step spends on the backward pass of its chunks of texts. keep: their activations, so that each text
    is embedded once; recompute: nothing, so that memory follows the chunk and not the batch; auto: on CPUs keep where a
    quarter of the memory holds them, recompute otherwise; on an H100 keeping saved a tenth of a contrastive step."""


@dataclass(frozen=True)
class PairEncoder:
    """The cross-encoder that is trained: where it starts from, and what it reads."""

    path: str
    """A cross-encoder, which continues its training; or any other MODEL or Hugging Face encoder, which gets a new
    head."""
    adapter: AdapterShape | None = None
    """Train LoRA of this shape and the head, and nothing else. The saved model has LoRA's products in its kernels."""
    max_length: int = 256
    """Tokens of a question with its passage, special ones included; the longer of the two is cut."""
    max_question_length: int = 64
    """Tokens of a question in training; the rest is cut off before the question is joined with a passage."""
    dropout: float = 0.1
    """Dropout rate in all layers, while training."""
    dtype: Dtype = "float32"
    """Floating-point type of the matmuls' operands; parameters, loss and optimizer state are float32."""
    activations: Literal["auto", "keep", "recompute"] = "auto"
    """Memory that a step spends on the backward pass of its chunks of pairs, as `encoder.activations` of a dual
    encoder."""


@dataclass(frozen=True)
class Scorer:
    """The frozen teacher of ART: a T5, a cross-encoder or a causal language model."""

    path: str
    """A folder or hub name of a T5, a cross-encoder or a causal language model."""
    max_length: int = 512
    """Tokens of a passage with the instruction; a cross-encoder's and a causal language model's include the question.
    A T5 and a causal language model cut only the passage, a cross-encoder as its tokenizer does."""
    max_question_length: int = 128
    """Tokens of the question that is scored."""
    chunk: int = 64
    """Pairs of question and passage that go through the teacher at once on each device: memory, not mathematics."""
    dtype: Dtype = "float32"
    """Floating-point type of the teacher's large weights and matmuls."""
    kind: ScorerKind = "auto"
    """Kind of model in the folder: t5, cross_encoder, causal_lm; auto reads it from the folder's files.
    Qwen3-Reranker's own folders are causal language models by their files: set cross_encoder for the logit of yes less
    that of no."""


@dataclass(frozen=True)
class Joint:
    """Training together with a frozen lexical encoder (SPAR, Chen et al. 2022): the score is sim + w sim_L."""

    lexical: str | None = None
    """The lexical encoder's folder; None: the encoder is trained alone."""
    weight: float = 1.0
    """w at the start of training; it is trained with the encoder."""
