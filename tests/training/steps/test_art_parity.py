"""A whole ART run against a plain PyTorch loop that is written from the paper: dropout off, the same batches.

Tolerance: losses to 1e-4 relative, for both sides are float32 and sum in another order: over 50 updates that grows to
some 1e-5. The retrieved passages must be the very same, which rounding cannot change as long as the scores
of neighbouring ranks are further apart than it: `test_ranks_are_apart` makes sure of that.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest
from art_loop import STEPS, TOP_K, History, ours, reference, t5_scores
from tiny import write_models

from jaxretr.training.runs.art import ArtRun


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parity")
    write_models(folder, noise=0.3)
    return folder


# ---- the comparison --------------------------------------------------------------------------------------------------


@dataclass
class Pair:
    ours: History
    theirs: History
    run: ArtRun


@pytest.fixture(scope="module", params=["paper", "write-back"])
def pair(
    request: pytest.FixtureRequest,
    models: Path,
    all_devices: jax.sharding.Mesh,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    write_back = request.param == "write-back"
    steps = 25 if write_back else STEPS
    history, run = ours(models, tmp_path_factory.mktemp("run"), all_devices, steps, write_back=write_back)
    batches = [run.batches.indices(number) for number in range(steps)]
    towers = tmp_path_factory.mktemp("towers")
    yield Pair(history, reference(models, t5_scores(models), batches, towers, write_back=write_back), run)


def test_ranks_are_apart(pair: Pair) -> None:
    """Both sides' embeddings differ by 2e-5 at most: neighbours further apart than 1e-4 keep their order."""
    assert min(pair.theirs.gaps) > 1e-4


def test_every_step_retrieves_the_same_passages(pair: Pair) -> None:
    for number, (found, expected) in enumerate(zip(pair.ours.rows, pair.theirs.rows, strict=True)):
        np.testing.assert_array_equal(found, expected, err_msg=f"step {number}")
    assert len({row for rows in pair.ours.rows for row in rows.flat}) > 2 * TOP_K  # Not the same few throughout.


def test_every_loss_is_equal(pair: Pair) -> None:
    assert min(pair.theirs.losses) > 1e-3  # No loss is rounding alone.
    np.testing.assert_allclose(pair.ours.losses, pair.theirs.losses, rtol=1e-4)


def test_the_trained_tower_embeds_alike(pair: Pair) -> None:
    np.testing.assert_allclose(pair.ours.embeddings, pair.theirs.embeddings, atol=1e-4)


@pytest.mark.parametrize("pair", ["paper"], indirect=True)
def test_without_a_temperature_scores_are_divided_by_the_root_of_the_size(pair: Pair) -> None:
    assert pair.run.config.art.temperature is None
    assert pair.run.program.temperature == 4.0  # of D = 16; the loop above divides by it too


@pytest.mark.parametrize("pair", ["paper"], indirect=True)
def test_the_refreshes_matter(pair: Pair) -> None:
    """With the old index other passages would be found: a run that never refreshes cannot pass."""
    assert pair.theirs.moved_by_refresh == [True, True]
