"""Questions that are kept out of training, to choose the best checkpoint by."""

import hashlib
import logging
from collections.abc import Iterable, Sequence

import numpy as np

from jaxretr.data.question_identity import text_key
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.notes import note

log = logging.getLogger(__name__)

# The largest share of the questions, as 1 / _SHARE.
_SHARE = 10


def held_out(texts: Sequence[str], most: int, where: str) -> np.ndarray:
    """Choose the questions whose texts have the lowest hashes: the same ones in every order, process and run.

    Questions that differ in case or spaces alone are on one side, so that none is trained on and measured with.

    Args:
      texts: B questions.
      most: the most questions to hold out, counting equal texts once; never more than a tenth of them.
      where: the file, for errors.

    Returns:
      The mask of the questions that are held out, bool [B].

    Raises:
      UserError: there are fewer than ten.
    """
    keys = list(map(text_key, texts))
    chosen, different = with_lowest_hashes(keys, most), len(set(keys))
    if not chosen:
        raise UserError(
            f"{where}: {different} questions are too few to hold out some for evaluation; give dev data "
            "(data.dev_questions and data.dev_qrels), or train without with data.held_out=0"
        )
    note(log.info, "%s: %d of %d questions are held out for evaluation", where, len(chosen), different)
    return np.array([key in chosen for key in keys])


def with_lowest_hashes(keys: Iterable[str], most: int) -> set[str]:
    """Return the keys with the lowest hashes: at most `most`, and at most a tenth of the different ones."""
    different = sorted(set(keys), key=lambda key: hashlib.sha256(key.encode()).digest())
    return set(different[: min(most, len(different) // _SHARE)])
