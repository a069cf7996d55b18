"""Every setting of every run, as frozen dataclasses: one class a kind of run, one section a concern.

An experiment is a Python file with `def config() -> Config`; command-line overrides and the JSON stored with
each checkpoint go through this file; both refuse a name that does not exist.
"""

import dataclasses
import functools
import json
import runpy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

from jaxretr.errors import UsageError, UserError, did_you_mean
from jaxretr.json_dataclass import dataclass_from

Dtype = Literal["float32", "bfloat16"]
EncodeDtype = Literal["auto", "float32", "bfloat16"]
# Whose codes propose the candidates of a certified index.
EngineName = Literal["scann", "faiss"]
ScorerKind = Literal["auto", "t5", "cross_encoder", "causal_lm"]
TrackerName = Literal["wandb", "mlflow"]
# sentence-transformers' names.
Pooling = Literal["cls", "mean", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"]

# Among the metrics of evaluations; for all others higher is better.
LOWER_IS_BETTER = ("loss", "average_rank")


@dataclass(frozen=True)
class Optimizer:
    """AdamW with decoupled weight decay, global-norm clipping, linear warm-up and linear decay."""

    learning_rate: float = 2e-5
    """The peak, reached after the warm-up."""
    b1: float = 0.9
    """Decay of the gradient's running mean."""
    b2: float = 0.999
    """Decay of the squared gradient's running mean."""
    eps: float = 1e-8
    """Added to the denominator of the update."""
    weight_decay: float = 0.1
    """None is applied to biases and LayerNorms."""
    clip: float = 1.0
    """Largest global norm of the gradient."""
    warmup: float = 0.01
    """Share of all steps that the learning rate rises for."""
    final: float = 0.02
    """The last step's learning rate, as a share of the peak."""


@dataclass(frozen=True)
class Train:
    """The course of a run. The batch is the global one: what the loss sees, over all devices and hosts."""

    steps: int = 1000
    """Updates of the whole run; how far the learning rate has fallen depends on them."""
    batch_size: int = 64
    """Questions (or passages, for text objectives) of one update, over all devices and hosts."""
    seed: int = 0
    """Of the order of the data, of every draw and of new weights."""
    log_every: int = 10
    """Steps between two lines of metrics."""
    save_every: int = 500
    """Steps between two checkpoints."""
    eval_every: int = 500
    """Steps between two evaluations; one more before the first step, and one after the last."""
    keep: int = 2
    """How many of the latest checkpoints stay; the best one stays as well."""
    best_metric: str = "recall@20"
    """The metric of the evaluation that picks the best checkpoint; higher is better, except for loss and average_rank."""
    suites: tuple[str, ...] = ()
    """Whole collections that each evaluation encodes and searches, for art and contrastive runs: names of data sets, BEIR
    folders or folders of those, and nano-beir for the 13 of ir_datasets. Metrics are nano-beir:ndcg@10 (the mean) and
    nano-beir/scifact:ndcg@10."""
    stop_factor: float | None = None
    """Stop if the loss exceeds this many times the median of the last 100 steps; a NaN or infinite loss always stops."""


@dataclass(frozen=True)
class Mesh:
    """How the devices are arranged; all that `model` leaves over share the batch and the corpus's rows."""

    model: int = 1
    """Devices that one copy of each large matrix is split over (for a scorer that does not fit on one)."""
    shard_parameters: bool = False
    """Split the encoder's large matrices, trained or frozen, and the optimizer's moments over the devices that share the
    batch, each of which brings a layer's together when it needs them (FSDP, ZeRO-3): memory, not mathematics. For art and
    contrastive runs; a scorer is not split."""


@dataclass(frozen=True)
class Tracking:
    """Services that a run reports to besides metrics.jsonl and TensorBoard; no part of what the run computes."""

    to: tuple[TrackerName, ...] = ()
    """Weights & Biases (`pip install 'jaxretr[wandb]'`), MLflow (`jaxretr[mlflow]`). A resumed run continues the same
    tracked run. A service that fails is a warning."""
    project: str = "jaxretr"
    """Its project in Weights & Biases, its experiment in MLflow."""
    name: str | None = None
    """What the tracked run is called; None: the config's name and the last part of the run's folder."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """What all runs have in common."""

    name: str
    """What messages and the model card call the run."""
    train: Train = field(default_factory=Train)
    optimizer: Optimizer = field(default_factory=Optimizer)
    mesh: Mesh = field(default_factory=Mesh)
    tracking: Tracking = field(default_factory=Tracking)


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
class AdapterShape:
    """Small modules in an encoder that is frozen otherwise: DDR's relevance module (Zhan et al. 2023, section 3.2)."""

    lora_rank: int = 192
    """0: no LoRA."""
    lora_alpha: float | None = None
    """alpha / rank multiplies LoRA's product; None: the rank itself, for a factor of 1."""
    lora_targets: tuple[str, ...] = ("query", "value")
    """Among query, key, value, attention_out, ffn_in, ffn_out; ffn_gate as well where the feed-forward network is gated
    (Nomic, GTE, Qwen, Llama, Mistral, Gemma). ModernBERT has qkv for the first three, and ffn_in includes its gate."""
    bottleneck: int = 192
    """Of the adapter parallel to the feed-forward network, a quarter of BERT-base's width; 0: none."""
    scale: float = 4.0
    """Multiplies the parallel adapter's result, its bias included."""

    @property
    def lora_factor(self) -> float:
        """alpha / rank."""
        return 1.0 if self.lora_alpha is None or not self.lora_rank else self.lora_alpha / self.lora_rank

    def equals(self, other: "AdapterShape") -> bool:
        """Whether both are the same modules; an alpha that is the rank is the same as none."""
        one, two = (dataclasses.replace(shape, lora_alpha=shape.lora_factor) for shape in (self, other))
        return one == two

    def without_lora(self) -> "AdapterShape":
        """What is left when LoRA has been merged into the kernels."""
        return dataclasses.replace(self, lora_rank=0)


@dataclass(frozen=True)
class Encoder:
    """The dual encoder that is trained: where it starts from, and how it pools."""

    path: str
    """A folder or hub name: Hugging Face, DPR, sentence-transformers or our own."""
    passage_path: str | None = None
    """The second tower's folder, where it comes apart (DPR's context encoder)."""
    fresh: BertShape | None = None
    """Start with random weights in this shape, drawn with the run's seed; only the tokenizer comes from `path`."""
    fresh_start: Literal["random", "lexical"] = "random"
    """How: as BERT does, or so that equal words of the corpus are near at once, rare ones most (see
    `lexical_start` in jaxretr/models/starts.py); for supervised runs with a corpus."""
    adapter: AdapterShape | None = None
    """Train adapters of this shape and nothing else. Where `path` has such adapters already, they are trained on."""
    shared: bool = False
    """One tower for questions and passages instead of two."""
    pooling: Pooling = "cls"
    """What becomes of the last layer's token vectors, see `pool` in jaxretr/models/embed.py."""
    normalise: bool = False
    """Scale the embeddings to length 1, so that scores are cosines."""
    max_question_length: int = 64
    """Tokens of a question, special ones included; the rest is cut off."""
    max_passage_length: int = 256
    """The same of a passage with its title."""
    query_prompt: str | None = None
    """Put before every question, in training and afterwards; None: what the model says, "" for none."""
    passage_prompt: str | None = None
    """The same for passages, before the title."""
    dropout: float = 0.1
    """While training, in all layers."""
    dtype: Dtype = "float32"
    """Of the matmuls' operands; parameters, loss and optimizer state are float32."""
    activations: Literal["auto", "keep", "recompute"] = "auto"
    """What a step keeps of its chunks of texts for the backward pass. keep: their activations, so that each text is
    embedded once; recompute: nothing, so that memory follows the chunk and not the batch; auto: on CPUs keep where a
    quarter of the memory holds them, recompute otherwise."""


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
    """Of the teacher's large weights and matmuls."""
    kind: ScorerKind = "auto"
    """What the folder holds: t5, cross_encoder, causal_lm; auto reads it from the folder's files. Qwen3-Reranker's own
    folders are causal language models by their files: set cross_encoder for the logit of yes less that of no."""


@dataclass(frozen=True, kw_only=True)
class DevData:
    """Questions that a run is evaluated on over its whole corpus."""

    dev_questions: str | None = None
    """A file of questions or a BEIR folder; none: no retrieval metrics."""
    dev_qrels: str | None = None
    """Judgements of the dev questions; without them the dev questions' answers are matched."""
    held_out: int = 0
    """Where there is no dev set: keep so many training questions (at most a tenth) out of training, those whose
    texts have the lowest hashes, and evaluate on them with their own judgements."""
    token_cache: str | None = None
    """Folder of the token store; the run's own by default, a common one where several runs share a corpus."""

    @property
    def has_dev_questions(self) -> bool:
        """Whether the run is evaluated on questions."""
        return self.dev_questions is not None or self.held_out > 0


@dataclass(frozen=True)
class LiveIndex:
    """The corpus's embeddings on the devices, which a training step searches."""

    refresh_every: int = 500
    """R: the whole corpus is encoded again every R steps."""
    write_back: bool = False
    """Put the fresh passage embeddings of a step into the index in the same step (with dropout's noise, if on)."""
    dtype: Dtype = "bfloat16"
    """Of the embeddings."""
    block_rows: int = 16384
    """Corpus rows that the search scores at once on each device."""
    encode_rows: int = 512
    """Corpus rows that the refresh encodes at once on each device."""


@dataclass(frozen=True, kw_only=True)
class ArtData(DevData):
    """Input of an ART run. The training questions need neither answers nor judgements."""

    corpus: str
    """A corpus file, a BEIR folder, or a training file, whose passages are the corpus then."""
    questions: str
    """A file of questions, a BEIR folder, or a training file, of which the questions alone are trained on."""
    questions_split: str | None = None
    """Train only on the questions that this split of a BEIR folder's qrels names (the judgements stay unread, except
    those of `held_out`)."""
    exclude_splits: tuple[str, ...] = ()
    """Train on no question that one of these splits of a BEIR folder's qrels names."""


@dataclass(frozen=True)
class Art:
    """ART's objective (Sachan et al. 2023, section 2.4)."""

    top_k: int = 32
    """K, the passages retrieved and scored for each question."""
    temperature: float | None = None
    """tau, which divides the student's scores; None is the square root of the embedding's size."""
    teacher_temperature: float = 1.0
    """Divides the teacher's scores."""
    prior_weight: float = 0.0
    """Of the student's own scores, held fixed, in the distribution that it is moved to. 0: ART. 1: the posterior under
    the student, as in EMDR2 (jaxretr/objectives/art.py, `target`)."""
    shuffle_teacher: bool = False
    """The control: the teacher's scores of each question are dealt out to its passages at random."""
    chunk: int = 32
    """Passages that the training step embeds at once on each device, or as many tokens of questions: memory, not
    mathematics."""


# The settings of an ART run's live index were in its section `art` once. Older config files, JSON files and
# command lines name its settings there, and are still read: old name in `art` -> name in `index`.
INDEX_IN_ART = {
    "refresh_every": "refresh_every",
    "write_back": "write_back",
    "index_dtype": "dtype",
    "block_rows": "block_rows",
    "encode_rows": "encode_rows",
}
_MOVED = "_moved_to_index"


def _accept_older_names(init: Callable[..., None]) -> Callable[..., None]:
    """Lets `Art(...)` take the settings of the index, which `ArtConfig` then moves to its own section."""

    @functools.wraps(init)
    def accepting(self: "Art", *args: Any, **settings: Any) -> None:
        moved = {INDEX_IN_ART[name]: settings.pop(name) for name in list(settings) if name in INDEX_IN_ART}
        init(self, *args, **settings)
        if moved:
            object.__setattr__(self, _MOVED, moved)

    return accepting


Art.__init__ = _accept_older_names(Art.__init__)


@dataclass(frozen=True)
class Typos:
    """Training for misspelt questions: terms that are added to a run's own objective; see jaxretr/objectives/typo_terms.py.

    A question q has `variants` misspelt forms q~ in a step. With all weights at their defaults there are none, and
    nothing changes.
    """

    profile: Literal["dictionary", "single_word", "spacing"] = "dictionary"
    """How questions are misspelt (jaxretr/data/typos/__init__.py)."""
    keyboard: Literal["qwerty", "qwertz", "azerty"] = "qwerty"
    """Which keys are neighbours."""
    misspellings: str | None = None
    """A dictionary of one's own for the profile "dictionary"; None: codespell's."""
    variants: int = 1
    """Misspelt forms of each question in a step, where a term below reads any."""
    pre_drawn: int = 0
    """Misspell and tokenise each question so many times before the first step, and draw each step's forms from these;
    0: new typos at every step."""
    augmentation: float = 0.0
    """Chance that a step reads a question itself misspelt."""
    clean_weight: float = 1.0
    """Of the run's own objective."""
    contrast_weight: float = 0.0
    """Of the cross-entropy of q's own forms among the misspelt forms of the batch's questions."""
    passage_weight: float = 0.0
    """Of the run's own objective from question to passages, read with q~ in place of q."""
    self_teaching_weight: float = 0.0
    """Of KL(q's distribution over the passages || q~'s), where q is the teacher."""
    passage_self_teaching_weight: float = 0.0
    """Of KL(the positive's distribution over the questions || over their misspelt forms); not with ART."""
    multi_positive: bool = False
    """`contrastive.symmetric` with forms: a passage's positives are q and its forms, its negatives the other questions
    and their forms; not with ART."""

    @property
    def forms(self) -> int:
        """Misspelt forms that a step reads for each question; 0 if no term uses them."""
        weights = (
            self.contrast_weight,
            self.passage_weight,
            self.self_teaching_weight,
            self.passage_self_teaching_weight,
        )
        return self.variants if self.multi_positive or any(weights) else 0

    @property
    def active(self) -> bool:
        """Whether anything is misspelt at all."""
        return self.forms > 0 or self.augmentation > 0


@dataclass(frozen=True)
class Joint:
    """Training together with a frozen lexical encoder (SPAR, Chen et al. 2022): the score is sim + w sim_L."""

    lexical: str | None = None
    """The lexical encoder's folder; None: the encoder is trained alone."""
    weight: float = 1.0
    """w at the beginning; it is trained with the encoder."""


@dataclass(frozen=True, kw_only=True)
class ArtConfig(Config):
    """Training from questions alone."""

    data: ArtData
    encoder: Encoder
    scorer: Scorer
    art: Art = field(default_factory=Art)
    joint: Joint = field(default_factory=Joint)
    typos: Typos = field(default_factory=Typos)
    index: LiveIndex = field(default_factory=lambda: LiveIndex(write_back=True))

    def __post_init__(self) -> None:
        moved: dict[str, Any] = vars(self.art).get(_MOVED, {})
        if moved:
            object.__setattr__(self, "index", dataclasses.replace(self.index, **moved))
            object.__setattr__(self, "art", dataclasses.replace(self.art))


@dataclass(frozen=True, kw_only=True)
class ExampleData(DevData):
    """Judged examples: questions with their positives, and perhaps negatives."""

    train: str
    """A training file in any format that `jaxretr data convert` reads, a BEIR folder, or a lexical set (a folder that
    `jaxretr mine lexical` wrote)."""
    train_format: str | None = None
    """The file's format, where its content does not tell."""
    split: str = "train"
    """Of a BEIR folder's judgements."""
    corpus: str | None = None
    """Where passage ids lead, and what is searched; a BEIR folder's own by default. The training file itself makes its
    passages the corpus. Needed for retrieved negatives, the corpus-wide softmax and retrieval metrics."""
    more_corpora: tuple[str, ...] = ()
    """Further files of passages, whose rows follow the corpus's."""
    mined: str | None = None
    """A second training file: `negatives.mined` are drawn from its negatives, by the question's id."""
    skip_bad: bool = False
    """Leave out and count what cannot be read or resolved, instead of stopping."""


@dataclass(frozen=True, kw_only=True)
class ContrastiveData(ExampleData):
    """Input of a supervised run."""

    teacher_positives: int | None = None
    """Of a lexical set's positives (the teacher's first ranks) use only the first so many; None: all."""
    dev: str | None = None
    """A training file, BEIR folder or lexical set whose examples give the validation loss, average rank and MRR."""
    dev_split: str = "dev"
    """Of a BEIR folder in `dev`, the judgements that are validated on."""


@dataclass(frozen=True)
class Negatives:
    """Each question's own negatives, in addition to all the other passages of the batch."""

    static: int = 1
    """Drawn at each step from the training file's hard negatives; where a question has none, from its others."""
    mined: int = 0
    """Drawn at each step from the negatives of `data.mined`."""
    retrieved: int = 0
    """Found at each step in the live index, with the current question tower."""
    first_rank: int = 1
    """The first rank that retrieved negatives are taken from, counted from 1."""
    last_rank: int = 100
    """The last of these ranks."""
    draw: Literal["random", "top"] = "random"
    """Which of the ranks: any with equal chance, or the first."""
    margin: float | None = None
    """Retrieved passages that score higher than the positive's score less this are left out (the index's scores, before
    the temperature); a passage that the model finds as good as the positive is often one."""
    mask_known_positives: bool = True
    """False negatives: a passage that is judged positive for a question is not its negative, wherever it comes from."""
    mask_duplicates: bool = True
    """Nor is a passage with the same title and text as the question's positive in the batch."""


@dataclass(frozen=True)
class Contrastive:
    """The objective: softmax cross-entropy of each question's positive over the passages of the whole batch."""

    temperature: float = 1.0
    """Divides the scores. They are dot products, or cosines where `encoder.normalise` is on."""
    positives: Literal["draw", "all"] = "draw"
    """A question with several: draw one at each step, or use up to `max_positives`, each against the negatives alone."""
    max_positives: int = 4
    """Of one question, where `positives` is "all"."""
    symmetric: bool = False
    """Add the cross-entropy of each passage's question over the batch's questions, and halve the sum."""
    corpus_softmax: bool = False
    """Take the denominator over the whole corpus: the batch's passages fresh, all others from the live index."""
    matryoshka: tuple[int, ...] = ()
    """Sizes D' of prefixes of the embedding: the losses of all of them and of the whole are summed."""
    chunk: int = 32
    """Passages that each device embeds at once, or as many tokens of questions: memory, not mathematics. The batch is
    `train.batch_size`."""


@dataclass(frozen=True)
class Distillation:
    """Learning from a teacher's stored scores (the training file's), in addition to the contrastive loss or instead of it."""

    loss: Literal["none", "margin_mse", "kl"] = "none"
    """The squared error of the margins between positive and negatives (margin_mse), or KL(teacher || student) over a
    question's passages (kl)."""
    weight: float = 1.0
    """Of the distillation loss."""
    contrastive_weight: float = 1.0
    """0 leaves the distillation alone."""
    teacher_temperature: float = 1.0
    """Divides the teacher's scores (kl)."""


@dataclass(frozen=True)
class Validation:
    """Validation on `data.dev` as DPR does it, in terms that do not depend on the number of devices."""

    batch_size: int = 64
    """Questions whose passages are each other's negatives in the validation loss, in the file's order."""
    hard_negatives: int = 30
    """Hard negatives of each question in the pool, at most."""
    other_negatives: int = 30
    """Average rank and MRR: the pool is the first positive of every dev question and up to so many negatives of each
    kind. 1 and 0 make SPAR's mini-index of two passages a question."""


@dataclass(frozen=True, kw_only=True)
class ContrastiveConfig(Config):
    """Supervised training (DPR, Karpukhin et al. 2020, and what has been added to it since)."""

    data: ContrastiveData
    encoder: Encoder
    negatives: Negatives = field(default_factory=Negatives)
    contrastive: Contrastive = field(default_factory=Contrastive)
    distillation: Distillation = field(default_factory=Distillation)
    joint: Joint = field(default_factory=Joint)
    typos: Typos = field(default_factory=Typos)
    index: LiveIndex = field(default_factory=LiveIndex)
    validation: Validation = field(default_factory=Validation)


@dataclass(frozen=True, kw_only=True)
class RerankerData(ExampleData):
    """Input of a cross-encoder's run. It is evaluated by re-ranking a fixed list of passages of each dev question."""

    dev_run: str | None = None
    """A run of the dev questions (any format that `jaxretr evaluate run` reads), whose passages are re-ranked; None: BM25's
    first passages of the corpus."""
    dev_depth: int = 50
    """Passages of each dev question that are re-ranked, the best of the run."""


@dataclass(frozen=True)
class PairEncoder:
    """The cross-encoder that is trained: where it starts from, and what it reads."""

    path: str
    """A cross-encoder, which is trained on; or any other MODEL or Hugging Face encoder, which gets a new head."""
    max_length: int = 256
    """Tokens of a question with its passage, special ones included; the longer of the two is cut."""
    max_question_length: int = 64
    """Tokens of a question in training; the rest is cut off before."""
    dropout: float = 0.1
    """While training, in all layers."""
    dtype: Dtype = "float32"
    """Of the matmuls' operands; parameters, loss and optimizer state are float32."""
    activations: Literal["auto", "keep", "recompute"] = "auto"
    """What a step keeps of its chunks of pairs for the backward pass, as `encoder.activations` of a dual encoder."""


@dataclass(frozen=True)
class PairNegatives:
    """Each question's passages besides its positive: as many as the numbers here say together. A place that the files
    or BM25 have no passage for gets a random one."""

    static: int = 0
    """Drawn at each step from the training file's hard negatives; where a question has none, from its others."""
    mined: int = 0
    """Drawn at each step from the negatives of `data.mined`."""
    bm25: int = 0
    """Drawn at each step from BM25's ranking of the corpus, which is made before the first step."""
    first_rank: int = 1
    """The first rank of BM25's that is drawn from, counted from 1."""
    last_rank: int = 100
    """The last of these ranks."""
    random: int = 0
    """Drawn at each step from the whole corpus."""

    @property
    def count(self) -> int:
        """All of them together."""
        return self.static + self.mined + self.bm25 + self.random


@dataclass(frozen=True)
class Ranking:
    """The objective of a cross-encoder."""

    loss: Literal["binary", "listwise"] = "binary"
    """binary: the sigmoid cross-entropy of each pair (Nogueira and Cho 2019). listwise: the softmax cross-entropy of the
    positive among the question's passages (localized contrastive estimation, Gao et al. 2021)."""
    positive_weight: float = 1.0
    """Of the positives' losses (binary), as there are fewer of them than of negatives."""
    chunk: int = 32
    """Pairs that each device reads at once: memory, not mathematics."""


@dataclass(frozen=True, kw_only=True)
class RerankerConfig(Config):
    """Training of a cross-encoder (re-ranker) on judged pairs."""

    data: RerankerData
    encoder: PairEncoder
    negatives: PairNegatives = field(default_factory=PairNegatives)
    ranking: Ranking = field(default_factory=Ranking)


@dataclass(frozen=True)
class PretrainData:
    """Text that a small model learns from."""

    corpora: tuple[str, ...]
    """Corpora, BEIR folders or training files, whose passages are read."""
    pairs: str | None = None
    """A BEIR folder whose train judgements give question-passage pairs (scorer only)."""
    exclude_pairs: str | None = None
    """Leave out the questions whose id begins with this."""
    pair_share: float = 0.0
    """Share of each batch that is such pairs."""
    vocab_size: int = 8192
    """Of a vocabulary that is learnt."""
    vocabulary_every: int = 5
    """The vocabulary is learnt from every n-th passage."""
    max_length: int = 128
    """Tokens of a passage. Of a longer one the encoder reads a window, drawn at each access, the scorer the start."""
    held_out: int = 1000
    """Passages kept out of training, for the held-out loss."""
    token_cache: str | None = None
    """Folder of the token store; the run's own by default, a common one where several runs share a corpus."""


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


KINDS: dict[str, type[Config]] = {
    "art": ArtConfig,
    "contrastive": ContrastiveConfig,
    "cross_encoder": RerankerConfig,
    "mlm": MlmConfig,
    "passage_lm": PassageLmConfig,
    "embedding_distillation": EmbeddingDistillationConfig,
}


def check_numbers(config: Config) -> None:
    """Refuses counts that no run can have, and a way to lie on the devices that this kind of run cannot."""
    for name in ("steps", "batch_size", "log_every", "save_every", "eval_every", "keep"):
        if (value := getattr(config.train, name)) < 1:
            raise UsageError(f"train.{name}={value}: must be at least 1; set --train.{name.replace('_', '-')}")
    if config.train.stop_factor is not None and not config.train.stop_factor > 1:
        raise UsageError(f"train.stop_factor={config.train.stop_factor}: must be above 1; set --train.stop-factor")
    if config.mesh.shard_parameters and not isinstance(config, ArtConfig | ContrastiveConfig):
        raise UsageError(
            "mesh.shard_parameters: only art and contrastive runs can split their parameters; leave it out, or split with "
            "--mesh.model"
        )
    if config.train.suites and not isinstance(config, ArtConfig | ContrastiveConfig):
        raise UsageError(
            "train.suites: only art and contrastive runs evaluate on collections; leave it out, and measure the model with "
            "jaxretr evaluate --suite"
        )
    if config.train.seed < 0:
        raise UsageError(f"train.seed={config.train.seed}: must be at least 0; set --train.seed")


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Runs an experiment file's `config()` and applies command-line overrides.

    Not in several threads at once: the file is run as a program, and stderr is caught meanwhile.

    Args:
      path: a Python file that defines `config() -> Config`.
      overrides: words like "--optimizer.learning-rate" "3e-5".

    Raises:
      UsageError: the file is missing or broken, or an override's name or value is wrong.
    """
    path = Path(path)
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; give the config file itself")
    if not path.is_file():
        near = [str(other) for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise UsageError(f"{path}: no such config file{did_you_mean(str(path), near) or '; check the path'}")
    try:
        names = runpy.run_path(str(path))
        if not callable(names.get("config")):
            raise UsageError(f"{path}: defines no function config(); add `def config() -> Config`")
        config = names["config"]()
    except UserError:
        raise
    except Exception as error:  # The file is the user's program: whatever it raises is to be fixed there.
        line, what = _line_in(error, path), f"{type(error).__name__}: {error}"
        if isinstance(error, SyntaxError) and error.filename == str(path):
            line, what = error.lineno, error.msg
        raise UsageError(f"{path}:{line}: {what}; fix the config file") from error
    if not isinstance(config, Config):
        raise UsageError(f"{path}: config() returned a {type(config).__name__}; return a jaxretr.config.Config")
    return override(config, overrides)


def override(config: Config, words: Sequence[str]) -> Config:
    """Applies overrides like "--train.steps" "10"; raises UsageError for a wrong name or value."""
    if not words:
        return config
    words = [_renamed(config, word) for word in words]
    known = {name.replace("_", "-") for name in _flat_names(config)}
    for word in words:
        name = word.split("=", 1)[0].removeprefix("--").replace("_", "-")
        # "--no-x" is how a switch that is on by default is put out.
        plain = ".".join([*name.split(".")[:-1], name.split(".")[-1].removeprefix("no-")])
        if word.startswith("--") and not {name, plain} & known:
            raise UsageError(f"{word.split('=', 1)[0]}: no such setting{nearest_setting(name, known)}")
    import contextlib
    import io

    import tyro

    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(type(config), args=list(words), default=config, config=(tyro.conf.AvoidSubcommands,))
    except SystemExit as stop:
        if not stop.code:
            raise
        text = " ".join(printed.getvalue().translate(str.maketrans("│╭╮╰╯─", "      ")).split())
        # What follows is tyro's own advice, on a --help that is not this program's.
        text = text.split("Argument helptext:")[0].split("For full helptext")[0].strip(" .")
        raise UsageError(f"{' '.join(words)}: {text}; correct these settings of the config") from None


def _renamed(config: Config, word: str) -> str:
    """An option under its present name, e.g. --index.no-write-back for --art.no-write-back."""
    option, equals, value = word.partition("=")
    section, _, name = option.partition(".")
    negated = "no-" if name.startswith(("no-", "no_")) else ""
    name = INDEX_IN_ART.get(name[len(negated) :].replace("-", "_"))
    if not isinstance(config, ArtConfig) or section != "--art" or name is None:
        return word
    return f"--index.{negated}{name.replace('_', '-')}{equals}{value}"


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """Returns the config with other values: {"train.steps": 100}; raises UsageError for a wrong name or value."""
    values = to_json(config)
    for name, value in settings.items():
        *sections, key = name.split(".")
        place = values
        for section in sections:
            if (
                place.get(section) is None
            ):  # No such section, which `from_json` reports, or one that is left out so far.
                place[section] = {}
            place = place[section]
        place[key] = str(value) if isinstance(value, Path) else value
    return from_json(json.loads(json.dumps(values)), "settings")


def _line_in(error: BaseException, path: Path) -> int:
    """The last line of `path` in the error's traceback, 0 if none."""
    line, frame = 0, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(path):
            line = frame.tb_lineno
        frame = frame.tb_next
    return line


# What other libraries call some settings, by the last part of the name.
_ALSO_CALLED = {
    "lr": "learning-rate",
    "wd": "weight-decay",
    "bs": "batch-size",
    "batch": "batch-size",
    "per-device-train-batch-size": "batch-size",
    "max-steps": "steps",
    "num-steps": "steps",
    "epochs": "steps",
    "num-train-epochs": "steps",
    "warmup-ratio": "warmup",
    "warmup-steps": "warmup",
    "max-grad-norm": "clip",
    "grad-clip": "clip",
    "eval-steps": "eval-every",
    "save-steps": "save-every",
    "logging-steps": "log-every",
    "max-seq-length": "max-passage-length",
    "max-query-length": "max-question-length",
    "model-name": "path",
    "temp": "temperature",
    "tau": "temperature",
    "num-negatives": "static",
    "normalize": "normalise",
    "qrels": "dev-qrels",
}

# Sections in the order in which a key without one is looked for.
_COMMON = ("train", "optimizer", "data", "encoder", "contrastive", "negatives", "art")


def nearest_setting(name: str, known: Collection[str], options: Collection[str] = ()) -> str:
    """Returns "; did you mean '--section.key'?" for a name that is not a setting, or an empty string.

    The same key in another section, or what another library calls a setting, comes before similar spelling.

    Args:
      name: as typed, without "--", with "-" for "_".
      known: the settings, written likewise.
      options: other words that may have been meant, with "--".
    """
    section, _, leaf = name.rpartition(".")
    for wanted in (leaf, _ALSO_CALLED.get(leaf)):
        same = [other for other in known if other.rpartition(".")[2] == wanted]
        if same:
            # Among several, the one whose section is nearest to the typed one; without a section, the commonest section.
            same.sort(key=lambda other: (other.split(".")[0] != section, _place(other), other))
            return f"; did you mean '--{same[0]}'?"
    return did_you_mean(f"--{name}", [*options, *(f"--{other}" for other in known)])


def _place(name: str) -> int:
    section = name.split(".")[0]
    return _COMMON.index(section) if section in _COMMON else len(_COMMON)


def all_settings() -> set[str]:
    """Returns the names of the settings of all kinds of config, with "-" for "_"."""
    names: set[str] = set()
    for kind in KINDS.values():
        names |= set(_names_of(kind, ""))
    return names


def _names_of(cls: Any, prefix: str) -> Iterator[str]:
    types = get_type_hints(cls)
    for item in fields(cls):
        inner = types[item.name]
        if is_dataclass(inner):
            yield from _names_of(inner, f"{prefix}{item.name}.")
        else:
            yield f"{prefix}{item.name}".replace("_", "-")


def _flat_names(value: Any, prefix: str = "") -> list[str]:
    names = []
    for item in fields(value):
        inner = getattr(value, item.name)
        if is_dataclass(inner):
            names += _flat_names(inner, f"{prefix}{item.name}.")
        else:
            names.append(f"{prefix}{item.name}")
    return names


def to_json(config: Config) -> dict[str, Any]:
    """Returns the config as plain JSON values, with its kind."""
    kind = next(name for name, cls in KINDS.items() if type(config) is cls)
    # Through json once, so that tuples become lists and a reader gets what a file would give.
    return {"kind": kind, **json.loads(json.dumps(dataclasses.asdict(config)))}


def from_json(values: dict[str, Any], where: str = "config") -> Config:
    """Rebuilds a config from `to_json`'s values; an unknown key is a UsageError with a suggestion."""
    if not isinstance(values, dict):
        raise UsageError(f"{where}: a JSON object is expected, not {type(values).__name__}; restore the file")
    values = dict(values)
    kind = values.pop("kind", None)
    if kind not in KINDS:
        raise UsageError(f"{where}: unknown kind {kind!r}{did_you_mean(str(kind), KINDS)}")
    if kind == "art" and isinstance(values.get("art"), dict):
        art, index = dict(values["art"]), values.get("index")
        moved = {INDEX_IN_ART[name]: art.pop(name) for name in list(art) if name in INDEX_IN_ART}
        if moved:
            # An older file names them all; otherwise `write_back` has ART's default.
            index = index if isinstance(index, dict) else dataclasses.asdict(LiveIndex(write_back=True))
            values |= {"art": art, "index": index | moved}
    return dataclass_from(KINDS[kind], values, where)
