"""A scorer as the judge of mined negatives: it drops those it finds too good, and gives scores to distil from.

NV-Retriever (https://arxiv.org/abs/2407.15831) drops candidates that a teacher scores near the positive or above it, since
they are often unjudged positives; RLHN (https://arxiv.org/abs/2505.16967) makes them positives.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from jaxretr.data.pairs import Pair
from jaxretr.data.question_identity import joined_by_text
from jaxretr.data.questions import Question
from jaxretr.embeddings.kept_chunks import KeptChunks
from jaxretr.embeddings.pair_scores import score_pairs
from jaxretr.mining.negatives import Mined, Passages
from jaxretr.models.any_scorer import Scorer
from jaxretr.models.pair_scorer import CrossEncoder
from jaxretr.runtime.errors import UsageError, is_number

# Questions whose passages are scored, and kept, together: the more, the more of them share a passage, which is read once.
_QUESTIONS = 256


@dataclass(frozen=True)
class ScorerFilter:
    """The conditions on a scorer's scores under which a candidate is a negative.

    Attributes:
      scorer: the model.
      max_share: a negative's probability is at most this share of the best positive's: sigmoid(logit) for cross-encoders,
        exp(mean log-likelihood of a token) for language models; None: no such filter.
      margin: a negative's raw score is at most the best positive's less this; None: no such filter.
      relabel: a candidate whose raw score is at least the best positive's and this becomes a positive; None: none does.
    """

    scorer: Scorer
    max_share: float | None = None
    margin: float | None = None
    relabel: float | None = None

    def __post_init__(self) -> None:
        if self.max_share is not None and not (is_number(self.max_share) and 0 < self.max_share <= 1):
            raise UsageError(f"the largest share of a positive's score is between 0 and 1, not {self.max_share!r}")
        if self.margin is not None and not is_number(self.margin):
            raise UsageError(f"the margin of a scorer's scores must be a finite number, not {self.margin!r}")
        if self.relabel is not None and not (is_number(self.relabel) and self.relabel >= 0):
            raise UsageError(f"the margin of relabelled passages must be 0 or a number above, not {self.relabel!r}")

    def passes(self, scores: np.ndarray, positives: np.ndarray) -> np.ndarray:
        """Whether each candidate is a negative, bool [K], from raw scores float32 [K] and [P] of one question."""
        best = positives.max(keepdims=True)
        passes = np.ones(len(scores), bool)
        if self.margin is not None:
            passes &= scores <= best - np.float32(self.margin)
        if self.max_share is not None:
            passes &= self.probabilities(scores) <= self.max_share * self.probabilities(best)
        return passes

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Map raw scores to probabilities between 0 and 1, float64 [K]."""
        scores = scores.astype(np.float64)
        if isinstance(self.scorer, CrossEncoder):
            return np.exp(-np.logaddexp(0.0, -scores))
        return np.exp(scores)


def judged_by_scorer(
    mined: Iterable[Mined],
    questions: Sequence[Question],
    positives: Sequence[Sequence[int]],
    passages: Passages,
    rule: ScorerFilter,
    negatives: int,
    kept: KeptChunks | None = None,
) -> Iterator[Mined]:
    """Yield the negatives that pass a scorer, with its raw scores of them and of the positives.

    Args:
      mined: all candidates of each of B questions, none of them left out for being surplus.
      questions: B questions.
      positives: the rows of all positives of each question, [B][P].
      negatives: the most negatives of a question; the best ranked are taken.
      kept: the folder from which scores of an earlier call are read, and in which new ones are kept; None: no folder.
    """
    # A passage becomes a positive of all questions with one text or of none, so it is compared with the positives of them
    # all, each question's own before the others.
    of_text = positives
    if rule.relabel is not None:
        joined = joined_by_text([question.text for question in questions], positives)
        of_text = [
            [*own, *(row for row in rows if row not in own)] for own, rows in zip(positives, joined, strict=True)
        ]
    rest = iter(mined)
    for start in range(0, len(questions), _QUESTIONS):
        block = dict(enumerate(islice(rest, _QUESTIONS), start))
        rows = {number: [*of_text[number], *of_one.rows.tolist()] for number, of_one in block.items()}
        found = _read(kept, start, rows)
        new = False
        while asked := {
            number: rows[number][(done := len(found[number])) : done + more]
            for number in block
            if (more := _wanting(rule, found[number], len(positives[number]), len(rows[number]), negatives))
        }:
            new = True
            for number, scores in _scored(rule.scorer, questions, passages, asked).items():
                found[number] = np.concatenate([found[number], scores])
        if kept is not None and new:
            counts = [len(scores) for scores in found.values()]
            scored = [row for number, count in zip(rows, counts, strict=True) for row in rows[number][:count]]
            kept.write(start, np.array(counts), np.array(scored), np.concatenate([*found.values()]))
        for number, of_one in block.items():
            of_positives, of_candidates = np.split(found[number], [len(of_text[number])])
            yield _judged(of_one, of_candidates, of_positives, len(positives[number]), rule, negatives)


def _wanting(rule: ScorerFilter, found: np.ndarray, positives: int, rows: int, negatives: int) -> int:
    """Return how many more of a question's rows to score, whose first are its positives; 0: it can be judged."""
    rest = rows - len(found)
    if rule.relabel is not None:
        return rest
    # Candidates behind the last one that is kept are not asked about.
    if len(found) < positives:
        return min(rest, positives + negatives)
    enough = rule.passes(found[positives:], found[:positives]).sum() >= negatives
    return 0 if enough else min(rest, negatives)


def _read(kept: KeptChunks | None, start: int, rows: Mapping[int, Sequence[int]]) -> dict[int, np.ndarray]:
    """Return the kept scores of some questions, those of each question's first rows."""
    none = {number: np.empty(0, np.float32) for number in rows}
    arrays = (
        None if kept is None else kept.read(start, (np.int64, (len(rows),)), (np.int64, (None,)), (np.float32, (None,)))
    )
    if arrays is None:
        return none
    counts, scored, scores = arrays
    ends = np.cumsum(counts)[:-1]
    known = zip(rows, np.split(scored, ends), np.split(scores, ends), strict=True)
    # With other settings a question may have other candidates.
    return none | {number: of_one for number, ids, of_one in known if rows[number][: len(ids)] == ids.tolist()}


def _scored(
    scorer: Scorer, questions: Sequence[Question], passages: Passages, rows: Mapping[int, Sequence[int]]
) -> dict[int, np.ndarray]:
    """Return the scores of some questions' rows, by the questions' numbers."""
    pairs = [
        Pair(questions[number].text, passages.titles[row], passages.texts[row])
        for number, of_one in rows.items()
        for row in of_one
    ]
    scores = score_pairs(scorer, pairs, len(pairs), shown=False) if pairs else np.empty(0, np.float32)
    ends = np.cumsum([len(of_one) for of_one in rows.values()])
    return dict(zip(rows, np.split(scores, ends[:-1]), strict=True))


def _judged(
    mined: Mined, scores: np.ndarray, of_text: np.ndarray, own: int, rule: ScorerFilter, negatives: int
) -> Mined:
    better, positive_scores = np.zeros(len(scores), bool), of_text[:own]
    if rule.relabel is not None:
        better = scores >= of_text.max() + np.float32(rule.relabel)
    passing = np.flatnonzero(rule.passes(scores, positive_scores) & ~better)
    kept = passing[:negatives]
    # As in `hard_negatives`, candidates behind the last one that is kept were not looked at.
    looked_at = int(kept[-1]) + 1 if len(kept) == negatives else len(scores)
    behind = len(mined.rows) - len(scores)
    dropped = {
        **mined.dropped,
        "relabelled": int(better.sum()),
        "scorer": int((~better[:looked_at]).sum()) - len(kept),
        "surplus": mined.dropped["surplus"] + int((~better[looked_at:]).sum()) + behind,
    }
    return replace(
        mined,
        rows=mined.rows[kept],
        scores=scores[kept],
        positive_scores=positive_scores,
        dropped=dropped,
        relabelled=mined.rows[: len(scores)][better],
        relabelled_scores=scores[better],
    )
