"""Filters of exact search: allow and deny lists, and fields, resident, streamed, saved and after a first pass."""

import itertools

import numpy as np
import pytest
from test_exact_search import BLOCK, DIM, brute_force, compiled, integers, mesh  # noqa: F401

from jaxretr.indexes.exact import ExactIndex, search_blocks
from jaxretr.indexes.exact.saved import as_index
from jaxretr.indexes.filters import Filters, conditions_of
from jaxretr.indexes.index import Opening
from jaxretr.indexes.row_filter import RowFilter, _as_in_column
from jaxretr.runtime.errors import UserError

N = 1501
IDS = [f"p{row}" for row in range(N)]
YEARS = [2000 + row % 7 for row in range(N)]
LANGUAGES = [("en", "de", None)[row % 3] for row in range(N)]


def filtered(queries, rows, k, passes):
    """Brute force among the rows that pass."""
    there = np.flatnonzero(passes)
    scores, order = brute_force(queries, rows[there], k)
    return scores, there[order]


CASES = {
    "allow": ({"allow": IDS[5:900]}, [5 <= row < 900 for row in range(N)]),
    "deny": ({"deny": [*IDS[3:1400], "p3"]}, [not 3 <= row < 1400 for row in range(N)]),
    "value": ({"where": {"year": 2003}}, [year == 2003 for year in YEARS]),
    "values": ({"where": {"year": [2001, 2005], "language": "de"}}, [y in (2001, 2005) and x == "de" for y, x in zip(YEARS, LANGUAGES, strict=True)]),
    "range": (
        {"where": {"year": {"gt": 2001, "lte": 2004, "not_in": 2003}, "language": {"lt": "e"}}},
        [y in (2002, 2004) and x == "de" for y, x in zip(YEARS, LANGUAGES, strict=True)],
    ),
    "none": ({"where": {"language": None}}, [x is None for x in LANGUAGES]),
    "all": (
        {"allow": IDS[:300], "deny": IDS[:10], "where": {"language": ["en", "de"]}},
        [10 <= row < 300 and LANGUAGES[row] is not None for row in range(N)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", ["resident", "streamed", "int8", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_only_what_passes_is_found(mesh, case: str, how: str):  # noqa: F811
    rows, queries = integers(N, DIM), integers(7, DIM, seed=1)
    budget = 2 * 1024 * DIM * 4 if how == "streamed" else None
    first_pass = how if how in ("int8", "bfloat16") else None
    metadata = {"year": YEARS, "language": LANGUAGES}
    index = ExactIndex(
        rows, IDS, metadata=metadata, mesh=mesh, block_rows=BLOCK, max_device_bytes=budget, first_pass=first_pass
    )
    asked, passes = CASES[case]
    scores, found = index.search_rows(queries, 10, **asked)
    expected = filtered(queries, rows, 10, passes)
    if first_pass is None:
        np.testing.assert_array_equal(found, expected[1])
    assert np.isin(found, np.flatnonzero(passes)).all()
    np.testing.assert_array_equal(scores, expected[0])


def test_fewer_passages_than_k_give_fewer_columns(mesh):  # noqa: F811
    rows, queries = integers(N, DIM), integers(7, DIM, seed=1)
    index = ExactIndex(rows, IDS, mesh=mesh, block_rows=BLOCK)
    scores, ids = index.search(queries, 10, allow=["p7", "p1500", "p3"])
    assert scores.shape == (7, 3) and {tuple(sorted(found)) for found in ids} == {("p1500", "p3", "p7")}
    scores, ids = index.search(queries, 10, allow=[])
    assert scores.shape == (7, 0) and ids == [[]] * 7


def test_without_filters_nothing_changes_and_masks_share_a_program(mesh1):
    rows, queries = integers(N, DIM), integers(7, DIM, seed=1)
    index = ExactIndex(rows, IDS, mesh=mesh1, block_rows=BLOCK)
    plain = index.search_rows(queries, 10)
    everything = index.search_rows(queries, 10, deny=[])
    np.testing.assert_array_equal(plain[1], everything[1])


def test_ids_and_values_may_be_arrays(mesh1):
    rows = integers(4, DIM)
    given = np.array(["d", "c", "b", "a"])
    index = ExactIndex(rows, given, metadata={"n": np.arange(4)}, mesh=mesh1)
    assert index.ids == ["d", "c", "b", "a"] and {type(name) for name in index.ids} == {str}
    assert ExactIndex(rows, list(given), mesh=mesh1).ids == index.ids  # pyright: ignore[reportArgumentType]
    for wanted in (np.array([1, 2]), (1, 2), {1, 2}, np.array([2.0, 1.0])):
        [found] = index.search(integers(1, DIM, seed=3), k=4, where={"n": wanted}, allow=given[:3])[1]
        assert sorted(found) == ["b", "c"]
    for wrong in (np.array("a"), np.arange(4)):
        with pytest.raises(UserError, match=r"ids for|not a string"):
            ExactIndex(rows, wrong, mesh=mesh1)


def test_row_numbers_serve_as_ids(mesh1):
    index = ExactIndex(integers(50, DIM), mesh=mesh1)
    assert index.search(integers(1, DIM), 5, allow=["49"])[1] == [["49"]]
    for name in ("50", "-1", "007", "x"):
        with pytest.raises(UserError, match="its row numbers, 0 to 49"):
            index.search(integers(1, DIM), 5, deny=[name])


def test_metadata_is_saved(mesh1, tmp_path):
    rows, queries = integers(N, DIM), integers(3, DIM, seed=1)
    mixed = [("a", 1, 1.5, True, None)[row % 5] for row in range(N)]
    metadata = {"mixed": mixed, "ünï": LANGUAGES}
    ExactIndex(rows, IDS, metadata=metadata, mesh=mesh1).save(tmp_path / "index")
    index = ExactIndex.load(tmp_path / "index", mesh=mesh1)
    assert index.metadata == metadata
    for value, first in ((1, 1), (True, 3)):
        found = index.search_rows(queries, 4, where={"mixed": value})[1]
        assert (found % 5 == first).all(), "1 is not True"
    (tmp_path / "index" / "metadata.jsonl").write_text('{"mixed": 1}\n')
    with pytest.raises(UserError, match=r"metadata.jsonl:1: not an object with the fields mixed, ünï"):
        ExactIndex.load(tmp_path / "index", mesh=mesh1)


def test_streamed_blocks_take_a_mask(mesh):  # noqa: F811
    rows, queries = integers(2300, DIM), integers(7, DIM, seed=1)
    allowed = np.arange(2300) % 3 == 1
    blocks = np.split(rows, [500, 500, 2290])
    scores, found = search_blocks(blocks, queries, 20, allowed=allowed, mesh=mesh, block_rows=BLOCK)
    expected = filtered(queries, rows, 20, allowed)
    np.testing.assert_array_equal(scores, expected[0])
    np.testing.assert_array_equal(found, expected[1])
    few = np.zeros(2300, bool)
    few[[7, 2299]] = True
    assert search_blocks(blocks, queries, 20, allowed=few, mesh=mesh)[1].shape == (7, 2)
    for size in (2299, 2301):
        with pytest.raises(UserError, match=f"`allowed` is about|the {size} that `allowed`"):
            search_blocks(blocks, queries, 20, allowed=np.ones(size, bool), mesh=mesh)


VALUES = [3, 2.5, "b", None, True, "", "ab", 2**60 + 1, -1, "ä", False, 3.0, "b", 2**60]


@pytest.mark.parametrize(
    ("condition", "passes"),
    [
        ({"gte": 2.5}, lambda x: is_number(x) and x >= 2.5),
        ({"gt": 2**60}, lambda x: is_number(x) and x > 2**60),
        ({"lt": 3, "gt": -1}, lambda x: is_number(x) and -1 < x < 3),
        ({"lt": 0, "gt": 5}, lambda x: False),
        ({"lte": "b"}, lambda x: isinstance(x, str) and x <= "b"),
        ({"gt": "b"}, lambda x: x == "ä"),
        ({"not_in": ["b", 3, "never"]}, lambda x: x not in ("b", 3)),
        ({"not_in": None}, lambda x: x is not None),
        ({"in": ["b", 3, True, 2.5], "gte": 0}, lambda x: is_number(x) and x in (3, 2.5)),
        ({"in": [], "not_in": []}, lambda x: False),
    ],
)
def test_conditions_compare_numbers_with_numbers_and_texts_with_texts(condition, passes):
    mask = Filters(len(VALUES), None, {"x": VALUES}).mask(where={"x": condition})
    assert mask is not None and mask.tolist() == [passes(value) for value in VALUES]


def is_number(value) -> bool:
    return type(value) in (int, float)


def row_filter(where):
    metadata = {"year": YEARS, "language": LANGUAGES}
    return RowFilter(where=where).options(as_index(ExactIndex(integers(N, DIM), IDS, metadata=metadata), Opening("i")))


def test_bounds_that_are_texts_are_read_as_the_field_is():
    options = row_filter({"year": {"gte": "2004", "lt": "2006", "not_in": ["2005"]}, "language": {"in": ["de", "en"]}})
    mask = Filters(N, IDS, {"year": YEARS, "language": LANGUAGES}).mask(where=options.where)
    assert mask is not None and mask.any()
    assert mask.tolist() == [y == 2004 and x is not None for y, x in zip(YEARS, LANGUAGES, strict=True)]
    assert row_filter({"language": {"gte": "de"}}).is_filtered
    # Nobody lacks a year, which is no misspelling.
    assert row_filter({"year": {"not_in": [2000, None]}}).where["year"].none_of == (2000, None)
    same = Filters(4, None, {"x": [1, 1.0, 2, 10**400]})
    # A kind of index may hold whole numbers as 1 or as 1.0.
    for wanted, held in itertools.product(("1", "1.0", 1, 1.0), ([1], [1.0], [1, 1.0])):
        mask = same.mask(where={"x": _as_in_column("x", conditions_of({"x": wanted})["x"], held)})
        assert mask is not None and mask.tolist() == [True, True, False, False]
    for wanted in (10**400, {"gt": 10**399}):
        mask = same.mask(where={"x": wanted})
        assert mask is not None and mask.tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda f: f.mask(allow=["p1", "p15O0"]), r"allow: no id 'p15O0' among the 1501.*did you mean 'p150"),
        (lambda f: f.mask(deny=["x"]), "deny: no id 'x'"),
        (lambda f: f.mask(allow="p1"), "one string; give a list"),
        (lambda f: f.mask(where={"yaer": 2000}), "no field 'yaer'.*did you mean 'year'"),
        (lambda f: Filters(3, None).mask(where={"year": 1}), "no field 'year' in the index; it has none"),
        (lambda f: Filters(3, None, {"a": [1, 2]}), "'a' has 2 values for 3 rows"),
        (lambda f: Filters(3, None, {"a": "abc"}), "field 'a' is a str; give a list with one value"),
        (
            lambda f: Filters(2, None, {"a": [1, [2]]}),  # pyright: ignore[reportArgumentType]
            "'a' contains a list at row 1",
        ),
        (lambda f: Filters(2, None, {"a": [1, float("nan")]}), "'a' contains nan at row 1"),
        (lambda f: f.mask(where={"year": [["a"]]}), "where year: a list is no value"),
        (lambda f: f.mask(where={"year": np.array([[2000]])}), "where year: a list is no value"),
        (lambda f: f.mask(where={"year": {"ge": 2000}}), "where year: no condition 'ge'; did you mean 'gte'"),
        (lambda f: f.mask(where={"year": {}}), "where year: no condition in it; give gt, gte"),
        (lambda f: f.mask(where={"year": {"gte": True}}), "gte is True; give a finite number or a text"),
        (lambda f: f.mask(where={"year": {"lt": float("nan")}}), "lt is nan; give a finite number or a text"),
        (lambda f: f.mask(where={"year": {"lt": [1]}}), r"lt is \[1\]; give a finite number"),
        (lambda f: f.mask(where={"year": {"lt": 1, "gt": "0"}}), "one bound is a text, another a number"),
        (lambda f: f.mask(where={"year": {"not_in": [[1]]}}), "where year: a list is no value"),
        (lambda f: f.mask(where={"year": [{"gte": 2000}]}), "where year: a dict is no value"),
        (lambda f: f.mask(where={"year": b"2000"}), "where year: a bytes is no value"),
        (lambda f: f.mask(where="year=2000"), "is no mapping"),
        (lambda f: f.mask(where={7: 2000}), "no field 7"),
        (lambda f: f.mask(allow=[["p1"]]), r"no id \['p1'\]"),
        (lambda f: f.mask(deny=np.array("p1")), "is no list"),
        (lambda f: f.mask(deny=7), "is no list"),
        (lambda f: conditions_of({"year": [["a"]]}, ["year"]), "where year: a list is no value"),
        (lambda f: row_filter({"year": {"gte": "[" * 100_000}}), "but the field has numbers; give a number"),
        (lambda f: row_filter({"year": {"gte": "MM"}}), "where year: gte is 'MM', but the field has numbers"),
        (lambda f: row_filter({"year": {"not_in": 1999}}), "where year=1999: no passage has this value"),
        (lambda f: row_filter({"year": {"gt": 2006}}), "no passage passes the filters"),
    ],
)
def test_wrong_filters_are_one_line(use, message):
    with pytest.raises(UserError, match=message) as caught:
        use(Filters(N, IDS, {"year": YEARS}))
    assert "\n" not in str(caught.value)
