"""All formulations of the exact top k find what float64 brute force finds, whatever the shape, mask, dtype or k."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from jaxretr.indexes import topk
from jaxretr.indexes.topk import NO_ROW, accelerators, grouped
from jaxretr.indexes.topk.accelerators import CUDA, GPU, TPU, Layout, pyramid_topk
from jaxretr.indexes.topk.gpu_kernel import fused_maxima
from jaxretr.indexes.topk.grouped import grouped_topk
from jaxretr.indexes.topk.shard import Shard
from jaxretr.indexes.topk.streamed import streamed_topk
from jaxretr.runtime.parallel.mesh import DATA

DIM = 4
# The kernel of GPUs runs as JAX operations elsewhere.
INTERPRET = jax.default_backend() != "gpu"


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
@given(searches(), st.sampled_from([(2**10, 2**10), grouped.MAXIMA_BYTES]), st.booleans())
def test_the_grouped_formulation_is_brute_force(search, limit, whole):
    if not grouped.can_group(len(search["rows"]), search["k"], search["block_rows"]):
        search["k"], search["block_rows"] = 1, 64
        if not grouped.can_group(len(search["rows"]), 1, 64):
            return
    # With a small limit there are several selections, whose winners are merged.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped, "MAXIMA_BYTES", limit)
        patch.setattr(grouped, "WHOLE_BATCH", grouped.WHOLE_BATCH if whole else 0)
        check(grouped_topk, **search)


@st.composite
def pyramids(draw):
    """A search, and constants so small that a few rows make a pyramid of several levels and blocks."""
    search = draw(searches())
    kind = accelerators.Kind(*(draw(st.sampled_from(of)) for of in ([2, 4], [2, 3, 8], [0, 5])))
    search["block_rows"] = max(search["block_rows"], kind.rows)
    constants = {
        "SLACK": draw(st.sampled_from([0, 3])),
        "TOP": draw(st.sampled_from([1, 40])),
        "BLOCK_BYTES": draw(st.sampled_from([2**10, 2**20])),
        "MAXIMA_BYTES": draw(st.sampled_from([0, 2**20])),
        "AGAIN_BYTES": draw(st.sampled_from([0, 2**20])),
    }
    search["queries"] = search["queries"].astype(draw(st.sampled_from([np.float32, jnp.bfloat16])))
    return search, kind, constants


@pytest.mark.parametrize(
    ("batch", "kind", "dtype", "query_dtype"),
    [
        (3, accelerators.Kind(2, 3, 5), "int8", np.float32),
        (3, accelerators.Kind(4, 3, 0), "bits", np.float32),
        (7, accelerators.Kind(4, 2, 5), "bfloat16", jnp.bfloat16),
    ],
)
def test_a_pyramid_of_several_levels_and_blocks_is_brute_force(batch, kind, dtype, query_dtype, monkeypatch):
    n = 643  # neither whole groups nor whole blocks
    for name, value in {"SLACK": 1, "TOP": 20, "AGAIN_BYTES": 0}.items():
        monkeypatch.setattr(accelerators, name, value)
    rng = np.random.default_rng(batch)
    queries, rows = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((batch, DIM), (n, DIM)))
    masks = {"allowed": rng.random(n) < 0.7, "scales": 2.0 ** rng.integers(-2, 3, n).astype(np.float32)}
    # The best rows of the first question lie where the last block of 100 rows is moved back over the one before.
    rows[595:603] = np.sign(queries[0])
    masks["allowed"][595:603], masks["scales"][595:603] = True, 16
    formulation = partial(pyramid_topk, kind=kind)
    check(formulation, queries.astype(query_dtype), rows, 7, valid=630, block_rows=100, dtype=dtype, **masks)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("dtype", "query_dtype"), [("bfloat16", jnp.bfloat16), ("int8", np.float32)])
def test_the_kernel_of_gpus_computes_the_maxima_of_groups(dtype: str, query_dtype, masked: bool):
    n, dim, batch, width = 300, 128, 17, 32  # no whole tiles
    rng = np.random.default_rng(0)
    queries, rows = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((batch, dim), (n, dim)))
    # A bfloat16 has no room for whole numbers of 12 bits: they are cut into several terms.
    queries = queries.astype(query_dtype) if dtype == "bfloat16" else queries * 2049
    mask, masks = np.arange(n) < 290, {}
    scores = queries.astype(np.float64) @ rows.T.astype(np.float64)
    if masked:
        masks = {"allowed": rng.random(n) < 0.1, "scales": 2.0 ** rng.integers(-2, 3, n).astype(np.float32)}
        mask, scores = mask & masks["allowed"], scores * masks["scales"]
    shard = Shard(stored(rows, dtype), jnp.int32(290), **jax.tree.map(jnp.asarray, masks))
    terms = queries if query_dtype == jnp.bfloat16 else accelerators.exact_terms(jnp.asarray(queries))
    maxima = fused_maxima(jnp.asarray(terms), len(terms) // batch, shard, width, interpret=INTERPRET)
    scores = np.pad(np.where(mask, scores, -np.inf), ((0, 0), (0, 84)), constant_values=-np.inf)
    np.testing.assert_array_equal(maxima, scores.reshape(batch, -1, width).max(-1))


def test_a_search_by_the_kernel_is_brute_force(monkeypatch):
    monkeypatch.setattr(accelerators, "TOP", 20)
    n, dim = 1000, 64
    kind = CUDA._replace(rows=4, fan=2, small_batch=0, kernel=partial(fused_maxima, interpret=INTERPRET))
    rng = np.random.default_rng(2)
    queries, rows = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((5, dim), (n, dim)))
    allowed = rng.random(n) < 0.7
    check(
        partial(pyramid_topk, kind=kind), queries, rows, 7, valid=990, block_rows=64, dtype="bfloat16", allowed=allowed
    )


@settings(max_examples=50, deadline=None)
@given(pyramids())
def test_the_formulation_of_accelerators_is_brute_force(drawn):
    search, kind, constants = drawn
    with pytest.MonkeyPatch.context() as patch:
        for name, value in constants.items():
            patch.setattr(accelerators, name, value)
        if not accelerators.can_narrow(len(search["rows"]), search["k"], search["block_rows"], kind):
            search["k"], search["block_rows"] = 1, 64
            if not accelerators.can_narrow(len(search["rows"]), 1, 64, kind):
                return
        check(partial(pyramid_topk, kind=kind), **search)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", [GPU, TPU])
def test_accelerators_give_ties_across_groups_blocks_and_levels_to_the_lowest_row(kind, batch: int, monkeypatch):
    n = 4096
    monkeypatch.setattr(accelerators, "TOP", 32)
    monkeypatch.setattr(accelerators, "SLACK", 0)
    rows = np.zeros((n, 1), np.float32)
    # The fifth place is shared by rows 9, 1500 and 4000, while the groups of the last two have higher maxima.
    rows[[10, 1501, 2047, 4001], 0] = 3, 4, 3, 5
    rows[[9, 1500, 4000]] = 2
    shard = Shard(jnp.asarray(rows), jnp.int32(n))
    search = jax.jit(partial(pyramid_topk, k=5, block_rows=1024, kind=kind._replace(small_batch=batch - 2)))
    _, found = search(np.ones((batch, 1), np.float32), shard)
    assert np.asarray(found).tolist() == [[4001, 1501, 10, 2047, 9]] * batch


def test_three_bfloat16_terms_are_the_float32_question_and_its_scores_have_float32_precision():
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((6, 768), np.float32) * 10.0 ** rng.integers(-9, 9, (6, 1)).astype(np.float32)
    terms = np.asarray(jax.jit(accelerators.exact_terms)(queries), np.float64)
    np.testing.assert_array_equal(terms.reshape(3, *queries.shape).sum(0), queries.astype(np.float64))
    rows = jnp.asarray(rng.standard_normal((4096, 768), np.float32), jnp.bfloat16)
    exact = queries.astype(np.float64) @ np.asarray(rows, np.float64).T
    order = np.argsort(-exact, axis=1, kind="stable")[:, :20]
    lengths = np.linalg.norm(queries, axis=1) * np.linalg.norm(np.asarray(rows, np.float64), axis=1).max()
    for kind in (GPU, TPU):  # one by its vector units, one by its matrix unit
        search = jax.jit(partial(pyramid_topk, k=20, block_rows=1024, kind=kind))
        scores, found = search(queries, Shard(rows, jnp.int32(4096)))
        np.testing.assert_array_equal(found, order)
        assert (np.abs(scores - np.take_along_axis(exact, order, 1)) < 2e-7 * lengths[:, None]).all()
        layout = Layout.of(rows.shape, 2, 6, 20, 1024, kind)
        maxima = jax.jit(partial(accelerators.group_maxima, layout=layout, kind=kind))(
            queries, Shard(rows, jnp.int32(4096))
        )
        maxima = np.moveaxis(np.asarray(maxima), 1, 0).reshape(6, -1)
        expected = exact.reshape(6, -1, kind.rows).max(-1)
        assert (np.abs(maxima - expected) < 4e-7 * lengths[:, None]).all()


def test_the_devices_of_a_mesh_find_the_same_with_the_formulation_of_accelerators(mesh1, mesh8, monkeypatch):
    monkeypatch.setattr(topk, "grouped_topk", partial(pyramid_topk, kind=TPU))
    rng = np.random.default_rng(1)
    queries, rows = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((16, DIM), (8192, DIM)))
    found = []
    for mesh in (mesh1, mesh8):
        step = partial(topk.search_step, k=9, num_valid=8100, queries_sharded=True)
        sharded = jax.shard_map(step, mesh=mesh, in_specs=(P(DATA), P(DATA)), out_specs=P())
        program = jax.jit(sharded).lower(queries, rows)
        assert f"x16x{8192 // mesh.size // TPU.rows}xf32" in program.as_text(), "maxima of groups"
        found.append(program.compile()(queries, rows))
    expected = brute_force(queries, rows, 9, np.arange(8192) < 8100, np.ones(8192, np.float32))
    for scores, row in found:
        np.testing.assert_array_equal(scores, expected[0])
        np.testing.assert_array_equal(row, expected[1])


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("batch", [1, 3])
def test_ties_across_groups_blocks_and_selections_go_to_the_lowest_row(batch: int, passes: int, monkeypatch):
    n = 4096
    if passes > 1:
        monkeypatch.setattr(grouped, "MAXIMA_BYTES", (n // grouped.FINE * batch * 4 // passes,) * 2)
    rows = np.zeros((n, 1), np.float32)
    # The fifth place is shared by rows 9, 1500 and 4000, while the groups of the last two have higher maxima.
    rows[[10, 1501, 2047, 4001]] = 3
    rows[[9, 1500, 4000]] = 2
    shard = Shard(jnp.asarray(rows), jnp.int32(n))
    _, found = jax.jit(partial(grouped_topk, k=5, block_rows=1024))(np.ones((batch, 1), np.float32), shard)
    assert np.asarray(found).tolist() == [[10, 1501, 2047, 4001, 9]] * batch


def lowered(n: int, batch: int, k: int, block: int, **dtypes: type) -> dict[str, str]:
    """What would be compiled for each platform."""
    shapes = [
        jax.ShapeDtypeStruct(shape, dtypes.get(name, np.float32))
        for name, shape in (("queries", (batch, DIM)), ("rows", (n, DIM)))
    ]
    search = jax.jit(partial(topk.local_topk, k=k, num_valid_local=n, block_rows=block))
    trace = search.trace(*shapes)
    return {name: trace.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", "tpu", "cuda")}


def test_each_platform_takes_its_formulation():
    n, batch, k, block = 65_536, 16, 10, 8192
    text = lowered(n, batch, k, block)
    cpu = f"{batch}x{n // grouped.COARSE}xf32"
    assert cpu in text["cpu"] and cpu not in text["tpu"] + text["cuda"]
    for name, kind in (("cuda", GPU), ("tpu", TPU)):
        assert f"{n // block}x{batch}x{block // kind.rows}xf32" in text[name], "the maxima of all groups"
        assert f"{batch}x{block}xf32" in text[name] and f"{batch}x{block}xf32" not in text["cpu"]
    assert f"{batch}x{n}xf32" not in "".join(text.values()), "the matrix of all scores"
    few_of_many = lowered(n, batch, 5000, block)
    assert all(f"{batch}x{5000 + block}xf32" in few_of_many[name] for name in text), "a selection in every block"


def test_accelerators_sort_no_more_than_a_few_thousand_numbers_a_question_and_convert_no_rows():
    n, batch, k = 2**24, 64, 100
    text = lowered(n, batch, k, 16_384, rows=jnp.bfloat16)
    for name in ("cuda", "tpu"):
        sorted_ones = [int(size) for size in re.findall(rf"top_k.*?tensor<{batch}x(\d+)xf32>", text[name])]
        assert len(sorted_ones) >= 3 and max(sorted_ones) <= accelerators.TOP
        products = re.findall(r"dot_general.*: \((.*?)\) ->", text[name])
        assert len(products) == 1 and "f32" not in products[0], "on the matrix unit, of bfloat16 numbers"


@pytest.mark.parametrize("dtype", ["float32", "bits", "int8"])
def test_a_search_makes_no_second_copy_of_the_rows(dtype: str):
    """XLA on CPUs would make bfloat16 rows float32 before the first block, twice what they take: hence their bits."""
    n, dim, batch = 65_536, 128, 64
    rows = jax.eval_shape(lambda: stored(np.zeros((n, dim), np.float32), dtype))
    with jax.default_device(jax.devices("cpu")[0]):
        compiled = jax.jit(partial(topk.local_topk, k=10, num_valid_local=n)).lower(
            jax.ShapeDtypeStruct((batch, dim), np.float32), rows
        )
        analysis = compiled.compile().memory_analysis()
    assert analysis is not None
    held = analysis.temp_size_in_bytes
    assert held < n // grouped.FINE * batch * 4 + 2**22 and held < n * dim
