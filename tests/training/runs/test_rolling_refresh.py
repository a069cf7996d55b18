"""Runs whose live index is refreshed slice by slice: what each step encodes, resumes, other devices, R from a share."""

import functools
import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import small_runs
from tiny import DATA, compiled_quickly, contrastive_config, few_padding_rows
from training_processes import same_losses, same_model

from jaxretr.config import LiveIndex, Train, check_numbers
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.loop import train
from jaxretr.training.runs import index_upkeep
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.runs.index_upkeep import IndexUpkeep, serves_evaluation, steps_of_a_round

ROWS, R, STEPS, EVALUATED = 24, 3, 7, 4


def config(models: Path, **index: Any) -> Any:
    """20 passages, which 24 rows hold; an evaluation in the middle of a round of slices."""
    rolling = {"refresh": "rolling", "refresh_every": R, "write_back": True, "encode_rows": 2}
    return contrastive_config(
        models,
        data={"corpus": str(DATA)},
        encoder=small_runs.ENCODER,
        negatives={"retrieved": 1},
        index=rolling | index,
        # With larger steps the rounding of other sums shows after seven of them.
        optimizer=small_runs.OPTIMIZER | {"learning_rate": 1e-3},
        train={"steps": STEPS, "save_every": 3, "eval_every": EVALUATED},
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    small_runs.write_models(folder)
    return folder


class Tried:
    """A run that notes the rows of its steps, and how often the corpus was encoded."""

    def __init__(self, settings: Any, devices: int, folder: Path, like: "Tried | None" = None):
        """Builds the run; with another one that differs in its refreshes alone, nothing is compiled twice."""
        self.encoded: list[tuple[int, int]] = []
        """(step of the weights, R or 1 for all rows) of each refresh."""
        self.rows: list[np.ndarray] = []
        with few_padding_rows():
            self.run = ContrastiveRun(settings, make_mesh(jax.devices()[:devices]), folder)
        whole, programs = self.run.whole, self.run.programs.step
        self.step = like.step if like else compiled_quickly(programs)
        self.refresh = like.refresh if like else compiled_quickly(whole.refresh_program)
        self.rolling = like.rolling if like else functools.cache(compose(compiled_quickly, whole.rolling_program))
        self.trace = like.trace if like else programs.trace  # pyright: ignore[reportFunctionMemberAccess]
        whole.refresh_program = self._noting(self.refresh, 1, whole.refresh_program)
        whole.rolling_program = lambda every: self._noting(self.rolling(every), every)  # pyright: ignore

        def step(*arguments: Any) -> Any:
            result = self.step(*arguments)
            self.rows.append(np.asarray(result[3]))
            return result

        self.run.programs.step = traced(step, self.trace)

    def _noting(self, program: Any, every: int, jitted: Any = None) -> Any:
        def refresh(weights: Any, passages: Any, index: Any, step: Any) -> Any:
            self.encoded.append((int(step), every))
            return program(weights, passages, index, step)

        return traced(refresh, jitted and jitted.trace)


def compose(outer: Any, inner: Any) -> Any:
    return lambda *arguments: outer(inner(*arguments))


def traced(function: Any, trace: Any) -> Any:
    function.trace = trace
    return function


@pytest.fixture(scope="module")
def eight(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Tried:
    return Tried(config(models), 8, tmp_path_factory.mktemp("eight"))


def steps_of(tried: Tried, steps: int) -> list[tuple[dict[str, float], Any]]:
    """The metrics and the index, on the host, of a run's first steps; what precedes an evaluation is part of them."""
    run, found = tried.run, []
    tried.encoded.clear()
    tried.rows.clear()
    state = run.init()
    for number in range(steps):
        state, values = run.step(run.refreshed(state, number), number, run.batch(number))
        found.append(({name: float(value) for name, value in values.items()}, jax.device_get(state.index)))
    return found


def test_each_step_encodes_its_slice_and_ages_are_logged(eight: Tried) -> None:
    """Rows that were written back are fresh too; the step that an evaluation precedes finds all rows fresh."""
    found = steps_of(eight, STEPS)
    assert eight.encoded == [(0, 1), (1, R), (2, R), (3, R), (EVALUATED, 1), (5, R), (6, R)]
    encoded_at = np.zeros(ROWS, np.int32)
    for number, ((values, index), rows) in enumerate(zip(found, eight.rows, strict=True)):
        encoded_at[np.arange(ROWS) % R == number % R] = number
        if number == EVALUATED:
            encoded_at[:] = number
        retrieved = rows[:, -1]
        assert (retrieved >= 0).all()
        assert values["staleness_retrieved"] == pytest.approx((number - encoded_at[retrieved]).mean(), rel=1e-6)
        encoded_at[rows[rows >= 0]] = number
        np.testing.assert_array_equal(index.encoded_at, encoded_at)
        ages = number - encoded_at[:20]
        assert values["staleness"] == pytest.approx(ages.mean(), rel=1e-6)
        assert values["staleness_max"] == ages.max() <= R - 1
    assert max(values["staleness_retrieved"] for values, _ in found) > 0
    assert max(values["staleness_max"] for values, _ in found) == R - 1


def test_one_device_encodes_what_eight_do(eight: Tried, models: Path, tmp_path: Path) -> None:
    one = steps_of(Tried(config(models), 1, tmp_path), STEPS)
    for (values, index), (expected, other) in zip(one, steps_of(eight, STEPS), strict=True):
        np.testing.assert_array_equal(index.encoded_at, other.encoded_at)
        np.testing.assert_allclose(index.embeddings[:20], other.embeddings[:20], atol=1e-4)
        for name, value in values.items():
            assert value == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name


def test_a_slice_of_everything_is_a_full_refresh_before_every_step(eight: Tried, models: Path, tmp_path: Path) -> None:
    rolling, full = (
        Tried(config(models, refresh=refresh, refresh_every=1), 8, tmp_path / refresh, like=eight)
        for refresh in ("rolling", "full")
    )
    for (values, index), (expected, other) in zip(steps_of(rolling, 4), steps_of(full, 4), strict=True):
        assert values == expected
        np.testing.assert_array_equal(index.encoded_at, other.encoded_at)
        np.testing.assert_allclose(index.embeddings[:20], other.embeddings[:20], atol=1e-6)
    assert [step for step, _ in rolling.encoded] == [step for step, _ in full.encoded] == [0, 1, 2, 3]


@pytest.mark.parametrize("at", [3, 5])
def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(
    eight: Tried, whole: Path, tmp_path: Path, at: int
) -> None:
    """Killed in the middle of a round: before the evaluation that makes the index fresh, and behind it."""

    def kill() -> None:
        raise small_runs.Killed

    with pytest.raises(small_runs.Killed):
        small_runs.train_disturbed(eight.run, tmp_path, at, kill)
    eight.encoded.clear()
    with small_runs.trained_by(eight.run):
        train(eight.run.config, tmp_path)
    # Resumed from step 3 or 4: at 4 the saved index is the one that was evaluated.
    assert eight.encoded == ([(3, R), (4, 1)] if at == 3 else []) + [(5, R), (6, R), (STEPS, 1)]
    same_model(whole, tmp_path)
    same_losses(whole, tmp_path, 0)


@pytest.fixture(scope="module")
def whole(eight: Tried, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed; its evaluations encode no corpus of their own."""
    folder = tmp_path_factory.mktemp("whole")
    eight.encoded.clear()
    with small_runs.trained_by(eight.run):
        train(eight.run.config, folder)
    assert [step for step, every in eight.encoded if every == 1] == [0, EVALUATED, STEPS]
    return folder


# ---- R from a share of the step --------------------------------------------------------------------------------------


def test_a_share_gives_the_steps_of_a_round() -> None:
    """A slice is at most that share of what a step and its slice take together."""
    for share, step, corpus in ((0.2, 1.31, 306.0), (0.5, 7.0, 7.0), (0.9, 100.0, 1.0), (0.01, 3.0, 1e6)):
        every = steps_of_a_round(share, int(step * 1e9), int(corpus * 1e9))
        assert corpus / every <= share * (step + corpus / every) * (1 + 1e-6)
        assert every == 1 or corpus / (every - 1) > share * (step + corpus / (every - 1))
    assert steps_of_a_round(0.5, 10, 1) == 1


def test_r_is_counted_once_and_kept_in_the_checkpoint(
    eight: Tried, models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is resumed where the count would be another one goes on with the same slices."""
    settings = config(models, refresh_every=1000, refresh_share=0.25)
    made = Tried(settings, 8, tmp_path / "run", like=eight)
    counts = iter([7_000_000, 9_000_000])  # of encoding the corpus, and of a step
    monkeypatch.setattr(index_upkeep, "matmul_flops", lambda traced: next(counts))

    def kill() -> None:
        raise small_runs.Killed

    with caplog.at_level(logging.INFO, "jaxretr"), pytest.raises(small_runs.Killed):
        small_runs.train_disturbed(made.run, tmp_path / "run", 4, kill)
    assert "index.refresh_share=0.25: every row of the index is encoded again every 3 steps" in caplog.text
    again = Tried(settings, 8, tmp_path / "run", like=eight)
    with small_runs.trained_by(again.run):
        train(settings, tmp_path / "run")
    assert again.encoded == [(5, 3), (6, 3), (STEPS, 1)]


def test_a_share_is_of_the_real_programs(eight: Tried, models: Path, tmp_path: Path) -> None:
    """The smaller the share, the longer a round; and with this R a slice has that share of the products."""
    rounds = {}
    for share in (0.02, 0.2):
        made = Tried(config(models, refresh_share=share), 8, tmp_path / str(share), like=eight)
        state = made.run.init()
        assert state.refresh_every is not None
        rounds[share] = int(state.refresh_every)
        assert jax.tree.structure(made.run.abstract_state()) == jax.tree.structure(state)
    assert rounds[0.02] > 5 * rounds[0.2] >= 5


# ---- settings --------------------------------------------------------------------------------------------------------


def test_settings_that_contradict_each_other_are_refused(models: Path) -> None:
    check_numbers(config(models, refresh_share=0.2))
    for wrong, named in (
        ({"refresh_share": 1.0}, "index.refresh_share=1.0"),
        ({"refresh": "full", "refresh_share": 0.2}, "index.refresh=rolling"),
        ({"refresh_every": 0}, "index.refresh_every=0"),
    ):
        with pytest.raises(UsageError, match=named):
            check_numbers(config(models, **wrong))


def test_without_dev_questions_nothing_but_slices_is_encoded() -> None:
    upkeep: Any = IndexUpkeep(LiveIndex(refresh="rolling"), Train(steps=8, eval_every=2), False, None)  # pyright: ignore
    assert not any(upkeep._all_is_due(number) for number in range(9))
    assert serves_evaluation(LiveIndex(refresh="rolling", refresh_every=7), Train(eval_every=3))
    assert not serves_evaluation(LiveIndex(refresh_every=7), Train(eval_every=3))
