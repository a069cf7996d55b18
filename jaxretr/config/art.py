"""Training from questions alone (ART)."""

from dataclasses import dataclass, field
from typing import Literal

from jaxretr.config.choices import Replacement
from jaxretr.config.data import DevData
from jaxretr.config.index import IndexAware, LiveIndex
from jaxretr.config.models import Encoder, Joint, Scorer
from jaxretr.config.run import Config
from jaxretr.config.typos import Typos
from jaxretr.runtime.errors import UsageError, at_least


@dataclass(frozen=True, kw_only=True)
class ArtData(DevData):
    """Input of an ART run. The training questions need neither answers nor judgements."""

    corpus: str
    """A corpus file, a BEIR folder, or a training file whose passages then are the corpus."""
    questions: str
    """A file of questions, a BEIR folder, or a training file; the run trains on its questions alone."""
    questions_split: str | None = None
    """Train only on the questions that this split of a BEIR folder's qrels names (the judgements stay unread, except
    those of `held_out`)."""
    exclude_splits: tuple[str, ...] = ()
    """Train on no question that one of these splits of a BEIR folder's qrels names."""
    judged: str | None = None
    """A training file or BEIR folder that `art.positives` and `art.hard_negatives` are drawn from; nothing else is read
    of it."""


@dataclass(frozen=True)
class Art:
    """ART's objective (Sachan et al. 2023, section 2.4)."""

    top_k: int = 32
    """K, the passages retrieved and scored for each question."""
    positives: int = 0
    """Judged passages of each question that are added to the K, drawn from `data.judged` at each step."""
    hard_negatives: int = 0
    """Hard negatives of each question that are added to the K, drawn from `data.judged` at each step."""
    uniform: int = 0
    """Passages that are added to the K, drawn from the whole corpus for each question and step. Passages that a
    question does not have, or has twice, are replaced by such draws too."""
    temperature: float | None = None
    """tau, the divisor of the student's scores; None: the square root of the embedding's size."""
    teacher_temperature: float = 1.0
    """Divisor of the teacher's scores."""
    prior_weight: float = 0.0
    """Weight of an encoder's own scores, held fixed, in the target distribution. 0: the teacher's scores alone, as in ART.
    1: the posterior under that encoder, as in EMDR2 (jaxretr/losses/art.py, `art_target`)."""
    prior: Literal["student", "start"] = "student"
    """The encoder of the prior: student, as it is at the step, so that a run follows the teacher further with every step; or
    start, as it was before the first step, which holds it: the target of a pair then never changes. The start's parameters
    stay on the devices and in the checkpoints, and embed each step's texts once more."""
    shuffle_teacher: bool = False
    """Control experiment: deal out the teacher's scores of each question to its passages at random."""
    chunk: int = 32
    """Passages that the training step embeds at once on each device, or as many tokens of questions: memory, not
    mathematics."""

    @property
    def given(self) -> int:
        """Judged positives and hard negatives that are added to a question's passages in a step."""
        return self.positives + self.hard_negatives

    def check(self) -> None:
        """Raise UsageError for numbers of passages that no run can have."""
        names = ("top_k", "positives", "hard_negatives", "uniform")
        at_least(0, **{f"art.{name}": getattr(self, name) for name in names})
        if self.top_k + self.given + self.uniform < 2:
            raise UsageError("art.top_k: a question needs two passages or more to compare; raise it, or art.uniform")
        if self.prior == "start" and not self.prior_weight:
            raise UsageError(
                "art.prior=start has no effect with art.prior_weight=0; set art.prior_weight=1, or leave it out"
            )


@dataclass(frozen=True)
class ScoreTable:
    """The teacher's scores by training question, on the devices and in the checkpoints: it is asked for no pair
    twice."""

    capacity: int = 256
    """C: passages of a question whose scores are kept, 8 bytes each; at least `art.top_k`, unless it is 0: keep
    none."""
    replacement: Replacement = "unused"
    """Score that a question with C scores loses for a new one. unused: that of the passage that was not retrieved for
    the longest time; oldest: the one that was scored first; worst: the lowest, which may be the new one."""
    path: str | None = None
    """A file of scores to begin with, as `jaxretr mine scores` or `jaxretr score` writes it: the same teacher's, of the
    same questions and passages, by their ids."""

    def check(self) -> None:
        """Raise UsageError for a capacity that no table can have, and for scores without a table."""
        if self.path is not None and not self.capacity:
            raise UsageError(
                "table.path fills the table, and table.capacity=0 keeps none; set table.capacity, or leave it out"
            )


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
    index_aware: IndexAware = field(default_factory=IndexAware)
    table: ScoreTable = field(default_factory=ScoreTable)

    def check(self) -> None:
        super().check()
        if self.typos.multi_positive or self.typos.passage_self_teaching_weight:
            raise UsageError(
                "typos.multi_positive and typos.passage_self_teaching_weight need judged passages, and ART has none; "
                "leave them out"
            )
        if bool(self.art.given) != (self.data.judged is not None):
            raise UsageError(
                "art.positives and art.hard_negatives are drawn from data.judged; set data.judged=FILE with one of them, or "
                "none of the three"
            )
