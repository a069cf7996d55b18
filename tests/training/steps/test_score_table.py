"""The table of the teacher's scores against lists that are kept by hand."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxretr.runtime.parallel.mesh import DATA
from jaxretr.training.steps.score_table import EMPTY, TableState, look_up, remember

SEED = 5
Q, B, K, C, N = 16, 6, 3, 5, 12


def programs(mesh: Mesh, replacement: Any) -> tuple[Any, Any]:
    over = partial(jax.shard_map, mesh=mesh, axis_names={DATA})
    read = over(look_up, in_specs=(P(DATA), P(), P()), out_specs=(P(), P()))
    told = over(partial(remember, replacement=replacement), in_specs=(P(DATA), P(), P(), P(), P()), out_specs=P(DATA))
    return jax.jit(read), jax.jit(told)


def kept(before: list[tuple[int, float]], new: list[tuple[int, float]], replacement: str) -> list[tuple[int, float]]:
    """A question's list after a step, as the documentation of `table.replacement` has it."""
    known = {row for row, _ in before}
    missing = [each for each in new if each[0] not in known]
    if replacement == "unused":
        found = {row for row, _ in new}
        after = [*new, *(each for each in before if each[0] not in found)]
    elif replacement == "oldest":
        after = [*missing, *before]
    else:
        after = sorted([*missing, *before], key=lambda each: -each[1])
    return after[:C]


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("replacement", ["unused", "oldest", "worst"])
def test_the_table_is_the_list_that_is_kept_by_hand(replacement: str, devices: int, mesh1: Mesh, mesh8: Mesh) -> None:
    rng = np.random.default_rng(SEED)
    teacher = rng.normal(size=(Q, N)).astype(np.float32)
    read, told = programs(mesh1 if devices == 1 else mesh8, replacement)
    table = TableState(jnp.full((Q, C), EMPTY, jnp.int32), jnp.zeros((Q, C), jnp.float32))
    lists: dict[int, list[tuple[int, float]]] = {q: [] for q in range(Q)}
    replaced = 0
    for _ in range(30):
        numbers = rng.choice(Q, B, replace=False).astype(np.int32)
        numbers[4] = numbers[1]  # The second time in a batch: nothing is kept of it.
        rows = np.stack([rng.choice(N, K, replace=False) for _ in numbers]).astype(np.int32)
        scores = teacher[numbers[:, None], rows]
        known, found = map(np.asarray, read(table, numbers, rows))
        for i, (q, of) in enumerate(zip(numbers.tolist(), rows.tolist(), strict=True)):
            expected = [row in {kept for kept, _ in lists[q]} for row in of]
            assert known[i].tolist() == expected
            np.testing.assert_array_equal(found[i], np.where(expected, scores[i], 0))
        table = told(table, numbers, rows, scores, known)
        for i, q in enumerate(numbers.tolist()):
            if i != 4:
                new = list(zip(rows[i].tolist(), scores[i].tolist(), strict=True))
                replaced += len({row for row, _ in (*new, *lists[q])}) > C
                lists[q] = kept(lists[q], new, replacement)
        all_rows, all_scores = np.asarray(table.rows), np.asarray(table.scores)
        for q, expected in lists.items():
            count = len(expected)
            assert all_rows[q].tolist() == [row for row, _ in expected] + [EMPTY] * (C - count)
            np.testing.assert_array_equal(all_scores[q][:count], np.array([score for _, score in expected], np.float32))
    assert replaced > 20
