"""The texts of an ART run: corpus, questions to learn from and to be evaluated on, and passages that are given for some."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxretr.config import ArtConfig, ArtData
from jaxretr.data.corpus import Corpus
from jaxretr.data.formats.kinds import is_training_file
from jaxretr.data.held_out import held_out
from jaxretr.data.mapped_corpus import mapped_corpus
from jaxretr.data.question_identity import joined_by_text, text_key
from jaxretr.data.questions import Question
from jaxretr.data.readers import qrels_path, read_qrels, read_questions
from jaxretr.data.training_set import Ragged, load_training_set
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.streams import HostStream, host_generator
from jaxretr.training.runs.example_draws import draw_entries
from jaxretr.training.runs.whole_corpus import Judged, dev_questions


class ArtTexts(NamedTuple):
    """Texts that an ART run reads."""

    corpus: Corpus
    questions: list[Question]
    """The training questions, in the order of their file."""
    dev: Judged | None
    """Questions that the run is evaluated on."""

    @property
    def unjudged(self) -> bool:
        """Whether these have neither judgements nor answers, so that a teacher alone can say what is found for them."""
        return self.dev is not None and self.dev.qrels is None and not any(each.answers for each in self.dev.questions)


def read_art_texts(data: ArtData, stores: Path) -> ArtTexts:
    """Read the files that `data` names.

    Args:
      stores: folder of the token stores, where the corpus is kept as columns that are mapped into memory.

    Raises:
      UserError: a bad row or a missing file, no question that is left to train on, or nothing to hold out.
      UsageError: settings that contradict each other.
    """
    if data.held_out and data.dev_questions is not None:
        raise UsageError("data.held_out is for runs without a dev set; leave it out, or data.dev_questions")
    dev = dev_questions(data)
    if is_training_file(data.corpus):
        examples = load_training_set(data.corpus)
        corpus = examples.passages
    else:
        examples, corpus = None, mapped_corpus(data.corpus, stores)
    qrels = None
    # The ids and judgements of a training file's questions come from the reader that also reads the corpus's passages.
    if (data.held_out or data.questions == data.corpus) and is_training_file(data.questions):
        if examples is None or data.questions != data.corpus:
            examples = load_training_set(data.questions, corpus)
        questions, qrels = examples.questions, examples.qrels
    else:
        questions, qrels = _questions(data)
    if not data.held_out:
        return ArtTexts(corpus, questions, dev)
    kept = held_out([question.text for question in questions], data.held_out, data.questions)
    out = [question for question, is_kept in zip(questions, kept, strict=True) if is_kept]
    trained = [question for question, is_kept in zip(questions, kept, strict=True) if not is_kept]
    return ArtTexts(corpus, trained, Judged(out, qrels))


def _questions(data: ArtData) -> tuple[list[Question], dict[str, dict[str, int]] | None]:
    """Return the questions that the splits leave, and the judgements of `questions_split`."""
    questions, qrels = read_questions(data.questions), None
    if data.questions_split is not None:
        qrels = read_qrels(qrels_path(data.questions, data.questions_split, "data.questions_split"))
        questions = [question for question in questions if question.id in qrels]
    for split in data.exclude_splits:
        judged = read_qrels(qrels_path(data.questions, split, "data.exclude_splits"))
        questions = [question for question in questions if question.id not in judged]
    if not questions:
        raise UserError(
            f"{data.questions}: data.questions_split and data.exclude_splits leave no question to train on; name a "
            "split with data.questions_split"
        )
    return questions, qrels


class GivenPassages:
    """Judged passages and hard negatives that a run adds to those that it retrieves, drawn at every step.

    They are of the examples of `data.judged` that have a question's text.
    """

    def __init__(self, config: ArtConfig, corpus: Corpus, questions: Sequence[str]):
        """Read the examples.

        Args:
          corpus: corpus of the run; passages that it lacks are left out.

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
