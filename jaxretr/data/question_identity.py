"""Identity between questions and passages: which passage is a question itself, and which questions are one.

Some corpora contain the questions: ArguAna's and Quora's. The question itself is then the first that a retriever finds; as
in BEIR it does not count as found, and it is no negative either. An id alone does not tell: where questions and passages
are both numbered from 0, nearly every question shares its id with some passage.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question

Run = TypeVar("Run", bound=Mapping[str, Mapping[str, float]])


def text_key(text: str) -> str:
    """A text's key, which ignores case and white space: equal for texts that count as one."""
    return " ".join(text.lower().split())


def is_same_text(question: str, title: str, text: str) -> bool:
    """Whether a passage's text, or its title followed by its text, is the question's.

    A title alone makes no difference: ArguAna's passages have titles, and its questions are the texts without them.
    """
    key = text_key(question)
    return bool(key) and key in (text_key(text), text_key(f"{title} {text}"))


def own_rows(
    questions: Sequence[Question], corpus: Corpus, qrels: Mapping[str, Mapping[str, int]] | None = None
) -> np.ndarray:
    """Find the passages that are the questions themselves: with the question's id and its text, and not judged relevant.

    Args:
      questions: B questions with different ids, as they were written, without generated typos.
      corpus: the passages.
      qrels: judgements; a passage with a grade above 0 for the question of its id is relevant to it, not itself.

    Returns:
      The row of each question's own passage, int32 [B]; -1 where it is none.
    """
    rows = np.full(len(questions), -1, np.int32)
    number_of = {question.id: number for number, question in enumerate(questions)}
    # One pass in place of the corpus's table of ids, which takes gigabytes of a large one.
    for row, id in enumerate(corpus.ids if number_of else ()):
        number = number_of.get(id)
        if number is None or (qrels or {}).get(id, {}).get(id, 0) > 0:
            continue
        if is_same_text(questions[number].text, corpus.titles[row], corpus.texts[row]):
            rows[number] = row
    return rows


def own_ids(
    questions: Sequence[Question], corpus: Corpus, qrels: Mapping[str, Mapping[str, int]] | None = None
) -> frozenset[str]:
    """The ids of the questions that are passages themselves, which are also the ids of these passages; see `own_rows`."""
    rows = own_rows(questions, corpus, qrels).tolist()
    return frozenset(question.id for question, row in zip(questions, rows, strict=True) if row >= 0)


def without_own(run: Run, own: Collection[str]) -> Run | dict[str, Mapping[str, float]]:
    """Leave out a run's hits that are the question itself, for questions whose ids are in `own`."""
    if not own:
        return run
    return {
        question_id: {id: score for id, score in hits.items() if id != question_id} if question_id in own else hits
        for question_id, hits in run.items()
    }


def without_own_rows(scores: np.ndarray, rows: np.ndarray, own: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Leave out the hits that are the question itself, and keep the first k of the others.

    Args:
      scores: [B, K], best first.
      rows: corpus rows, integers [B, K]; -1 after the last hit.
      own: the row that each question is itself, [B], or -1.
      k: hits to keep; a search for k + 1 gives as many.

    Returns:
      scores and rows, [B, min(k, K)]; -1 after the last hit.
    """
    itself = (rows == own[:, None]) & (rows >= 0)
    order = np.argsort(itself, axis=1, kind="stable")[:, :k]  # itself behind all others
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(np.where(itself, -1, rows), order, axis=1)


def first_with_text(texts: Iterable[str]) -> np.ndarray:
    """The place of the first text that counts as the same, for each text, int64 [B]; an empty text is only itself."""
    first: dict[str, int] = {}
    keys = (text_key(text) for text in texts)
    return np.array([first.setdefault(key, place) if key else place for place, key in enumerate(keys)], np.int64)


def joined_by_text(texts: Sequence[str], rows: Iterable[Iterable[int]]) -> list[list[int]]:
    """Join the rows of each question with those of all questions with the same text, each row once."""
    same = first_with_text(texts).tolist()
    joined: dict[int, dict[int, None]] = {}
    for first, of_one in zip(same, rows, strict=True):
        joined.setdefault(first, {}).update(dict.fromkeys(map(int, of_one)))
    return [list(joined[first]) for first in same]
