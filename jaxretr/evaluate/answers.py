"""Acc@k: the share of questions whose first k passages contain an answer, as `has_answer` matches it."""

from collections.abc import Iterable, Sequence

from jaxretr.data.answer_matching import AnswerMatcher, Match, has_answer
from jaxretr.errors import UsageError, UserError

__all__ = ["AnswerMatcher", "Match", "accuracy", "accuracy_of_first_hits", "first_hit", "first_hits", "has_answer"]


def first_hit(texts: Iterable[str], answers: Sequence[str], match: Match = "string") -> int | None:
    """Return the index (from 0) of the first of the ranked passages that contains an answer, or None.

    Args:
      texts: the ranked passages' texts, best first; read no further than the first hit.
      answers: the accepted answers, or regular expressions.
      match: "string" or "regex".
    """
    return AnswerMatcher(match, cached_passages=0).first_hit(texts, answers)


def first_hits(
    answers: Sequence[Sequence[str]], passages: Iterable[Iterable[str]], match: Match = "string"
) -> list[int | None]:
    """Return `first_hit` for each of B questions.

    Args:
      answers: the accepted answers of each question, [B][any number].
      passages: the ranked passage texts of each question, [B][K], best first.
      match: "string" or "regex".

    Raises:
      ValueError: not as many rankings as questions.
    """
    matcher = AnswerMatcher(match)
    return [matcher.first_hit(texts, accepted) for accepted, texts in zip(answers, passages, strict=True)]


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
    return accuracy_of_first_hits(first_hits(answers, passages, match), ks)


def accuracy_of_first_hits(hits: Sequence[int | None], ks: Sequence[int]) -> dict[str, float]:
    """Compute Acc@k from the result of `first_hits`; see `accuracy`."""
    if not hits:
        raise UserError("Acc@k needs at least one question; the list of questions is empty")
    for k in ks:
        if k < 1:
            raise UsageError(f"acc@{k}: the cut must be at least 1")
    return {f"acc@{k}": sum(hit is not None and hit < k for hit in hits) / len(hits) for k in ks}
