"""Acc@k: the share of questions whose first k passages contain an answer, as `has_answer` matches it."""

from collections.abc import Iterable, Sequence

from jaxretr.data.answer_matching import AnswerMatcher, Match, has_answer
from jaxretr.runtime.errors import UsageError, UserError

__all__ = ["AnswerMatcher", "Match", "accuracy", "has_answer"]


def accuracy(
    answers: Sequence[Sequence[str]],
    passages: Iterable[Iterable[str]],
    ks: Sequence[int],
    match: Match = "string",
) -> dict[str, float]:
    """Compute Acc@k: the share of ALL questions with an answer among the first k passages.

    A question without answers, or without passages, counts as missed.

    Args:
      answers: the accepted answers of each question, [B][any number].
      passages: the ranked passage texts of each question, [B][K], best first.
      ks: the cuts, each at least 1.
      match: "string" or "regex".

    Returns:
      {"acc@20": share in [0, 1], ...} in the order of `ks`.

    Raises:
      UserError: there is no question.
      UsageError: a cut below 1.
      ValueError: not as many rankings as questions.
    """
    matcher = AnswerMatcher(match)
    hits = [matcher.first_hit(texts, accepted) for accepted, texts in zip(answers, passages, strict=True)]
    if not hits:
        raise UserError("Acc@k needs at least one question; the list of questions is empty")
    for k in ks:
        if k < 1:
            raise UsageError(f"acc@{k}: the cut must be at least 1")
    return {f"acc@{k}": sum(hit is not None and hit < k for hit in hits) / len(hits) for k in ks}
