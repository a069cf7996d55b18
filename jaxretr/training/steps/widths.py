"""The padded lengths of rows in a compiled program: few, as each is a part of it, and near the real lengths."""

import math
from dataclasses import dataclass

import numpy as np

from jaxretr.models.scorers.teachers import Teacher

# For a corpus's passages: padding tokens allowed per real token, largest number of widths (as many as there are
# quarters), and the number that they are multiples of.
_PASSAGES = {"padding": 0.05, "most": 4, "multiple": 16}
# The same for a teacher's rows, whose blocks that are not full add to the padding. Questions are a small part of the work.
_ROWS = {"padding": 0.12, "most": 8, "multiple": 8}
# Length in tokens that few questions exceed.
_QUESTION = 32
_QUESTIONS = {"padding": 0.4, "most": 2, "multiple": 4}


def passage_widths(lengths: np.ndarray, longest: int) -> tuple[int, ...]:
    """Return widths for a corpus, most of whose passages have a similar length, which quarters may miss by a third.

    Args:
      lengths: tokens of all passages, integers [N].
      longest: number of columns of their token ids.
    """
    return fewest_widths(lengths, longest, **_PASSAGES)


def chosen_widths(width: int, known: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Return the widths that rows of an array are cut to, ascending; the last is the array's own, and holds every row.

    Args:
      width: number of columns of the array.
      known: widths that suit its rows; without any, quarters of the array's width are used, in multiples of 16.
    """
    quarters = (-(-width * part // 4 // 16) * 16 for part in (1, 2, 3))
    return (*sorted({each for each in known or quarters if each < width}), width)


def fewest_widths(lengths: np.ndarray, longest: int, *, padding: float, most: int, multiple: int) -> tuple[int, ...]:
    """Return the fewest widths to which rows can be padded with at most the allowed padding.

    Args:
      lengths: lengths of all rows, integers [n], at most `longest`.
      longest: the last width.
      padding: padding tokens per real token that are allowed on average.
      most: largest number of widths, even if there is more padding.
      multiple: number of which all widths except `longest` are multiples.

    Returns:
      The widths with the least padding of all sets of that many.
    """
    counts = np.bincount(np.maximum(lengths, 1), minlength=longest + 1)
    widths = np.array(sorted({*range(multiple, longest, multiple), longest}))
    # held[j]: number of rows that are no longer than width j - 1; 0 for j = 0.
    held = np.concatenate([[0], np.cumsum(counts)[widths]])
    real = int((counts * np.arange(len(counts))).sum())
    # tokens[j]: padded tokens of all rows up to width j - 1, with the number of widths allowed so far.
    tokens = np.where(np.arange(len(held)) == 0, 0.0, np.inf)
    history: list[np.ndarray] = []
    for _ in range(most):
        # step[j, i]: the same with one more width, j - 1, for the rows longer than width i - 1.
        step = np.where(
            np.tri(len(held), k=-1, dtype=bool),
            tokens[None, :] + (held[:, None] - held[None, :]) * np.concatenate([[0], widths])[:, None],
            np.inf,
        )
        history.append(step.argmin(axis=1))
        tokens = step.min(axis=1)
        if tokens[-1] <= (1 + padding) * real:
            break
    # Follow the best choices back from the longest width.
    chosen, at = [], len(widths)
    for before in reversed(history):
        if at == 0:
            break
        chosen.append(int(widths[at - 1]))
        at = int(before[at])
    return tuple(reversed(chosen))


# ---- a teacher's rows -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TeacherWidths:
    """Padded lengths, ascending; the last ones hold everything.

    Attributes:
      rows: lengths of the rows that the teacher's encoder reads, see `Teacher.row_lengths`.
      questions: lengths of the questions that a T5's decoder reads.
      average: lengths for a row and a question of average length, which a plan assumes for all.
    """

    rows: tuple[int, ...]
    questions: tuple[int, ...]
    average: tuple[int, int]

    @staticmethod
    def of_averages(teacher: Teacher, passage: float, passage_width: int, question_width: int) -> "TeacherWidths":
        """Return lengths for texts known by their averages: two for rows and for questions, or one if they are close.

        Args:
          passage: tokens of an average passage.
          passage_width: columns of the passages' token ids.
          question_width: columns of the questions' token ids.
        """
        question = min(_QUESTION, question_width)
        average = int(teacher.row_lengths(np.array(math.ceil(passage)), np.array(question)))
        # The average row with the padding that real rows will have.
        padded = -(-int((1 + _ROWS["padding"]) * average) // 8) * 8
        longest = teacher.longest_row(passage_width, question_width)
        rows, questions = ({*x, y} for x, y in (((min(padded, longest),), longest), ((question,), question_width)))
        return TeacherWidths(tuple(sorted(rows)), tuple(sorted(questions)), (min(rows), min(questions)))

    @staticmethod
    def of_lengths(
        teacher: Teacher,
        passages: np.ndarray,
        questions: np.ndarray,
        passage_width: int,
        question_width: int,
    ) -> "TeacherWidths":
        """Return lengths that suit the lengths of these texts.

        Args:
          passages: tokens of all passages, int32 [N].
          questions: tokens of all questions, int32 [Q].
          passage_width: columns of the passages' token ids.
          question_width: columns of the questions' token ids.
        """
        rows = teacher.row_lengths(passages, np.resize(questions, len(passages)))
        longest = teacher.longest_row(passage_width, question_width)
        of_rows = fewest_widths(rows, longest, **_ROWS)
        of_questions = fewest_widths(questions, question_width, **_QUESTIONS)
        average = _holding(of_rows, rows.mean()), _holding(of_questions, questions.mean())
        return TeacherWidths(of_rows, of_questions, average)


def _holding(widths: tuple[int, ...], length: float) -> int:
    return next(width for width in widths if width >= length)
