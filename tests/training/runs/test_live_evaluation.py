"""Evaluation on the live index: a corpus is encoded once for the same weights, and the figures are the same."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import DATA, contrastive_config

from jaxretr.training.loop import train
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.runs import whole_corpus
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.runs.corpus_programs import RunState
from jaxretr.training.state import CorpusState


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """For each time that the corpus was encoded, the step of the weights."""
    steps: list[int] = []
    make = whole_corpus.make_refresh

    def counting(*constants: Any) -> Any:
        refresh = make(*constants)

        def call(weights: Any, passages: Any, index: Any, step: Any) -> Any:
            steps.append(int(step))
            return refresh(weights, passages, index, step)

        return call

    monkeypatch.setattr(whole_corpus, "make_refresh", counting)
    return steps


def config(models: Path, **settings: Any) -> Any:
    return contrastive_config(
        models,
        data={"corpus": str(DATA)},
        negatives={"retrieved": 1},
        index={"refresh_every": 2, "write_back": True, "dtype": "bfloat16"},
        train={"steps": 5, "save_every": 100, **settings},
    )


def test_a_corpus_is_encoded_once_for_the_same_weights(tiny_models: Path, tmp_path: Path, encodings: list[int]) -> None:
    """At the beginning, at each refresh and at the end, whose index nothing else is trained on; and nothing else changes.

    Evaluating between refreshes costs an index beside the live one, which stays as it is.
    """
    train(config(tiny_models, eval_every=2), tmp_path / "at refreshes")
    assert encodings == [0, 2, 4, 5]
    encodings.clear()
    train(config(tiny_models, eval_every=3), tmp_path / "between them")
    assert encodings == [0, 2, 3, 4, 5]
    runs = [read_metrics(tmp_path / name) for name in ("at refreshes", "between them")]
    losses = [[line["loss"] for line in lines if "loss" in line] for lines in runs]
    assert len(losses[0]) == 5 and losses[0] == losses[1]
    last = [[line for line in lines if "acc@5" in line][-1] for lines in runs]
    assert last[0] == last[1] and last[0]["step"] == 5


def test_figures_are_those_of_an_index_of_their_own(
    tiny_models: Path, tmp_path: Path, mesh1: Any, encodings: list[int]
) -> None:
    """Of the same type, and never of rows that are older than the weights."""
    run = ContrastiveRun(config(tiny_models), mesh1, tmp_path)
    state = run.init()
    for number in range(3):
        encodings.clear()
        expected = run.dev.metrics(state.train, run.whole)
        assert run.evaluate(state) == expected
        # Fresh before the first step, and after the second where the refresh that is due has been made.
        assert len(encodings) == (1 if number in (0, 2) else 2)
        state, _ = run.step(state, number, run.batch(number))
        state = run.refreshed(state, number + 1)
    state = run.refreshed(state, 4)
    assert state.index is not None and run.whole.is_fresh(state.train, state.index)
    one_old_row = CorpusState(state.index.embeddings, state.index.encoded_at.at[0].add(-1))
    assert not run.whole.is_fresh(state.train, one_old_row)


def test_a_refresh_that_an_evaluation_made_is_not_made_again(
    tiny_models: Path, tmp_path: Path, mesh1: Any, encodings: list[int]
) -> None:
    run = ContrastiveRun(config(tiny_models), mesh1, tmp_path)
    state = run.init()
    encodings.clear()
    for number in range(2):
        state, _ = run.step(state, number, run.batch(number))
    state = run.refreshed(run.refreshed(state, 2), 2)
    assert encodings == [2]
    index: Any = state.index
    embeddings = np.asarray(index.embeddings)
    state, metrics = run.step(state, 2, run.batch(2))
    assert encodings == [2]
    assert float(metrics["staleness"]) == 0
    state, metrics = run.step(state, 3, run.batch(3))
    # Rows that step 2 wrote are one step old, those that step 3 wrote are not.
    assert encodings == [2] and 0 < float(metrics["staleness"]) < 1
    assert (np.asarray(index_of(state).embeddings) != embeddings).any(), "what the step found was written back"


def index_of(state: RunState) -> Any:
    return state.index
