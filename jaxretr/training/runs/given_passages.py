"""Judged passages and hard negatives that an ART run adds to those that it retrieves, drawn at every step."""

from collections.abc import Sequence

import numpy as np

from jaxretr.config import ArtConfig
from jaxretr.data.corpus import Corpus
from jaxretr.data.question_identity import joined_by_text, text_key
from jaxretr.data.training_set import Ragged, load_training_set
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.streams import HostStream, host_generator
from jaxretr.training.runs.example_draws import draw_entries


class GivenPassages:
    """Draws from the examples of `data.judged` that have a question's text."""

    def __init__(self, config: ArtConfig, corpus: Corpus, questions: Sequence[str]):
        """Read the examples.

        Args:
          config: config of the run.
          corpus: corpus of the run; passages that it lacks are left out.
          questions: training questions of the run.

        Raises:
          UserError: a file that cannot be read, or that has passages for none of the questions.
        """
        path = config.data.judged
        assert path is not None
        examples = load_training_set(path, corpus, split=config.data.questions_split or "train")
        known = {text_key(text): number for number, text in enumerate(examples.texts)}

        def of_questions(lists: Ragged) -> Ragged:
            joined = joined_by_text(examples.texts, map(lists.__getitem__, range(len(lists))))
            numbers = [known.get(text_key(text)) for text in questions]
            rows = [[] if number is None else joined[number] for number in numbers]
            return Ragged.from_rows([[row for row in each if row < len(corpus)] for each in rows], np.int32)

        wanted = ((config.art.positives, examples.positives), (config.art.hard_negatives, examples.negatives))
        self._lists = [(count, of_questions(lists)) for count, lists in wanted if count]
        for _, lists in self._lists:
            if not len(lists.values):
                raise UserError(
                    f"{path}: has no such passages in the corpus for any question of {config.data.questions}; name their "
                    "training file with data.judged"
                )
        self.content = [[lists.offsets, lists.values] for _, lists in self._lists]
        self._seed = config.train.seed

    def rows(self, chosen: np.ndarray, step: int) -> np.ndarray:
        """Return corpus rows of some questions' passages in a step, int32 [B, places]; -1 in empty places."""
        rng = host_generator(self._seed, HostStream.GIVEN_PASSAGES, step)
        return np.concatenate([draw_entries(rng, lists, chosen, count)[0] for count, lists in self._lists], axis=1)
