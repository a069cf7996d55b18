"""Training of cross-encoders."""

from dataclasses import dataclass, field
from typing import Literal

from jaxretr.config.data import ExampleData
from jaxretr.config.models import PairEncoder
from jaxretr.config.run import Config
from jaxretr.runtime.errors import UsageError, at_least


@dataclass(frozen=True, kw_only=True)
class RerankerData(ExampleData):
    """Input of a cross-encoder's run. It is evaluated by re-ranking a fixed list of passages of each dev question."""

    dev_run: str | None = None
    """A run of the dev questions (any format that `jaxretr evaluate run` reads), whose passages are re-ranked; None:
    BM25's first passages of the corpus."""
    dev_depth: int = 50
    """Passages of each dev question that are re-ranked, the best of the run."""


@dataclass(frozen=True)
class PairNegatives:
    """Each question's passages besides its positive: as many as the numbers here say together. A place that the files
    or BM25 have no passage for gets a random one."""

    static: int = 0
    """Negatives of each question that are drawn at each step from the training file's hard negatives; where a question
    has none, from its others."""
    mined: int = 0
    """Negatives of each question that are drawn at each step from the negatives of `data.mined`."""
    bm25: int = 0
    """Negatives of each question that are drawn at each step from BM25's ranking of the corpus, which is made before
    the first step."""
    first_rank: int = 1
    """The first of BM25's ranks that are drawn from, counted from 1."""
    last_rank: int = 100
    """The last of BM25's ranks that are drawn from."""
    random: int = 0
    """Negatives of each question that are drawn at each step from the whole corpus."""

    @property
    def count(self) -> int:
        """Negatives of each question, of all kinds together."""
        return self.static + self.mined + self.bm25 + self.random

    def check(self) -> None:
        """Refuse numbers of negatives that no run can have."""
        at_least(0, **{f"negatives.{name}": getattr(self, name) for name in ("static", "mined", "bm25", "random")})
        if not self.count:
            raise UsageError(
                "negatives: a cross-encoder needs some for each question; set negatives.bm25, negatives.random, "
                "negatives.static or negatives.mined"
            )
        if not 1 <= self.first_rank <= self.last_rank:
            raise UsageError(
                f"negatives.first_rank={self.first_rank} and last_rank={self.last_rank}: ranks count from 1 upwards"
            )


@dataclass(frozen=True)
class Ranking:
    """The objective of a cross-encoder."""

    loss: Literal["binary", "listwise", "lambda", "ranknet", "margin_mse", "kl"] = "binary"
    """binary: the sigmoid cross-entropy of each pair (Nogueira and Cho 2019). listwise: the softmax cross-entropy of
    the positive among the question's passages (localized contrastive estimation, Gao et al. 2021). ranknet: the order of
    the positive and each negative (Burges et al. 2005). lambda: the same, weighted by what the order means for nDCG
    (LambdaLoss with NDCG-Loss2++, Wang et al. 2018). margin_mse, kl: a teacher's stored scores (the training file's), as
    `distillation.loss` of a dual encoder."""
    positive_weight: float = 1.0
    """Factor of the positives' losses (binary), as there are fewer of them than of negatives."""
    teacher_order: bool = False
    """Learn the order of any two passages by a teacher's stored scores instead of positive before negative (ranknet)."""
    teacher_temperature: float = 1.0
    """Divisor of the teacher's scores (kl)."""
    chunk: int = 32
    """Pairs that each device reads at once: memory, not mathematics."""

    @property
    def has_teacher(self) -> bool:
        """Whether a teacher's scores are learnt from."""
        return self.loss in ("margin_mse", "kl") or self.teacher_order

    def check(self) -> None:
        """Refuse settings that contradict each other."""
        at_least(1, **{"ranking.chunk": self.chunk})
        for name, loss in (("positive_weight", "binary"), ("teacher_temperature", "kl")):
            if not (value := getattr(self, name)) > 0:
                raise UsageError(f"ranking.{name}={value}: must be above 0")
            if value != 1 and self.loss != loss:
                raise UsageError(f"ranking.{name} is of the {loss} loss; leave it out, or set ranking.loss={loss}")
        if self.teacher_order and self.loss != "ranknet":
            raise UsageError(
                "ranking.teacher_order is of ranknet, which needs no more of scores than their order; set "
                "ranking.loss=ranknet, or leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class RerankerConfig(Config):
    """Training of a cross-encoder (re-ranker) on judged pairs."""

    data: RerankerData
    encoder: PairEncoder
    negatives: PairNegatives = field(default_factory=PairNegatives)
    ranking: Ranking = field(default_factory=Ranking)

    def check(self) -> None:
        super().check()
        if bool(self.negatives.mined) != (self.data.mined is not None):
            raise UsageError("negatives.mined and data.mined go together; set both, or neither")
        at_least(1, **{"data.dev_depth": self.data.dev_depth})
        negatives = self.negatives
        if self.ranking.has_teacher and negatives.count > negatives.static:
            raise UsageError(
                f"ranking.loss={self.ranking.loss}: only the training file's passages have a teacher's scores; set "
                "negatives.static, and negatives.mined, bm25 and random to 0"
            )
        if self.encoder.adapter is not None and self.encoder.adapter.bottleneck:
            raise UsageError(
                "encoder.adapter.bottleneck: a cross-encoder's folder has no place for a parallel adapter; set "
                "encoder.adapter.lora_rank alone"
            )
        if self.data.dev_run is not None and not self.data.has_dev_questions:
            raise UsageError("data.dev_run ranks the dev questions' passages; set data.dev_questions as well")
