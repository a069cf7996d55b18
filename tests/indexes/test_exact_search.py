"""Exact search gives what numpy's brute force gives, ties included, on any devices and from any storage."""

import json
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brute_force import brute_force
from jax.sharding import PartitionSpec

from jaxretr.embeddings import index_folder
from jaxretr.indexes import exact
from jaxretr.indexes.exact import ExactIndex, search_blocks, slabs
from jaxretr.indexes.exact.host_rows import put_matrix
from jaxretr.indexes.topk import NO_ROW, accelerators, local_topk, search_step
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel.mesh import DATA, make_mesh, padded_rows, put_rows, replicate, to_host

# Small integers: every sum is exact in any order and dtype, and most scores are shared by many rows.
SEED = 7
DIM = 4
# With blocks of 128 rows, k=4 is selected through groups and k=10 is not.
BLOCK = 128


def integers(*shape, low=-1, high=2, seed=SEED):
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.float32)


def assert_equal(found, expected):
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
    assert found[0].dtype == np.float32 and found[1].dtype == np.int64


def assert_exact(index, queries, rows, k):
    assert_equal(index.search_rows(queries, k), brute_force(queries, rows, k))


@pytest.fixture
def compiled(monkeypatch):
    """Searches run the programs of other devices, not the host's loops."""
    monkeypatch.setattr(slabs, "_on_host", lambda mesh: False)


@pytest.fixture(params=["1 device", "8 devices", "8 devices, compiled"])
def mesh(request):
    if "compiled" in request.param:
        request.getfixturevalue("compiled")
    return request.getfixturevalue("mesh1" if request.param == "1 device" else "mesh8")


# ---------------------------------------------------------------- one device's shard


@pytest.mark.parametrize(
    ("n", "valid", "k", "block"),
    [
        (512, 512, 4, 128),  # groups, whole blocks
        (272, 250, 4, 128),  # groups, a last block that overlaps, padding
        (50, 49, 5, 16),  # no groups: too few rows for k
        (30, 30, 33, 16),  # k larger than the block and the shard
        (40, 0, 3, 16),  # nothing but padding
    ],
)
def test_local_topk_equals_brute_force(n, valid, k, block):
    queries, rows = integers(6, DIM), integers(n, DIM, seed=n)
    search = jax.jit(partial(local_topk, k=k, block_rows=block))
    scores, found = map(np.asarray, search(queries, rows, num_valid_local=np.int32(valid)))
    assert scores.shape == found.shape == (6, k)
    expected = brute_force(queries, rows[:valid], k)
    count = min(k, valid)
    np.testing.assert_array_equal(scores[:, :count], expected[0])
    np.testing.assert_array_equal(found[:, :count], expected[1])
    assert (scores[:, count:] == -np.inf).all() and (found[:, count:] == NO_ROW).all()


def test_a_tie_at_the_last_place_goes_to_the_lowest_row_within_and_across_groups():
    # Groups of 16 rows. The fourth result is shared by rows 3 (group 0), 40 (group 2) and 70 (group 4), while groups 2
    # and 4 have the higher maxima.
    rows = np.zeros((128, 1), np.float32)
    rows[[41, 71, 100]] = 3
    rows[[3, 40, 70]] = 2
    _, found = jax.jit(partial(local_topk, k=4, block_rows=128))(np.ones((6, 1), np.float32), rows, num_valid_local=128)
    assert np.asarray(found)[0].tolist() == [41, 71, 100, 3]


def test_negative_zero_is_no_lower_than_zero():
    rows = np.zeros((128, 1), np.float32)
    rows[0] = -0.0
    scores, found = jax.jit(partial(local_topk, k=4, block_rows=128))(
        np.ones((6, 1), np.float32), rows, num_valid_local=128
    )
    assert np.asarray(found)[0].tolist() == [0, 1, 2, 3] and not np.signbit(scores).any()


def test_search_step_gathers_a_sharded_batch_and_carries_no_gradient(mesh8):
    # As the training step calls it: batch and rows sharded, under a gradient, with the checks of shard_map on.
    queries, rows = integers(16, DIM), integers(128, DIM, seed=1)

    def step(queries, rows, valid):
        def loss(queries):
            scores, found = search_step(queries, rows, 20, num_valid=valid, queries_sharded=True)
            return scores.sum(), (scores, found)

        return jax.grad(loss, has_aux=True)(queries)

    specs = (PartitionSpec(DATA), PartitionSpec(DATA), PartitionSpec())
    out_specs = (PartitionSpec(DATA), PartitionSpec())
    gradient, (scores, found) = jax.jit(jax.shard_map(step, mesh=mesh8, in_specs=specs, out_specs=out_specs))(
        queries, rows, np.int32(101)
    )
    assert_equal((np.asarray(scores), np.asarray(found, np.int64)), brute_force(queries, rows[:101], 20))
    assert not np.asarray(gradient).any()


# ---------------------------------------------------------------- the index


@pytest.mark.parametrize("k", [4, 10])
def test_index_equals_brute_force_with_rows_not_divisible_by_devices(mesh, k):
    rows = integers(1501, DIM)
    index = ExactIndex(rows, mesh=mesh, block_rows=BLOCK)
    for queries in (integers(7, DIM, seed=1), -integers(8, DIM, low=1, high=3)):
        assert_exact(index, queries, rows, k)


def test_equal_scores_and_duplicates_across_shards_come_in_row_order(mesh):
    rows = integers(1501, DIM)
    rows[250:262] = 5  # shards of 8 devices end at 256
    index = ExactIndex(rows, mesh=mesh, block_rows=BLOCK)
    _, found = index.search_rows(np.ones((7, DIM)), 10)
    assert found[0].tolist() == list(range(250, 260))
    same = ExactIndex(np.ones((1501, DIM), np.float32), mesh=mesh, block_rows=BLOCK)
    assert same.search_rows(np.ones((7, DIM)), 10)[1][3].tolist() == list(range(10))


def test_padding_never_wins_against_negative_scores(mesh):
    rows = integers(1030, DIM, low=1, high=4)
    index = ExactIndex(rows, mesh=mesh, block_rows=BLOCK)
    scores, _ = found = index.search_rows(-np.ones((7, DIM), np.float32), 10)
    assert (scores < 0).all()
    assert_equal(found, brute_force(-np.ones((7, DIM)), rows, 10))


@pytest.mark.usefixtures("compiled")
def test_k_larger_than_a_shard(mesh8):
    rows, queries = integers(1501, DIM), integers(3, DIM, seed=2)
    assert_exact(ExactIndex(rows, mesh=mesh8, block_rows=BLOCK), queries, rows, 300)  # shards of 256


@pytest.mark.parametrize("k", [5, 9])
def test_fewer_rows_than_devices_and_k_at_least_n(mesh, k):
    rows, queries = integers(5, DIM), integers(3, DIM, seed=2)
    index = ExactIndex(rows, mesh=mesh, block_rows=BLOCK)
    assert index.search_rows(queries, k)[0].shape == (3, 5)
    assert_exact(index, queries, rows, k)


def test_one_row_one_question_and_no_question(mesh8):
    index = ExactIndex(np.full((1, DIM), 2.0), ids=["only"], mesh=mesh8, block_rows=BLOCK)
    scores, ids = index.search(np.ones((1, DIM)), k=3)
    assert scores.tolist() == [[8.0]] and ids == [["only"]]
    scores, ids = index.search(np.zeros((0, DIM)), k=3)
    assert scores.shape == (0, 1) and scores.dtype == np.float32 and ids == []


def test_default_devices_and_ids_are_the_row_numbers():
    scores, ids = ExactIndex(jnp.asarray(integers(3, DIM))).search(integers(1, DIM, seed=3), k=2)
    expected = brute_force(integers(1, DIM, seed=3), integers(3, DIM), 2)
    assert ids == [[str(row) for row in expected[1][0]]] and scores.tolist() == expected[0].tolist()


def test_bfloat16_storage_keeps_fp32_questions_and_scores(mesh):
    # 257 is no bfloat16: a question rounded to bfloat16 would score 256.
    rows = integers(1501, DIM)
    queries = integers(7, DIM, seed=5) * 257
    index = ExactIndex(rows, dtype="bfloat16", mesh=mesh, block_rows=BLOCK)
    assert_exact(index, queries, rows, 10)


def test_index_does_not_change_with_the_array_it_was_made_from(mesh1):
    rows = integers(1024, 16)
    index = ExactIndex(rows, mesh=mesh1, block_rows=BLOCK)
    before = rows.copy()
    rows[:] = 0
    assert_exact(index, np.ones((1, 16), np.float32), before, 4)


@pytest.mark.usefixtures("compiled")
def test_long_batches_are_cut_and_short_ones_share_a_program(mesh8, monkeypatch):
    monkeypatch.setattr(slabs, "QUERY_BUCKETS", (1, 8))
    rows = integers(1501, DIM)
    index = ExactIndex(rows, mesh=mesh8, block_rows=BLOCK)
    assert_exact(index, integers(17, DIM, seed=4), rows, 4)  # 8 + 8 + 1
    programs = slabs.search_slab._cache_size()
    for batch in (2, 3, 7, 8, 9):
        assert_exact(index, integers(batch, DIM, seed=batch), rows, 4)
    assert slabs.search_slab._cache_size() == programs


# ---------------------------------------------------------------- corpora larger than the devices


@pytest.mark.parametrize("k", [4, 1500])
@pytest.mark.usefixtures("compiled")
def test_streamed_blocks_equal_one_index(mesh8, k):
    rows, queries = integers(2300, DIM), integers(7, DIM, seed=1)
    # A last short block, an empty one, and one that is larger than the first and therefore cut.
    blocks = np.split(rows, [500, 500, 2290])
    found = search_blocks(iter(blocks), queries, k, mesh=mesh8, block_rows=BLOCK)
    assert_equal(found, brute_force(queries, rows, k))


def test_streamed_blocks_with_fewer_rows_than_k(mesh8):
    rows, queries = integers(7, DIM), integers(7, DIM, seed=1)
    found = search_blocks(np.split(rows, [3]), queries, 10, mesh=mesh8, block_rows=BLOCK)
    assert_equal(found, brute_force(queries, rows, 10))


@pytest.mark.usefixtures("compiled")
def test_a_memory_map_over_the_budget_is_streamed_two_slabs_at_a_time(mesh8, tmp_path, monkeypatch):
    rows, queries = integers(5000, DIM), integers(7, DIM, seed=1)
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    # A slab is 1024 rows, 128 on each of 8 devices; the budget holds two.
    budget = 2 * 128 * DIM * 4
    index = ExactIndex(mapped, mesh=mesh8, block_rows=BLOCK, max_device_bytes=budget + 5)
    live, events, wait = [], [], jax.block_until_ready

    def recorded_put_rows(mesh, read, shape, dtype):
        put = put_matrix(mesh, read, shape, dtype)
        live.append(sum(array.shape == shape for array in jax.live_arrays()))
        events.append("put")
        return put

    def recorded_wait(arrays):
        events.append("wait")
        return wait(arrays)

    for module in (exact, slabs):
        monkeypatch.setattr(module, "put_matrix", recorded_put_rows)
    monkeypatch.setattr(jax, "block_until_ready", recorded_wait)
    assert_exact(index, queries, rows, 4)
    assert len(live) == 5 and max(live) == 2
    assert events == ["put", "wait"] * 5, "a slab arrives only when the one two before it has been searched"
    with pytest.raises(UsageError, match=f"needs at least {budget}"):
        ExactIndex(mapped, mesh=mesh8, max_device_bytes=budget - 1)
    live.clear()
    ExactIndex(mapped, mesh=mesh8, max_device_bytes=5 * budget // 2)
    assert live == [1], "a corpus within the budget is resident"


# ---------------------------------------------------------------- folders


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("budget", [None, 2 * 128 * DIM * 4], ids=["resident", "streamed"])
def test_save_and_load(mesh8, tmp_path, dtype, budget):
    rows, queries = integers(2100, DIM), integers(7, DIM, seed=1)
    ids = [f'pässage "{row}"\n' for row in range(len(rows))]
    index = ExactIndex(rows, ids, dtype=dtype, mesh=mesh8, block_rows=BLOCK, max_device_bytes=budget)
    index.save(tmp_path / "deep" / "index")
    loaded = ExactIndex.load(tmp_path / "deep" / "index", mesh=mesh8, block_rows=BLOCK, max_device_bytes=budget)
    assert len(loaded) == 2100
    scores, names = loaded.search(queries, 4)
    expected = brute_force(queries, rows, 4)
    assert names == [[ids[row] for row in found] for found in expected[1]] and (scores == expected[0]).all()
    loaded.save(tmp_path / "deep" / "index")  # over the files that it reads from
    assert_exact(ExactIndex.load(tmp_path / "deep" / "index", mesh=mesh8, block_rows=BLOCK), queries, rows, 4)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["index"]


def test_a_failed_save_leaves_the_old_index_and_nothing_else(mesh1, tmp_path, monkeypatch):
    old = ExactIndex(integers(5, DIM), mesh=mesh1)
    old.save(tmp_path / "index")

    def fail(folder, *_):
        (folder / "half").write_text("written")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index_folder, "_write_files", fail)
    with pytest.raises(UserError, match=r"index: .*\(No space left on device\)"):
        ExactIndex(integers(9, DIM), mesh=mesh1).save(tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert len(ExactIndex.load(tmp_path / "index", mesh=mesh1)) == 5
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years of work")
    for name in ("meta.json", "embeddings-00000-of-00001.npy"):  # As an embedding store has.
        with pytest.raises(UserError, match=r"other: holds something else than an index \("):
            old.save(tmp_path / "other")
        (tmp_path / "other" / name).write_text("{}")
    assert (tmp_path / "other" / "thesis.txt").exists()


def _cut(path, keep):
    path.write_bytes(path.read_bytes()[:keep])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "meta.json").unlink(), "meta.json: cannot be read"),
        (lambda d: _cut(d / "meta.json", 20), "meta.json: cannot be read"),
        (lambda d: (d / "meta.json").write_text(json.dumps({"format": "faiss"})), "not the description"),
        (lambda d: (d / "embeddings.npy").unlink(), "embeddings.npy: cannot be read"),
        (lambda d: _cut(d / "embeddings.npy", -8), "embeddings.npy: cannot be read"),
        (lambda d: np.save(d / "embeddings.npy", integers(4, DIM)), r"embeddings.npy: holds float32 \[4, 4\]"),
        (lambda d: (d / "ids.jsonl").unlink(), "ids.jsonl: cannot be read"),
        (lambda d: _cut(d / "ids.jsonl", -2), "ids.jsonl:5: not a JSON string"),
        (lambda d: (d / "ids.jsonl").write_text('"a"\n7\n'), "ids.jsonl:2: not a JSON string"),
        (lambda d: (d / "ids.jsonl").write_text('"a"\n'), "1 ids for 5 embeddings"),
        (
            lambda d: np.save(d / "embeddings.npy", np.full((5, DIM), np.nan, np.float32)),
            "embeddings.npy: row 0 contains NaN",
        ),
    ],
)
def test_a_damaged_folder_is_one_line(mesh1, tmp_path, damage, message):
    ExactIndex(integers(5, DIM), list("abcde"), mesh=mesh1).save(tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        ExactIndex.load(tmp_path, mesh=mesh1)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- wrong use


def _with_nan(row):
    rows = integers(2000, DIM)
    rows[row, 1] = np.nan
    return rows


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ExactIndex(np.zeros((0, DIM))), "no rows"),
        (lambda: ExactIndex(np.zeros((3, 0))), r"got float64 \[3, 0\]"),
        (lambda: ExactIndex(np.zeros(3)), r"got float64 \[3\]"),
        (lambda: ExactIndex(np.array([["a"]])), "expected numbers"),
        (lambda: ExactIndex(_with_nan(1900)), "row 1900 contains NaN"),
        (
            lambda: ExactIndex(_with_nan(1900), max_device_bytes=2**13).search(np.ones((1, DIM))),
            "row 1900 contains NaN",
        ),
        (lambda: ExactIndex(np.full((1, 1), 1e39)), "row 0 contains NaN, infinity"),
        (lambda: ExactIndex(integers(3, DIM), ["a", "b"]), "2 ids for 3 embeddings"),
        (lambda: ExactIndex(integers(3, DIM), "abc"), "ids='abc': is a single one; give a list"),
        (lambda: ExactIndex(integers(3, DIM), 3), "ids=3: a int is no list"),
        (lambda: ExactIndex([[1.0], [1.0, 2.0]]), "embeddings: rows of different lengths"),
        (lambda: ExactIndex(integers(2, DIM), metadata={"a": None}), "field 'a' is a NoneType; give a list"),
        (lambda: ExactIndex(integers(3, DIM)).search(np.ones((1, DIM)), k=1.5), "k=1.5: give a whole number"),
        (lambda: ExactIndex(integers(3, DIM)).search(np.ones((1, DIM)), k="2"), "k='2': give a whole number"),
        (lambda: ExactIndex(integers(3, DIM), ["a", "b", "a"]), "'a' is at rows 0 and 2"),
        (lambda: ExactIndex(integers(3, DIM), ["a", 1, "b"]), "row 1 has 1, which is not a string"),
        (lambda: ExactIndex(integers(3, DIM), dtype="bfloat61"), "did you mean 'bfloat16'"),
        (lambda: ExactIndex(integers(3, DIM), block_rows=0), "block_rows=0: must be at least 1"),
        (lambda: ExactIndex(integers(3, DIM)).search(np.ones((2, 5))), "5 columns, but the index has 4"),
        (lambda: ExactIndex(integers(3, DIM)).search(np.ones(DIM)), "queries: expected numbers"),
        (lambda: ExactIndex(integers(3, DIM)).search(np.full((2, DIM), np.nan)), "queries: row 0 contains NaN"),
        (lambda: ExactIndex(integers(3, DIM)).search(np.ones((1, DIM)), k=0), "k=0: must be at least 1"),
        (lambda: search_blocks([], np.ones((1, DIM))), "no rows to search"),
        (lambda: search_blocks([np.ones((3, DIM)), np.ones((3, 5))], np.ones((1, DIM))), "from row 3 on has 5 columns"),
        (lambda: search_blocks([np.ones((3, DIM)), _with_nan(9)], np.ones((1, DIM))), "row 12 contains NaN"),
        (lambda: make_mesh(model=3), "model=3 does not divide the 8 devices"),
    ],
)
def test_wrong_use_is_one_line(build, message):
    with pytest.raises(UserError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- the mesh


def test_rows_are_read_one_shard_at_a_time_and_padded(mesh8):
    assert [padded_rows(n, mesh8) for n in (0, 1, 1024, 1025)] == [1024, 1024, 1024, 2048]
    assert padded_rows(1025, make_mesh(jax.devices()[:3])) == 3072
    rows, asked = integers(1300, 2), []

    def read(start, stop):
        asked.append((start, stop))
        return rows[start:stop]

    put = put_rows(mesh8, read, (2048, 2), jnp.bfloat16)
    assert sorted(asked) == [(start, start + 256) for start in range(0, 2048, 256)]
    assert put.dtype == jnp.bfloat16 and {shard.data.shape for shard in put.addressable_shards} == {(256, 2)}
    np.testing.assert_array_equal(to_host(put), np.pad(rows, ((0, 748), (0, 0))))
    mesh = make_mesh(model=2)
    assert dict(mesh.shape) == {"data": 4, "model": 2}
    assert {shard.data.shape for shard in put_rows(mesh, rows, (2048, 2), np.float32).addressable_shards} == {(512, 2)}
    assert replicate(mesh, {"a": rows})["a"].is_fully_replicated


# ---------------------------------------------------------------- the compiled program

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter", "collective-broadcast")


def array_sizes(jaxpr):
    """Sizes of all arrays that a jaxpr computes, those of inner jaxprs included."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars if hasattr(variable.aval, "size"))
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from array_sizes(inner)


def collectives(hlo):
    """Names of the collectives (in loops, outside of loops) of a compiled module's text."""
    bodies = dict(re.findall(r"^(?:ENTRY )?%?([\w.\-]+) [^\n]*\{\n(.*?)^\}", hlo, re.M | re.S))
    in_loops = set(re.findall(r"(?:body|condition)=%?([\w.\-]+)", hlo))
    while inner := {n for b in in_loops for n in re.findall(r"%([\w.\-]+)", bodies[b]) if n in bodies} - in_loops:
        in_loops |= inner
    found = [(name, word) for name, body in bodies.items() for word in re.findall(r" ([\w\-]+)\(", body)]
    found = [(name, word) for name, word in found if word.removesuffix("-start") in COLLECTIVES]
    return [w for name, w in found if name in in_loops], [w for name, w in found if name not in in_loops]


def test_compiled_search_holds_no_batch_by_corpus_matrix_and_has_no_collective_in_a_loop(mesh8):
    batch, n, block, k = 64, 8192, 128, 4
    shapes = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((batch, DIM), (n, DIM)))
    arguments = (*shapes, jax.ShapeDtypeStruct((), np.int32))
    traced = slabs.search_slab.trace(*arguments, mesh=mesh8, k=k, block_rows=block)
    limit = max(n // 8 * DIM, batch * block)
    largest = max(size for size in array_sizes(traced.jaxpr.jaxpr))
    # Of accelerators: the rows that are scored again.
    again = batch * (k + accelerators.SLACK) * accelerators.GPU.rows * DIM
    assert largest == max(limit, again), "the largest array is the score block, or the rows of the candidates"
    assert largest < batch * (n // 8)
    compiled = traced.lower().compile()
    hlo = compiled.as_text()
    shapes = re.findall(r"\b(?:f32|s32|bf16|pred)\[([\d,]+)\]", hlo)
    sizes = [int(np.prod([int(size) for size in shape.split(",")])) for shape in shapes]
    assert max(sizes) == limit
    looped, once = collectives(hlo)
    assert not looped and once and set(once) <= {"all-gather", "all-reduce"}


def test_the_reader_of_compiled_programs_sees_a_collective_in_a_loop(mesh8):
    def step(x):
        return jax.lax.fori_loop(0, 5, lambda _, y: y + jax.lax.psum(x * y[0], DATA), jnp.zeros_like(x[:1] * 0))

    sharded = jax.shard_map(step, mesh=mesh8, in_specs=PartitionSpec(DATA), out_specs=PartitionSpec(), check_vma=False)
    looped, _ = collectives(jax.jit(sharded).lower(np.ones(8, np.float32)).compile().as_text())
    assert looped == ["all-reduce"]
