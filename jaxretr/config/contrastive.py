"""Supervised training of dual encoders, from judged examples or a teacher's scores."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Literal

from jaxretr.config.data import ExampleData
from jaxretr.config.index import IndexAware, LiveIndex
from jaxretr.config.models import Encoder, Joint
from jaxretr.config.run import Config
from jaxretr.config.typos import Typos
from jaxretr.runtime.errors import UsageError, at_least
from jaxretr.runtime.own_parts import is_own


@dataclass(frozen=True)
class Negatives:
    """Each question's own negatives, in addition to all the other passages of the batch."""

    static: int = 1
    """Negatives of each question that are drawn at each step from the training file's hard negatives; where a question
    has none, from its others."""
    mined: int = 0
    """Negatives of each question that are drawn at each step from the negatives of `data.mined`."""
    retrieved: int = 0
    """Negatives of each question that are found at each step in the live index, with the current question tower."""
    first_rank: int = 1
    """The first rank that retrieved negatives are taken from, counted from 1."""
    last_rank: int = 100
    """The last rank that retrieved negatives are taken from."""
    draw: Literal["random", "top"] = "random"
    """Choice among these ranks: random takes any of them with equal chance, top the first."""
    margin: float | None = None
    """Leave out retrieved passages that score higher than the positive's score less this (the index's scores, before
    the temperature); a passage that the model finds as good as the positive is often one."""
    guide: str | None = None
    """An encoder, by folder or hub name, that knows false negatives (GISTEmbed, Solatorio 2024): what it finds as similar to a
    question as the question's positive, less the margin, is no negative. It encodes the passages and the questions when the
    run starts; its scores are cosines."""
    guide_margin: float = 0.0
    """Margin below the guide's score of the positive from which on a passage is no negative."""
    guide_relative: bool = False
    """The margin is a share of the positive's score instead of a difference."""
    mask_known_positives: bool = True
    """False negatives: a passage that is judged positive for a question is not its negative, wherever it comes from. The
    question itself, as a passage, never is, whatever this setting."""
    mask_duplicates: bool = True
    """Never use a passage with the same title and text as a question's positive in the batch as its negative."""

    def check(self) -> None:
        """Raise UsageError for numbers of negatives that no run can have."""
        at_least(0, **{f"negatives.{name}": getattr(self, name) for name in ("static", "mined", "retrieved")})
        if self.guide is None and (self.guide_margin or self.guide_relative):
            raise UsageError(
                "negatives.guide_margin and guide_relative are of a guide; set negatives.guide, or leave them out"
            )
        if not 1 <= self.first_rank <= self.last_rank:
            raise UsageError(
                f"negatives.first_rank={self.first_rank} and last_rank={self.last_rank}: ranks count from 1 upwards"
            )


@dataclass(frozen=True)
class Contrastive:
    """The objective: softmax cross-entropy of each question's positive over the passages of the whole batch."""

    loss: str = "softmax"
    """softmax, or a loss of your own, FILE.py:FUNCTION: (scores, positive, negative) -> one value a question, as
    `jaxretr.losses.contrastive.contrastive_losses` is."""
    temperature: float = 1.0
    """Divisor of the scores, which are dot products, or cosines where `encoder.normalise` is on."""
    positives: Literal["draw", "first", "all"] = "draw"
    """Positives of a question that has several. draw: one at each step; first: the file's first, as the original DPR
    does; all: up to `max_positives`, each against the negatives alone."""
    max_positives: int = 4
    """Largest number of positives of one question in a step, where `positives` is "all"."""
    symmetric: bool = False
    """Add the cross-entropy of each passage's question over the batch's questions, and halve the sum."""
    among_questions: bool = False
    """Add the other questions of the batch to each question's negatives."""
    among_positives: bool = False
    """Add the similarities of a question's first positive with the other questions' positives to the negatives' scores."""
    hardness: float = 0.0
    """alpha: adds alpha times its dot product, as a constant, to a question's score of a passage that is a negative in the
    batch, so that the nearest ones have more of the gradient (Lan et al. 2025, equation 5)."""
    hardness_of: Literal["all", "own", "others"] = "all"
    """Negatives that `hardness` is of: a question's own ones, those that the other questions bring, or all."""
    corpus_softmax: bool = False
    """Take the denominator over the whole corpus: the batch's passages fresh, all others from the live index."""
    flops_questions: float = 0.0
    """Weight of the FLOPS of a batch's questions, which makes the vectors of a sparse encoder (`encoder.pooling` splade)
    sparse (Formal et al. 2021); published values are 1e-4 to 5e-4 beside sums over large batches of MS MARCO."""
    flops_passages: float = 0.0
    """The same of a batch's passages."""
    flops_warmup: int = 0
    """Steps in which both weights rise from 0, quadratically; usually a third of the run."""
    matryoshka: tuple[int, ...] = ()
    """Sizes D' of prefixes of the embedding: the losses of all of them and of the whole are summed."""
    chunk: int = 32
    """Passages that each device embeds at once, or as many tokens of questions: memory, not mathematics. The batch is
    `train.batch_size`."""


@dataclass(frozen=True)
class Distillation:
    """Learning from a teacher's stored scores (the training file's), in addition to the contrastive loss or instead of
    it."""

    loss: Literal["none", "margin_mse", "kl"] = "none"
    """The squared error of the margins between positive and negatives (margin_mse), or KL(teacher || student) over a
    question's passages (kl)."""
    weight: float = 1.0
    """Weight of the distillation loss."""
    contrastive_weight: float = 1.0
    """Weight of the contrastive loss; 0 leaves the distillation alone."""
    teacher_temperature: float = 1.0
    """Divisor of the teacher's scores (kl)."""

    def check(self) -> None:
        """Raise UsageError for settings that leave no loss, or that the loss does not have."""
        if self.contrastive_weight == 0 and (self.loss == "none" or self.weight == 0):
            raise UsageError(
                "distillation.contrastive_weight=0 leaves no loss; set distillation.loss, or another weight"
            )
        if self.loss == "none" and self.weight != 1:
            raise UsageError(f"distillation.weight={self.weight}: is of distillation.loss; set that as well")
        if self.loss != "kl" and self.teacher_temperature != 1:
            raise UsageError(
                f"distillation.teacher_temperature={self.teacher_temperature}: is of distillation.loss=kl; leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class _TrainingData(ExampleData):
    """Judged examples of a supervised run, or of one set of its mixture."""

    train: str = ""
    """A training file in any format that `jaxretr data convert` reads, a BEIR folder, or a lexical set (a folder that
    `jaxretr mine lexical` wrote); empty with a mixture."""
    teacher_positives: int | None = None
    """Number of a lexical set's positives (the teacher's first ranks) that are used for each question; None: all."""


@dataclass(frozen=True, kw_only=True)
class MixtureSet(_TrainingData):
    """One of several sets that a run trains on. Its corpus is searched for its own questions alone, and it is evaluated on
    dev questions of its own."""

    name: str
    """Name of the set in the log and in metrics (NAME:loss, NAME:ndcg@10)."""
    weight: float | None = None
    """Share of the set in the training, relative to the other sets' weights; None, for all of them: by its size."""
    query_prompt: str | None = None
    """Text put before its questions; None: as `encoder.query_prompt` says."""
    passage_prompt: str | None = None
    """Text put before its passages and their titles; None: as `encoder.passage_prompt` says."""
    negatives: Negatives | None = None
    """Negatives of its batches; None: the run's."""
    contrastive: Contrastive | None = None
    """Objective of its batches; None: the run's."""
    distillation: Distillation | None = None
    """Distillation in its batches; None: the run's."""

    @property
    def own_sections(self) -> dict[str, object]:
        """Sections that take the place of the run's."""
        sections = {name: getattr(self, name) for name in ("negatives", "contrastive", "distillation")}
        return {name: section for name, section in sections.items() if section is not None}


@dataclass(frozen=True, kw_only=True)
class ContrastiveData(_TrainingData):
    """Input of a supervised run."""

    dev: str | None = None
    """A training file, BEIR folder or lexical set whose examples give the validation loss, average rank and MRR."""
    dev_split: str = "dev"
    """Split of a BEIR folder in `dev` whose judgements the run validates on."""
    mixture: tuple[MixtureSet, ...] = ()
    """Several sets in place of `train`, each with its corpus and dev questions, and perhaps a weight, prompts and an objective
    of its own."""
    mixture_temperature: float = 1.0
    """T: sets without weights are drawn in proportion to size^(1/T). 1: each question equally often; larger: small sets
    more often."""
    mixed_batches: bool = False
    """Draw each batch from all sets. By default a batch has questions of one set, whose passages are the others' negatives."""


# Settings of `ContrastiveData` that a mixture has beside its sets; the others are each set's own.
OF_ALL_SETS = ("mixture_temperature", "mixed_batches", "token_cache")


@contextlib.contextmanager
def of_set(name: str) -> Iterator[None]:
    """Say in a UsageError which set of a mixture it is about; "" is a run's only one."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"data.mixture: set {name}: {error}" if name else str(error)) from None


@dataclass(frozen=True)
class Validation:
    """Validation on `data.dev` as DPR does it, in terms that do not depend on the number of devices."""

    batch_size: int = 64
    """Questions whose passages are each other's negatives in the validation loss, in the file's order."""
    hard_negatives: int = 30
    """Hard negatives of each question in the pool, at most."""
    other_negatives: int = 30
    """Negatives of each kind per dev question, at most, in the pool of average rank and MRR, which also has the first
    positive of every dev question. 1 and 0 make SPAR's mini-index of two passages a question."""


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
    index_aware: IndexAware = field(default_factory=IndexAware)
    validation: Validation = field(default_factory=Validation)

    def check(self) -> None:
        super().check()
        if self.data.mixture:
            self._check_mixture()
        elif not self.data.train:
            raise UsageError("data.train: is not given; name the training data, or several sets as data.mixture")
        else:
            self._check_objective()

    @property
    def members(self) -> dict[str, "ContrastiveConfig"]:
        """A config for each set of the mixture, by name, as if the set were all data; itself, as "", without a mixture."""
        return {each.name: self._of_set(each) for each in self.data.mixture} or {"": self}

    def _of_set(self, one: MixtureSet) -> "ContrastiveConfig":
        shared = {each.name: getattr(one, each.name) for each in fields(_TrainingData)}
        data = ContrastiveData(**{**shared, "token_cache": self.data.token_cache})
        prompts = {name: getattr(one, name) for name in ("query_prompt", "passage_prompt")}
        own = {name: prompt for name, prompt in prompts.items() if prompt is not None}
        return replace(self, data=data, encoder=replace(self.encoder, **own), **one.own_sections)

    def _check_mixture(self) -> None:
        data = self.data
        if data.dev is not None or data.dev_split != "dev":
            raise UsageError(
                "data.dev: a mixture has no validation loss; leave it and data.dev_split out, and give the sets dev_questions or "
                "held_out"
            )
        for each in fields(data):
            if (
                each.name not in ("mixture", *OF_ALL_SETS)
                and each.default is not MISSING
                and getattr(data, each.name) != each.default
            ):
                raise UsageError(f"data.{each.name}: belongs to each set of data.mixture; move it there")
        names = [each.name for each in data.mixture]
        if bad := next((name for name in names if not re.fullmatch(r"[\w.-]+", name) or names.count(name) > 1), None):
            raise UsageError(
                f"data.mixture: '{bad}' is no name of one set; give each a name of its own, of letters, digits and ._-"
            )
        given = [each.weight for each in data.mixture if each.weight is not None]
        if any(weight <= 0 for weight in given) or len(given) not in (0, len(names)):
            raise UsageError("data.mixture: give every set a weight above 0, or none of them one")
        if given and data.mixture_temperature != 1:
            raise UsageError("data.mixture_temperature is for sets without weights; leave one of them out")
        if data.mixed_batches and (own := next((each for each in data.mixture if each.own_sections), None)):
            raise UsageError(
                f"data.mixed_batches: a batch has one objective, and set {own.name} has {', '.join(own.own_sections)} of its "
                "own; set them for the run, such as negatives.static=0 where a set has no negatives"
            )
        guides = {member.negatives.guide for member in self.members.values()} - {None}
        if len(guides) > 1:
            raise UsageError(f"data.mixture: one guide serves all sets, not {len(guides)}; give one as negatives.guide")
        for each, (name, member) in zip(data.mixture, self.members.items(), strict=True):
            if data.mixed_batches and member.negatives.retrieved:
                raise UsageError(
                    "data.mixed_batches: negatives.retrieved come from the corpus of a batch's set; leave one of them out"
                )
            with of_set(name):
                if each.token_cache is not None:
                    raise UsageError("token_cache is the run's; set data.token_cache")
                if member.contrastive.corpus_softmax:
                    raise UsageError("contrastive.corpus_softmax is over one corpus; leave one of them out")
                member.check()

    def _check_objective(self) -> None:
        negatives, contrastive = self.negatives, self.contrastive
        if bool(negatives.mined) != (self.data.mined is not None):
            raise UsageError("negatives.mined and data.mined go together; set both, or neither")
        if contrastive.loss != "softmax":
            if not is_own(contrastive.loss):
                raise UsageError(
                    f"contrastive.loss={contrastive.loss}: no such loss; there is softmax, and your own as FILE.py:FUNCTION"
                )
            of_softmax = ("corpus_softmax", "among_questions", "among_positives")
            if name := next((name for name in of_softmax if getattr(contrastive, name)), None):
                raise UsageError(
                    f"contrastive.{name} is a denominator of the softmax; leave it out with a contrastive.loss of your own"
                )
        for name in ("symmetric", "corpus_softmax"):
            if negatives.guide is not None and getattr(contrastive, name):
                raise UsageError(f"contrastive.{name} does not ask negatives.guide; leave one of them out")
        if contrastive.hardness_of != "all" and not contrastive.hardness:
            raise UsageError("contrastive.hardness_of is of contrastive.hardness; set both, or neither")
        if contrastive.flops_warmup and not (contrastive.flops_questions or contrastive.flops_passages):
            raise UsageError(
                "contrastive.flops_warmup is of flops_questions and flops_passages; set one of them as well"
            )
        if contrastive.flops_warmup > self.train.steps:
            raise UsageError(
                f"contrastive.flops_warmup={contrastive.flops_warmup}: more than the run's {self.train.steps} steps; lower it"
            )
        if negatives.margin is not None and not negatives.retrieved:
            raise UsageError(
                "negatives.margin is of retrieved negatives (`jaxretr mine` has one for mined ones); set negatives.retrieved, or "
                "leave it out"
            )
        self.distillation.check()
        if self.distillation.contrastive_weight == 0:
            for name in ("loss", "symmetric", "among_questions", "among_positives", "hardness", "corpus_softmax"):
                if getattr(contrastive, name) != getattr(Contrastive, name):
                    raise UsageError(
                        f"contrastive.{name}={getattr(contrastive, name)}: has no effect with "
                        "distillation.contrastive_weight=0; leave one of them out"
                    )
        if self.typos.multi_positive and not contrastive.symmetric:
            raise UsageError(
                "typos.multi_positive is about the passages' side of the loss; set contrastive.symmetric as well"
            )
