"""The padded lengths of rows in a compiled program: few, for each is a part of it, and near the real lengths."""

import numpy as np

# Of a corpus's passages: padding tokens a real token that are as few as need be, widths at most, and what these are multiples
# of. As many as the quarters are.
_PASSAGES = {"padding": 0.05, "most": 4, "multiple": 16}


def passage_widths(lengths: np.ndarray, longest: int) -> tuple[int, ...]:
    """Those that suit a corpus: most passages are of about one length, which quarters of the longest may miss by a third.

    Args:
      lengths: tokens of all passages, integers [N].
      longest: columns of their token ids.
    """
    return fewest_widths(lengths, longest, **_PASSAGES)


def chosen_widths(width: int, known: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The widths that rows of an array are cut to, ascending; the last is the array's own, and holds every row.

    Args:
      width: of the array.
      known: those that suit its rows; where nothing is known of them, quarters of the width, in multiples of 16.
    """
    quarters = (-(-width * part // 4 // 16) * 16 for part in (1, 2, 3))
    return (*sorted({each for each in known or quarters if each < width}), width)


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
