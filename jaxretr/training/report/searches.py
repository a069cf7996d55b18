"""The systems that a report compares: BM25, the encoder that a run began with, and the encoder that it became."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from jaxretr.config import ArtConfig, Config, ContrastiveConfig, token_stores
from jaxretr.data.readers import read_beir
from jaxretr.embeddings.encoding import Encoder
from jaxretr.evaluate.measuring import OF_ANSWERS, TestSet
from jaxretr.evaluate.report import Report
from jaxretr.evaluate.searches import System, bm25_search, encoder_search, find_all
from jaxretr.models.combined_encoder import load_encoder
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.notes import HeldNotes
from jaxretr.training.report.run_files import RunFiles
from jaxretr.training.runs.art_texts import read_art_texts
from jaxretr.training.runs.encoder_start import JointModel, load_model
from jaxretr.training.runs.run_examples import read_run_examples
from jaxretr.training.runs.run_inputs import missing_files

METRICS = ("ndcg@10", "mrr@10", "recall@20", "recall@100")
BM25, BEFORE = "BM25", "before training"


def test_set(run: RunFiles, beir: str | Path | None, split: str) -> TestSet | None:
    """The questions of a BEIR folder, or without one those of the run's own evaluation; None if it had none.

    Raises:
      UserError: the run's files are no longer where its config says.
    """
    if beir is not None:
        read = read_beir(beir, split)
        return TestSet(read.questions, read.corpus, read.qrels, source=f"{split} of {beir}")
    if isinstance(run.config, ArtConfig):
        with _inputs_of(run):
            texts = read_art_texts(run.config.data, token_stores(run.config.data, run.folder))
            corpus, judged = texts.corpus, None if texts.unjudged else texts.dev
    elif isinstance(run.config, ContrastiveConfig) and run.config.data.has_dev_questions:
        with _inputs_of(run):
            examples = read_run_examples(run.config)
            judged, corpus = examples.evaluated_on(run.config.data, examples.corpus_rows)
    else:
        return None
    if judged is None:
        return None
    return TestSet(judged.questions, corpus, judged.qrels, source=f"dev questions of {run.name}")


@contextlib.contextmanager
def _inputs_of(run: RunFiles) -> Iterator[None]:
    """Read again what a run read: without its notes, which the run has said, and with the setting of a missing file."""
    try:
        with HeldNotes():
            yield
    except UserError as error:
        if not (missing := missing_files(run.config, str(error))):
            raise
        raise UserError(
            f"{run.folder / 'config.json'}: {', '.join(missing)} is not found from {Path.cwd()} ({error}); start the report "
            "in the folder that the run was trained from, put the file back, or leave the searches out"
        ) from error


def _begins_with_model(config: Config) -> TypeGuard[ArtConfig | ContrastiveConfig]:
    """Whether the weights of a run's encoder are those of a model, not random."""
    return isinstance(config, ArtConfig | ContrastiveConfig) and config.encoder.fresh is None


def before(run: RunFiles) -> Encoder | None:
    """The model that a run began with; None where its weights were random."""
    config = run.config
    if not _begins_with_model(config):
        return None
    with _inputs_of(run):
        model = load_model(config.encoder, config.joint, config.train.seed)
    return model.combined(model.params) if isinstance(model, JointModel) else model


def of_run(run: RunFiles) -> System:
    """The best model of a run, which has one, as a system."""
    return _system(run.name, partial(load_encoder, str(run.model)))


def _system(name: str, load: Callable[[], Any]) -> System:
    return name, lambda corpus: encoder_search(load(), corpus, None)


def compare(runs: Sequence[RunFiles], on: TestSet) -> Report:
    """Search with every run's model, with the encoder that the first began with, and with BM25.

    Returns:
      The first run against the others: BM25 and BEFORE come first among the baselines, then the further runs.
    """
    metrics = OF_ANSWERS if on.qrels is None else METRICS

    of_runs = [of_run(run) for run in runs if run.model is not None]
    began = [_system(BEFORE, partial(before, runs[0]))] if _begins_with_model(runs[0].config) else []
    return Report.of(find_all([of_runs[0], (BM25, bm25_search), *began, *of_runs[1:]], on, metrics), on, metrics)
