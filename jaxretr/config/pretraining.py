"""Training from text alone: masked language modelling, embedding distillation, a scorer's language modelling."""

from dataclasses import dataclass, field

from jaxretr.config.choices import Dtype
from jaxretr.config.data import PretrainData
from jaxretr.config.models import BertShape, T5Shape
from jaxretr.config.run import Config


@dataclass(frozen=True, kw_only=True)
class MlmConfig(Config):
    """Masked language modelling: of a new encoder, or of one that is to learn a domain (DDR's domain module)."""

    data: PretrainData
    start: str | None = None
    """The encoder to go on from, with its tokenizer: any MODEL, whose adapters are left out, or a Hugging Face folder of
    BERT. None: a new one, with a vocabulary learnt from the corpora."""
    bert: BertShape = field(default_factory=BertShape)
    """Of a new one."""
    mask_rate: float = 0.15
    """Share of the tokens that are predicted."""
    dropout: float = 0.0
    """While training, in all layers."""
    head_warmup: int = 1000
    """Where `start` has no head of masked language modelling, one is trained for so many steps with the encoder frozen
    before the first step: a random head would damage the encoder."""
    head_learning_rate: float = 1e-3
    """While that head is trained alone."""
    chunk: int | None = None
    """Rows that each device takes at once: memory, not mathematics. None: all of its part of `train.batch_size`."""
    dtype: Dtype = "float32"
    """Of the matmuls' operands."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingDistillationConfig(Config):
    """A small encoder that learns the embeddings of a larger one from texts alone (Reimers and Gurevych 2020)."""

    data: PretrainData
    teacher: str
    """Any MODEL with one tower. Its embeddings are projected to their first principal components, as many as the
    student has dimensions."""
    teacher_passages: int = 50_000
    """Passages of the corpora that the teacher embeds, spread evenly."""
    teacher_sentences: int = 200_000
    """Sentences of the corpora that it embeds in addition, spread evenly: as short as questions are."""
    questions: tuple[str, ...] = ()
    """Files of questions, or BEIR folders, whose texts it embeds as well; judgements stay unread."""
    exclude_questions: tuple[str, ...] = ()
    """Leave out the questions whose id begins with one of these."""
    questions_split: str = "train"
    """Of a BEIR folder among them: only the questions that this split of its qrels names."""
    short_length: int = 32
    """Tokens of a sentence or question."""
    short_texts: int = 4
    """Sentences and questions of a batch for each of its `train.batch_size` passages."""
    bert: BertShape = field(default_factory=BertShape)
    """Of the student."""
    dtype: Dtype = "float32"
    """Of the matmuls' operands."""


@dataclass(frozen=True, kw_only=True)
class PassageLmConfig(Config):
    """Pretraining of a scorer as a passage-conditioned language model."""

    data: PretrainData
    start: str | None = None
    """The folder or hub name of a T5 to go on from, with its tokenizer. None: a new one, with a vocabulary learnt from the
    corpora."""
    t5: T5Shape = field(default_factory=T5Shape)
    """Of a new one."""
    window: int = 48
    """The longest window of a passage that a target is drawn from, in tokens."""
    target_length: int = 24
    """Tokens that are predicted of a window, at most."""
    window_held_out: float = 0.25
    """Share of the examples whose window is removed from the passage."""
    ranked_questions: int = 0
    """Questions of `data.pairs` in each step whose passage is to be likelier than others of BM25's ranking; 0: none."""
    ranked_passages: int = 8
    """Passages of each such question: its own, and others that are drawn from BM25's first `ranked_depth`."""
    ranked_depth: int = 32
    """How far down BM25's ranking of the corpora the others are drawn from."""
    ranked_temperature: float = 0.1
    """Divides the mean log-probabilities in the cross-entropy of a question's own passage among its passages."""
    ranked_weight: float = 8.0
    """What such a cross-entropy counts, in predicted tokens."""
    dtype: Dtype = "float32"
    """Of the matmuls' operands."""
