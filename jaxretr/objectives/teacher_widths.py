"""The padded lengths at which a teacher reads rows: few, for each is a part of the compiled step, and near the real lengths."""

from dataclasses import dataclass

import numpy as np

from jaxretr.models.scorers.teachers import Teacher

# Padding tokens a real token that are as few as need be, widths at most, and what these are multiples of. Blocks that are
# not full add to the padding of rows. Questions are a small part of the work.
_ROWS = {"padding": 0.12, "most": 8, "multiple": 8}
_QUESTIONS = {"padding": 0.4, "most": 2, "multiple": 4}


@dataclass(frozen=True)
class TeacherWidths:
    """Padded lengths, ascending; the last ones hold everything.

    Attributes:
      rows: of what the teacher's encoder reads, see `Teacher.row_lengths`.
      questions: of the questions that a T5's decoder reads.
    """

    rows: tuple[int, ...]
    questions: tuple[int, ...]

    @staticmethod
    def of_longest(teacher: Teacher, passage_width: int, question_width: int) -> "TeacherWidths":
        """Those of texts of which no more is known than the columns of their token ids."""
        return TeacherWidths((teacher.longest_row(passage_width, question_width),), (question_width,))

    @staticmethod
    def of_lengths(
        teacher: Teacher,
        passages: np.ndarray,
        questions: np.ndarray,
        passage_width: int,
        question_width: int,
    ) -> "TeacherWidths":
        """Those that suit texts of these lengths.

        Args:
          teacher: what its rows are.
          passages: tokens of all passages, int32 [N].
          questions: of all questions, int32 [Q].
          passage_width: columns of the passages' token ids.
          question_width: of the questions'.
        """
        rows = teacher.row_lengths(passages, np.resize(questions, len(passages)))
        longest = teacher.longest_row(passage_width, question_width)
        return TeacherWidths(
            fewest_widths(rows, longest, **_ROWS),
            fewest_widths(questions, question_width, **_QUESTIONS),
        )


def fewest_widths(lengths: np.ndarray, longest: int, *, padding: float, most: int, multiple: int) -> tuple[int, ...]:
    """The fewest widths to which rows can be padded with so little padding.

    Args:
      lengths: of all rows, integers [n], at most `longest`.
      longest: the last width.
      padding: padding tokens a real token that are allowed on average.
      most: widths, even if there is more padding.
      multiple: all widths but `longest` are multiples of it.

    Returns:
      The widths with the least padding of all that are as many.
    """
    counts = np.bincount(np.maximum(lengths, 1), minlength=longest + 1)
    widths = np.array(sorted({*range(multiple, longest, multiple), longest}))
    # Rows that are no longer than each width, and behind the first entry none.
    held = np.concatenate([[0], np.cumsum(counts)[widths]])
    real = int((counts * np.arange(len(counts))).sum())
    # tokens[j]: of all rows up to width j - 1 with the widths allowed so far; chosen: where the width before stands.
    tokens = np.where(np.arange(len(held)) == 0, 0.0, np.inf)
    history: list[np.ndarray] = []
    for _ in range(most):
        step = np.where(
            np.tri(len(held), k=-1, dtype=bool),
            tokens[None, :] + (held[:, None] - held[None, :]) * np.concatenate([[0], widths])[:, None],
            np.inf,
        )
        history.append(step.argmin(axis=1))
        tokens = step.min(axis=1)
        if tokens[-1] <= (1 + padding) * real:
            break
    chosen, at = [], len(widths)
    for before in reversed(history):
        if at == 0:
            break
        chosen.append(int(widths[at - 1]))
        at = int(before[at])
    return tuple(reversed(chosen))
