"""The examples of a supervised run, whatever files they come from, and the passages that they point into."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxretr.config import ContrastiveConfig, ContrastiveData
from jaxretr.data.corpus import Corpus, read_corpus
from jaxretr.data.lexical_set import is_lexical_set
from jaxretr.data.training_set import TrainingSet, first_copies, load_training_set
from jaxretr.errors import UsageError
from jaxretr.recipes.example_draws import Draws, ExampleDraws
from jaxretr.recipes.lexical_draws import LexicalDraws, as_training_set, open_lexical_set


class RunExamples(NamedTuple):
    """What a run trains and validates on."""

    texts: Sequence[str]
    """The questions, one an example."""
    draws: Draws
    """Which passages stand for them."""
    dev: TrainingSet | None
    passages: Corpus
    """All that any file brings: first the corpus, then the passages of the files that it lacks."""
    corpus_rows: int
    """How many of the passages are the corpus."""
    contents: np.ndarray
    """For each passage the first row with the same title and text, int32 [N]."""


def read_run_examples(config: ContrastiveConfig) -> RunExamples:
    """Reads the files that the config names.

    Raises:
      UserError: a bad row, an unknown passage, another corpus than a lexical set's.
      UsageError: settings that contradict each other or the files.
    """
    data = config.data
    corpus = _corpora(data)
    if is_lexical_set(data.train):
        lexical = open_lexical_set(data.train, corpus)
        assert corpus is not None
        dev, passages = _dev(data, corpus, corpus)
        contents = first_copies(passages)
        draws = LexicalDraws(config, lexical, contents)
        return RunExamples(lexical.queries, draws, dev, passages, len(corpus), contents)
    if data.teacher_positives is not None:
        raise UsageError(f"data.teacher_positives is a lexical set's, and {data.train} is none; leave it out")
    examples = load_training_set(data.train, corpus, format=data.train_format, split=data.split, skip_bad=data.skip_bad)
    # Further files may bring passages of their own: each set's rows begin with those of the one before.
    mined, passages = None, examples.passages
    if data.mined is not None:
        mined = load_training_set(data.mined, passages, skip_bad=data.skip_bad)
        passages = mined.passages
    dev, passages = _dev(data, corpus, passages)
    contents = first_copies(passages)
    draws = ExampleDraws(config, examples, mined, contents)
    return RunExamples(examples.texts, draws, dev, passages, examples.corpus_rows, contents)


def _dev(data: ContrastiveData, corpus: Corpus | None, passages: Corpus) -> tuple[TrainingSet | None, Corpus]:
    """The examples of the validation, and all passages with theirs."""
    if data.dev is None:
        return None, passages
    if is_lexical_set(data.dev):
        return as_training_set(open_lexical_set(data.dev, corpus), passages), passages
    dev = load_training_set(data.dev, passages, split=data.dev_split, skip_bad=data.skip_bad)
    return dev, dev.passages


def _corpora(data: ContrastiveData) -> Corpus | None:
    if data.corpus is None:
        if data.more_corpora:
            raise UsageError("data.more_corpora stand behind data.corpus; set --data.corpus FILE as well")
        return None
    # A lexical set's rows count what was read then, without the bad rows if they were skipped.
    skip_bad = data.skip_bad and is_lexical_set(data.train)
    corpus = read_corpus(data.corpus, skip_bad=skip_bad)
    for path in data.more_corpora:
        corpus = corpus.followed_by(read_corpus(path, skip_bad=skip_bad), path)
    return corpus
