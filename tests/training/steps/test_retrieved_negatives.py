"""Negatives found in the step: within the window of ranks of an exact search, and never a false one."""

import copy
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tiny import contrastive_program

from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.runtime.parallel.mesh import DATA, make_mesh
from jaxretr.training.state import CorpusState
from jaxretr.training.steps.batch_loss import ContrastiveBatch, ContrastiveProgram
from jaxretr.training.steps.contrastive import retrieve_negatives
from jaxretr.training.steps.encoding import TextKeys

B, D, N, ROWS = 8, 16, 20, 24
"""3 rows a device of 8, the last 4 of them padding."""
SEED = 9
DEVICES = [1, 8]
PLAIN = contrastive_program(corpus_rows=N, retrieved=3, first_rank=2, last_rank=9)


class Given:
    """Questions, an index, and passages of which 17 is a copy of 4, and 19 one of 0."""

    def __init__(self) -> None:
        rng = np.random.default_rng(SEED)
        print("seed", SEED)
        self.q, self.index = (rng.normal(size=(n, D)).astype(np.float32) for n in (B, ROWS))
        self.index[N:] = 100.0  # Padding would win every search.
        self.contents = np.arange(ROWS, dtype=np.int32)
        self.contents[[17, 19]] = [4, 0]
        self.contents[N:] = 0
        # Each question's positive, its negative, and what is judged: passages that it would find otherwise.
        ranked = self.ranked()
        self.rows = ranked[:, [4, 3]].astype(np.int32)
        self.rows[2] = [17, NO_PASSAGE]
        self.known = np.full((B, 3), NO_PASSAGE, np.int32)
        self.known[:, 0] = self.contents[self.rows[:, 0]]
        self.known[:, 1] = self.contents[ranked[:, 5]]

    def ranked(self) -> np.ndarray:
        """All passages of the corpus in the order of an exact search, [B, N]."""
        scores = self.q.astype(np.float64) @ self.index[:N].T
        assert np.diff(np.sort(scores)).min() > 1e-5  # Rounding changes no order.
        return np.argsort(-scores, axis=1)

    def allowed(self, program: ContrastiveProgram, i: int) -> list[int]:
        """What may be drawn for question i, best first."""
        window = self.ranked()[i, program.negatives.first_rank - 1 : program.negatives.last_rank].tolist()
        barred = {int(self.contents[row]) for row in self.rows[i] if row != NO_PASSAGE} | set(self.known[i].tolist())
        bound = (
            np.inf
            if program.negatives.margin is None
            else self.q[i] @ self.index[self.rows[i, 0]] - program.negatives.margin
        )
        return [row for row in window if self.contents[row] not in barred and self.q[i] @ self.index[row] <= bound]


@pytest.fixture(scope="module")
def given() -> Given:
    return Given()


def found(program: ContrastiveProgram, given: Given, devices: int, steps: int = 1) -> list[np.ndarray]:
    """The rows found in each step, int32 [B, retrieved]."""
    mesh = make_mesh(jax.devices()[:devices])

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, axis_names={DATA}, in_specs=(P(DATA),) * 5 + (P(),), out_specs=P(DATA))
    def find(
        q: jax.Array, index: CorpusState, contents: jax.Array, rows: jax.Array, known: jax.Array, step: Any
    ) -> Any:
        batch = ContrastiveBatch(rows, rows[:, 0], rows, known, None)  # Its texts are not read.
        keys = TextKeys.of_step(program, jax.random.key(step), len(rows), rows.shape[1] + program.negatives.retrieved)
        return retrieve_negatives(program, mesh, q, index, contents, batch, keys)

    index = CorpusState(jnp.asarray(given.index), jnp.zeros(ROWS, jnp.int32))
    fixed = (jnp.asarray(given.q), index, *map(jnp.asarray, (given.contents, given.rows, given.known)))
    return [np.asarray(find(*fixed, jnp.int32(step))) for step in range(steps)]


def test_top_takes_the_first_of_the_window(given: Given) -> None:
    """On any number of devices; the window leaves out rank 1."""
    program = contrastive_program(corpus_rows=N, retrieved=3, first_rank=2, last_rank=9, draw="top")
    expected = [given.allowed(program, i)[:3] for i in range(B)]
    assert min(map(len, expected)) == 3
    assert any(given.ranked()[i, 1:4].tolist() != expected[i] for i in range(B))  # Something is barred.
    for devices in DEVICES:
        np.testing.assert_array_equal(found(program, given, devices)[0], expected)


def test_random_draws_are_allowed_distinct_and_equally_likely(given: Given) -> None:
    """Over 200 steps every passage of the window comes as often as any other: within 5 standard deviations."""
    steps = 200
    rows = np.stack(found(PLAIN, given, 8, steps))
    for i in range(B):
        allowed = given.allowed(PLAIN, i)
        assert len(allowed) >= 4
        assert set(rows[:, i].ravel().tolist()) == set(allowed)
        assert all(len(set(drawn)) == 3 for drawn in rows[:, i].tolist())
        share = 3 / len(allowed)
        counts = np.array([(rows[:, i] == row).sum() for row in allowed])
        assert np.abs(counts - steps * share).max() < 5 * np.sqrt(steps * share * (1 - share))
    assert len({drawn.tobytes() for drawn in rows}) == steps  # No two steps draw alike.


def test_the_draw_does_not_depend_on_the_devices(given: Given) -> None:
    for one, many in zip(*(found(PLAIN, given, devices, 3) for devices in DEVICES), strict=True):
        np.testing.assert_array_equal(many, one)


def test_what_is_no_negative(given: Given) -> None:
    """Neither what is known to be none, whatever the settings, nor the own passages and their copies: 4 is one of question 2's."""
    judged_found = []
    program = contrastive_program(
        corpus_rows=N, retrieved=N, last_rank=N, draw="top", mask_known_positives=False, mask_duplicates=False
    )
    nothing_known = copy.copy(given)
    nothing_known.known = given.known[:, :0]
    for examples in (given, nothing_known):
        (rows,) = found(program, examples, 8)
        for i in range(B):
            taken = [row for row in rows[i].tolist() if row != NO_PASSAGE]
            assert taken == examples.allowed(program, i)
            assert not set(given.rows[i].tolist()) & set(taken)
        assert not {4, 17} & set(rows[2].tolist())
        judged_found.append(sum(given.ranked()[i, 5] in rows[i] for i in range(B)))
    assert judged_found[0] == 0 and judged_found[1] >= B - 1


def test_the_margin_leaves_out_what_scores_as_high_as_the_positive(given: Given) -> None:
    """Places that are then too few hold NO_PASSAGE, at the end."""
    program = contrastive_program(corpus_rows=N, retrieved=4, last_rank=9, margin=1.0, draw="top")
    without = contrastive_program(corpus_rows=N, retrieved=4, last_rank=9, draw="top")
    for devices in DEVICES:
        (rows,) = found(program, given, devices)
        for i in range(B):
            allowed = given.allowed(program, i)[:4]
            assert rows[i].tolist() == allowed + [NO_PASSAGE] * (4 - len(allowed))
    assert any(given.allowed(program, i)[:4] != given.allowed(without, i)[:4] for i in range(B))
    assert (rows == NO_PASSAGE).any() and (rows != NO_PASSAGE).any()


def test_a_window_larger_than_the_corpus_or_smaller_than_the_need(given: Given) -> None:
    """Ranks up to 100 of 20 passages; and 5 wanted of 2 ranks."""
    large = contrastive_program(corpus_rows=N, retrieved=2, first_rank=10, last_rank=100, draw="top")
    small = contrastive_program(corpus_rows=N, retrieved=5, last_rank=2, draw="random")
    (rows,) = found(large, given, 8)
    assert rows.tolist() == [given.allowed(large, i)[:2] for i in range(B)]
    (rows,) = found(small, given, 8)
    for i in range(B):
        allowed = given.allowed(small, i)
        assert set(rows[i, : len(allowed)].tolist()) == set(allowed)
        assert (rows[i, len(allowed) :] == NO_PASSAGE).all()
