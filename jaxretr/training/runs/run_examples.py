"""The examples of a supervised run, from any kind of file, and the passages that they refer to."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxretr.config import ContrastiveConfig, ContrastiveData, ExampleData
from jaxretr.data.corpus import Corpus, read_corpus
from jaxretr.data.duplicate_groups import duplicate_groups
from jaxretr.data.held_out import held_out
from jaxretr.data.lexical_set import is_lexical_set
from jaxretr.data.made_of import note_other_corpus
from jaxretr.data.readers import qrels_path
from jaxretr.data.source import source_of
from jaxretr.data.training_set import TrainingSet, load_training_set
from jaxretr.runtime.errors import UsageError
from jaxretr.training.runs.example_draws import Draws, ExampleDraws, LexicalDraws, as_training_set, open_lexical_set
from jaxretr.training.runs.whole_corpus import Judged, dev_questions


class RunExamples(NamedTuple):
    """Examples that a run trains and validates on."""

    texts: Sequence[str]
    """The questions, one per example."""
    draws: Draws
    """The draws of the questions' passages."""
    dev: TrainingSet | None
    """Examples of `data.dev`, or those that `data.held_out` keeps out of training."""
    passages: Corpus
    """All passages of all files: first the corpus, then those that it lacks."""
    corpus_rows: int
    """Number of passages, from the first, that are the corpus."""
    contents: np.ndarray
    """First row with the same title and text as each passage, int32 [N]."""

    def evaluated_on(self, data: ExampleData, rows: int) -> tuple[Judged | None, Corpus]:
        """Return the dev questions of a run, None if it has none, and the passages that are searched for them.

        Args:
          rows: number of passages, from the first, that are searched.
        """
        judged = dev_questions(data)
        if data.held_out and rows:
            assert self.dev is not None
            judged = Judged(self.dev.questions, self.dev.qrels)
        return judged, self.passages.first(rows)


def read_run_examples(config: ContrastiveConfig) -> RunExamples:
    """Read the files that the config names.

    Raises:
      UserError: a bad row, an unknown passage, another corpus than a lexical set's.
      UsageError: settings that contradict each other or the files.
    """
    data = config.data
    if data.held_out and (data.dev is not None or data.dev_questions is not None):
        raise UsageError(
            "data.held_out is for runs without a dev set; leave it out, or data.dev and data.dev_questions"
        )
    for path, split, name in ((data.train, data.split, "split"), (data.dev, data.dev_split, "dev_split")):
        # Checked before the corpus is read: a missing split should not cost the minutes that a large corpus takes.
        if path is not None and source_of(path).is_dir() and not is_lexical_set(path):
            qrels_path(path, split, f"data.{name}")
    # The training file as the corpus: all passages that it brings.
    own = data.corpus == data.train and not source_of(data.train).is_dir()
    corpus = None if own else _corpora(data)
    if is_lexical_set(data.train):
        if data.held_out:
            raise UsageError(
                f"{data.train}: a lexical set has a dev set of its own (jaxretr mine lexical --dev N); name it with "
                "data.dev, and leave data.held_out out"
            )
        lexical = open_lexical_set(data.train, corpus)
        assert corpus is not None
        dev, passages = _dev(data, corpus, corpus)
        contents = duplicate_groups(passages)
        draws = LexicalDraws(config, lexical, contents)
        return RunExamples(lexical.queries, draws, dev, passages, len(corpus), contents)
    if data.teacher_positives is not None:
        raise UsageError(f"data.teacher_positives is a lexical set's, and {data.train} is none; leave it out")
    examples = load_training_set(data.train, corpus, format=data.train_format, split=data.split, skip_bad=data.skip_bad)
    if own:
        if data.more_corpora:
            raise UsageError("data.more_corpora extends a corpus file, not the training file's own passages")
        examples = dataclasses.replace(examples, corpus_rows=len(examples.passages))
    chosen = None
    if data.held_out:
        kept = held_out(examples.texts, data.held_out, data.train)
        chosen, examples = examples.only(kept), examples.only(~kept)
    whole = (
        examples.passages if examples.corpus_rows == len(examples.passages) else corpus
    )  # a BEIR folder brings its own
    for name in ("train", "mined"):
        if (path := getattr(data, name)) is not None and whole is not None:
            note_other_corpus(path, f"data.{name}", whole.fingerprint)
    # Further files may bring passages of their own: each set's rows begin with those of the previous set.
    mined, passages = None, examples.passages
    if data.mined is not None:
        mined = load_training_set(data.mined, passages, skip_bad=data.skip_bad)
        passages = mined.passages
    dev, passages = _dev(data, corpus, passages) if chosen is None else (chosen, passages)
    contents = duplicate_groups(passages)
    draws = ExampleDraws(config, examples, mined, contents)
    return RunExamples(examples.texts, draws, dev, passages, examples.corpus_rows, contents)


def _dev(data: ContrastiveData, corpus: Corpus | None, passages: Corpus) -> tuple[TrainingSet | None, Corpus]:
    """Return the examples of the validation, and all passages including theirs."""
    if data.dev is None:
        return None, passages
    if is_lexical_set(data.dev):
        return as_training_set(open_lexical_set(data.dev, corpus), passages), passages
    dev = load_training_set(data.dev, passages, split=data.dev_split, skip_bad=data.skip_bad)
    return dev, dev.passages


def _corpora(data: ContrastiveData) -> Corpus | None:
    if data.corpus is None:
        if data.more_corpora:
            raise UsageError("data.more_corpora extends data.corpus; set data.corpus=FILE as well")
        return None
    # A lexical set's rows count the passages that were read then, without the bad rows if they were skipped.
    skip_bad = data.skip_bad and is_lexical_set(data.train)
    corpus = read_corpus(data.corpus, skip_bad=skip_bad)
    for path in data.more_corpora:
        corpus = corpus.followed_by(read_corpus(path, skip_bad=skip_bad), path)
    return corpus
