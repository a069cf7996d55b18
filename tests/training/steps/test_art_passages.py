"""Kinds of passages that ART compares: no row twice, drawn uniformly, the same on any number of devices."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tiny import art_config, write_supervised

from jaxretr.config import Art
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel.mesh import DATA, make_mesh
from jaxretr.training.runs.art import ArtRun
from jaxretr.training.steps.art import filled, with_others, without_repeats


def test_a_row_that_stands_in_an_earlier_place_is_taken_out() -> None:
    rows = jnp.array([[4, 2, 4, -1, 2, 7], [0, 1, 2, 3, 4, 5], [6, 6, 6, 6, 6, 6]], jnp.int32)
    expected = [[4, 2, -1, -1, -1, 7], [0, 1, 2, 3, 4, 5], [6, -1, -1, -1, -1, -1]]
    np.testing.assert_array_equal(without_repeats(rows), expected)


@pytest.mark.parametrize("passages", [6, 9])
def test_empty_places_get_any_other_passage_with_equal_chance(passages: int) -> None:
    """Of 6 passages all are taken in the end; of 9 each free one is drawn as often as the others."""
    draws = 6000
    rows = jnp.tile(jnp.array([[-1, 5, -1, 0, -1, 3]], jnp.int32), (draws, 1))
    found = np.asarray(jax.jit(filled, static_argnums=1)(rows, passages, jax.random.split(jax.random.key(1), draws)))
    np.testing.assert_array_equal(found[:, [1, 3, 5]], np.tile([5, 0, 3], (draws, 1)))
    assert (np.diff(np.sort(found, axis=1)) > 0).all() and found.min() >= 0 and found.max() < passages
    free = sorted(set(range(passages)) - {0, 3, 5})
    for place in (0, 2, 4):
        counts = np.bincount(found[:, place], minlength=passages)[free]
        # Five standard deviations of a binomial.
        share = 1 / len(free)
        assert np.abs(counts - draws * share).max() < 5 * np.sqrt(draws * share * (1 - share))


@dataclass
class _Program:
    art: Art
    given: int
    corpus_rows: int = 50


@dataclass
class _Batch:
    given: Any


def rows_of(devices: int, step: int) -> np.ndarray:
    """Three retrieved, two given and four drawn passages of eight questions."""
    rng = np.random.default_rng(0)
    retrieved = np.stack([rng.choice(50, 3, replace=False) for _ in range(8)]).astype(np.int32)
    given = np.full((8, 2), -1, np.int32)
    given[:, 0], given[::2, 1] = retrieved[:, 1], 44
    mesh = make_mesh(jax.devices()[:devices])

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, axis_names={DATA}, in_specs=(P(), P(DATA), P()), out_specs=P())
    def compared(retrieved: jax.Array, given: jax.Array, step: jax.Array) -> jax.Array:
        program: Any = _Program(Art(uniform=4), given=2)
        batch: Any = _Batch(given)
        return with_others(program, retrieved, batch, jax.random.key(step))

    rows = np.asarray(compared(retrieved, given, jnp.int32(step)))
    np.testing.assert_array_equal(rows[:, 0], given[:, 0])
    np.testing.assert_array_equal(rows[::2, 1], 44)
    assert (np.diff(np.sort(rows, axis=1)) > 0).all() and rows.shape == (8, 9)
    # What is given and retrieved has the given place, and a drawn passage stands in the other one.
    np.testing.assert_array_equal(rows[:, 2], retrieved[:, 0])
    assert (rows[:, 3] != retrieved[:, 1]).all()
    return rows


def test_one_device_and_eight_compare_the_same_passages() -> None:
    one = rows_of(1, 5)
    np.testing.assert_array_equal(rows_of(8, 5), one)
    assert (rows_of(1, 6)[:, 5:] != one[:, 5:]).mean() > 0.8, "drawn anew at every step"
    assert len(np.unique(one[:, 5:])) > 8, "and for every question"


# ---- in a run --------------------------------------------------------------------------------------------------------


def test_judged_passages_are_those_of_the_questions(
    tiny_models: Path, tmp_path: Path, mesh1: jax.sharding.Mesh
) -> None:
    data = write_supervised(tmp_path / "data")
    config = art_config(
        tiny_models,
        data={"corpus": data["corpus"], "judged": data["train"], "dev_questions": None},
        art={"top_k": 2, "positives": 1, "hard_negatives": 1, "uniform": 1},
    )
    run = ArtRun(config, mesh1, tmp_path / "run")
    assert run.program.compared == 5
    batch = run.batch(0)
    assert batch.given is not None
    rows = np.asarray(batch.given)
    # `write_supervised` judges another passage for each question; its first hard negative is no passage of the corpus.
    of_question = {question.text: number for number, question in enumerate(run.questions)}
    assert (rows[:, 0] >= 0).all() and rows.max() < len(run.corpus) == 22 and len(of_question) == 10
    assert (rows[:, 1] < 0).any() and (rows[:, 1] >= 0).any()
    again = run.given.rows(run.batches.indices(0), 0)  # pyright: ignore[reportOptionalMemberAccess]
    np.testing.assert_array_equal(again, rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"art": {"top_k": 1}}, "needs two passages or more"),
        ({"art": {"uniform": -1}}, "must be at least 0"),
        ({"art": {"positives": 1}}, "set data.judged=FILE"),
        ({"data": {"judged": "file"}}, "set data.judged=FILE"),
    ],
)
def test_numbers_that_no_run_can_have_are_refused(changes: dict[str, Any], message: str, tiny_models: Path) -> None:
    with pytest.raises(UsageError, match=message):
        art_config(tiny_models, **changes).check()


def test_more_passages_than_the_corpus_has_are_refused(
    tiny_models: Path, tmp_path: Path, mesh1: jax.sharding.Mesh
) -> None:
    with pytest.raises(UserError, match="24 passages a question, and the corpus has 20"):
        ArtRun(art_config(tiny_models, art={"top_k": 4, "uniform": 20}), mesh1, tmp_path)
