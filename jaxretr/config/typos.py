"""Training for misspelt questions."""

from dataclasses import dataclass

from jaxretr.config.choices import Keyboard, TypoProfile
from jaxretr.runtime.errors import UsageError


@dataclass(frozen=True)
class Typos:
    """Training for misspelt questions: terms that are added to a run's own objective; see
    jaxretr/training/steps/typo_terms.py.

    A question q has `variants` misspelt forms q~ in a step. With all weights at their defaults there are none, and
    nothing changes.
    """

    profile: TypoProfile = "dictionary"
    """Kind of typos in questions (jaxretr/data/typos/__init__.py)."""
    keyboard: Keyboard = "qwerty"
    """Keyboard layout that determines which keys are neighbours."""
    misspellings: str | None = None
    """A dictionary of one's own for the profile "dictionary"; None: codespell's."""
    variants: int = 1
    """Misspelt forms of each question in a step, where a term below reads any."""
    pre_drawn: int = 0
    """Number of times that each question is misspelt and tokenised before the first step; each step draws its forms
    from these. 0: new typos at every step."""
    augmentation: float = 0.0
    """Chance that a step reads a question itself misspelt."""
    clean_weight: float = 1.0
    """Weight of the run's own objective."""
    contrast_weight: float = 0.0
    """Weight of the cross-entropy of q's own forms among the misspelt forms of the batch's questions."""
    passage_weight: float = 0.0
    """Weight of the run's own objective from question to passages, read with q~ in place of q."""
    self_teaching_weight: float = 0.0
    """Weight of KL(q's distribution over the passages || q~'s), where q is the teacher."""
    passage_self_teaching_weight: float = 0.0
    """Weight of KL(the positive's distribution over the questions || over their misspelt forms); not with ART."""
    multi_positive: bool = False
    """Extend `contrastive.symmetric` to forms: a passage's positives are q and its forms, its negatives the other
    questions and their forms; not with ART."""

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

    def check(self) -> None:
        """Refuse settings that contradict each other."""
        if self.variants > 1 and not self.forms:
            raise UsageError(f"typos.variants={self.variants}: no term reads them; set one of the weights of typos")
        if not self.active and self.pre_drawn:
            raise UsageError(f"typos.pre_drawn={self.pre_drawn}: no term reads them; set one of the weights of typos")
        needed = self.forms + (self.augmentation > 0)
        if self.pre_drawn and self.pre_drawn < needed:
            raise UsageError(f"typos.pre_drawn={self.pre_drawn}: a step reads {needed} of a question; draw as many")
        if self.clean_weight != 1 and not self.forms:
            raise UsageError("typos.clean_weight weighs the objective against terms for typos; set one of these")
