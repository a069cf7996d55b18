"""The padded lengths of a teacher's rows: few, as each is a part of the compiled step, and near the real lengths."""

import math
from dataclasses import dataclass

import numpy as np

from jaxretr.models.scorers.teachers import Teacher
from jaxretr.training.steps.widths import fewest_widths

# Padding tokens allowed per real token, largest number of widths, and the number that they are multiples of. Blocks
# that are not full add to the padding of rows. Questions are a small part of the work.
_ROWS = {"padding": 0.12, "most": 8, "multiple": 8}
# Length in tokens that few questions exceed.
_QUESTION = 32
_QUESTIONS = {"padding": 0.4, "most": 2, "multiple": 4}


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
          teacher: constants of the teacher, which determine its rows.
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
          teacher: constants of the teacher, which determine its rows.
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
