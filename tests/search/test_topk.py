"""Both formulations of the exact top k find what float64 brute force finds, whatever the shape, mask, dtype or k."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxretr.search import topk
from jaxretr.search.topk import NO_ROW, Shard, grouped_topk, streamed_topk

DIM = 4


def brute_force(queries, rows, k, allowed, scales):
    """float64 scores [B, k] and rows [B, k], higher scores first and lower rows first among equal ones."""
    scores = queries.astype(np.float64) @ (rows.astype(np.float64) * scales[:, None].astype(np.float64)).T
    scores[:, ~allowed] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, : min(k, allowed.sum())]
    found = np.full((2, len(queries), k), -np.inf)
    found[1] = NO_ROW
    found[0, :, : order.shape[1]] = np.take_along_axis(scores, order, axis=1)
    found[1, :, : order.shape[1]] = order
    return found[0].astype(np.float32), found[1].astype(np.int32)


def stored(rows: np.ndarray, dtype: str) -> jax.Array:
    if dtype == "bits":
        return jnp.asarray(rows, jnp.bfloat16).view(jnp.uint16)
    return jnp.asarray(rows, dtype)


def check(formulation, queries, rows, k, *, valid, block_rows, allowed=None, scales=None, dtype="float32"):
    mask = np.arange(len(rows)) < valid
    given = {}
    if allowed is not None:
        mask, given["allowed"] = mask & allowed, jnp.asarray(allowed)
    if scales is not None:
        given["scales"] = jnp.asarray(scales)
    shard = Shard(stored(rows, dtype), jnp.int32(valid), **given)
    found = jax.jit(partial(formulation, k=k, block_rows=block_rows))(queries, shard)
    expected = brute_force(queries, rows, k, mask, np.ones(len(rows), np.float32) if scales is None else scales)
    np.testing.assert_array_equal(np.asarray(found[0]), expected[0])
    np.testing.assert_array_equal(np.asarray(found[1]), expected[1])
    assert not np.signbit(np.asarray(found[0])[expected[0] == 0]).any()


@st.composite
def searches(draw):
    """Small whole numbers, so that every sum is exact and most scores are shared by many rows."""
    n = draw(st.one_of(st.integers(1, 700), st.sampled_from([128, 640])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    low = draw(st.sampled_from([-1, 0, 1]))  # 1: all scores below zero, which padding must not beat
    rows = rng.integers(low, 3, (n, DIM)).astype(np.float32)
    queries = rng.integers(-2, 2 if low < 1 else 0, (draw(st.sampled_from([1, 5, 34])), DIM)).astype(np.float32)
    rows[rng.random(n) < 0.2] *= -0.0
    return {
        "queries": queries,
        "rows": rows,
        "k": draw(st.sampled_from([1, 3, 8, 20, 800])),
        "valid": draw(st.one_of(st.just(n), st.integers(0, n))),
        "block_rows": draw(st.sampled_from([1, 50, 64, 100, 128, 1000])),
        "allowed": draw(st.one_of(st.none(), st.floats(0, 1).map(lambda share: rng.random(n) < share))),
        "scales": draw(st.one_of(st.none(), st.just(2.0 ** rng.integers(-2, 3, n).astype(np.float32)))),
        "dtype": draw(st.sampled_from(["float32", "bfloat16", "bits", "int8"])),
    }


@settings(max_examples=25, deadline=None)
@given(searches())
def test_the_streamed_formulation_is_brute_force(search):
    check(streamed_topk, **search)


@settings(max_examples=50, deadline=None)
@given(searches(), st.sampled_from([(2**10, 2**10), topk.MAXIMA_BYTES]), st.booleans())
def test_the_grouped_formulation_is_brute_force(search, limit, whole):
    if not topk.can_group(len(search["rows"]), search["k"], search["block_rows"]):
        search["k"], search["block_rows"] = 1, 64
        if not topk.can_group(len(search["rows"]), 1, 64):
            return
    # With a small limit there are several selections, whose winners are merged.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topk, "MAXIMA_BYTES", limit)
        patch.setattr(topk, "WHOLE_BATCH", topk.WHOLE_BATCH if whole else 0)
        check(grouped_topk, **search)


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("batch", [1, 3])
def test_ties_across_groups_blocks_and_selections_go_to_the_lowest_row(batch: int, passes: int, monkeypatch):
    n = 4096
    if passes > 1:
        monkeypatch.setattr(topk, "MAXIMA_BYTES", (n // topk.FINE * batch * 4 // passes,) * 2)
    rows = np.zeros((n, 1), np.float32)
    # The fifth place is shared by rows 9, 1500 and 4000, while the groups of the last two have higher maxima.
    rows[[10, 1501, 2047, 4001]] = 3
    rows[[9, 1500, 4000]] = 2
    shard = Shard(jnp.asarray(rows), jnp.int32(n))
    _, found = jax.jit(partial(grouped_topk, k=5, block_rows=1024))(np.ones((batch, 1), np.float32), shard)
    assert np.asarray(found).tolist() == [[10, 1501, 2047, 4001, 9]] * batch


def test_a_cpu_takes_the_grouped_formulation_and_others_the_streamed_one():
    """Read from what would be compiled: a selection over the maxima of all rows, or one over a block's candidates."""
    n, batch, k, block = 65_536, 16, 10, 8192
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((batch, DIM), (n, DIM))]
    search = jax.jit(partial(topk.local_topk, k=k, num_valid_local=n, block_rows=block))
    maxima = f"{batch}x{n // topk.COARSE}xf32"
    text = {name: search.trace(*shapes).lower(lowering_platforms=(name,)).as_text() for name in ("cpu", "tpu", "cuda")}
    assert maxima in text["cpu"] and maxima not in text["tpu"] + text["cuda"]
    assert f"{batch}x{block}xf32" in text["tpu"] and f"{batch}x{block}xf32" in text["cuda"]
    assert f"{batch}x{block}xf32" not in text["cpu"], "blocks of a CPU fit its cache"
    assert f"{batch}x{n}xf32" not in "".join(text.values()), "the matrix of all scores"


@pytest.mark.parametrize("dtype", ["float32", "bits", "int8"])
def test_a_search_makes_no_second_copy_of_the_rows(dtype: str):
    """XLA on CPUs would make bfloat16 rows float32 before the first block, twice what they take: hence their bits."""
    n, dim, batch = 65_536, 128, 64
    rows = jax.eval_shape(lambda: stored(np.zeros((n, dim), np.float32), dtype))
    compiled = jax.jit(partial(topk.local_topk, k=10, num_valid_local=n)).lower(
        jax.ShapeDtypeStruct((batch, dim), np.float32), rows
    )
    analysis = compiled.compile().memory_analysis()
    assert analysis is not None
    held = analysis.temp_size_in_bytes
    assert held < n // topk.FINE * batch * 4 + 2**22 and held < n * dim
