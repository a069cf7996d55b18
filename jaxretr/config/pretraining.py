"""Training from text alone: masked language modelling, embedding distillation, a scorer's language modelling."""

from dataclasses import dataclass, field

from jaxretr.config.choices import Dtype
from jaxretr.config.data import PretrainData
from jaxretr.config.models import BertShape, T5Shape
from jaxretr.config.run import Config
from jaxretr.runtime.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class MlmConfig(Config):
    """Masked language modelling: of a new encoder, or of one that is to learn a domain (DDR's domain module)."""

    data: PretrainData
    start: str | None = None
    """The encoder to continue from, with its tokenizer: any MODEL, whose adapters are left out, or a Hugging Face
    folder of BERT. None: a new one, with a vocabulary learnt from the corpora."""
    bert: BertShape = field(default_factory=BertShape)
    """Shape of a new encoder."""
    mask_rate: float = 0.15
    """Share of the tokens that are predicted."""
    dropout: float = 0.0
    """Dropout rate in all layers, while training."""
    head_warmup: int = 1000
    """Steps in which a new head is trained with the encoder frozen before the first step, where `start` has no head of
    masked language modelling: a random head would damage the encoder."""
    head_learning_rate: float = 1e-3
    """Learning rate while that head is trained alone."""
    chunk: int | None = None
    """Rows that each device takes at once: memory, not mathematics. None: all of its part of `train.batch_size`."""
    dtype: Dtype = "float32"
    """Floating-point type of the matmuls' operands."""


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
    """Sentences of the corpora that the teacher embeds in addition, spread evenly: as short as questions are."""
    questions: tuple[str, ...] = ()
    """Files of questions, or BEIR folders, whose texts the teacher embeds as well; judgements stay unread."""
    exclude_questions: tuple[str, ...] = ()
    """Leave out the questions whose id begins with one of these."""
    questions_split: str = "train"
    """Split of a BEIR folder in `questions`: only the questions that its qrels name are embedded."""
    short_length: int = 32
    """Tokens of a sentence or question."""
    short_texts: int = 4
    """Sentences and questions per passage of the batch, which has `train.batch_size` passages."""
    bert: BertShape = field(default_factory=BertShape)
    """Shape of the student."""
    dtype: Dtype = "float32"
    """Floating-point type of the matmuls' operands."""


@dataclass(frozen=True, kw_only=True)
class PassageLmConfig(Config):
    """Pretraining of a scorer as a passage-conditioned language model."""

    data: PretrainData
    start: str | None = None
    """The folder or hub name of a T5 to continue from, with its tokenizer. None: a new one, with a vocabulary learnt
    from the corpora."""
    t5: T5Shape = field(default_factory=T5Shape)
    """Shape of a new T5."""
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
    """Depth of BM25's ranking of the corpora that the other passages are drawn from."""
    ranked_temperature: float = 0.1
    """Divisor of the mean log-probabilities in the cross-entropy of a question's own passage among its passages."""
    ranked_weight: float = 8.0
    """Weight of such a cross-entropy, in predicted tokens: it counts as much as so many of them."""
    dtype: Dtype = "float32"
    """Floating-point type of the matmuls' operands."""

    def check(self) -> None:
        super().check()
        if self.ranked_questions and self.data.pairs is None:
            raise UsageError("ranked_questions takes questions from data.pairs; set data.pairs=FOLDER as well")
        if self.ranked_questions and not 2 <= self.ranked_passages <= self.ranked_depth:
            raise UsageError(
                f"ranked_passages={self.ranked_passages}: from 2 to ranked_depth ({self.ranked_depth}) can be drawn"
            )
