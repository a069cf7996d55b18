"""Parameters are split into trained and frozen, and joined again, without a leaf lost, doubled or copied."""

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jaxretr.models.backbones.partition import join, partition

NAMES = st.sampled_from(["bert", "projection", "adapter", "shared", "question", "layers", "kernel", "bias"])
LEAVES = st.builds(object)
TREES = st.dictionaries(
    NAMES, st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=4), max_leaves=12)
)
FROZEN = st.sets(NAMES, max_size=4)


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(names on the way, leaf); an empty branch counts as a leaf."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value


@given(TREES, FROZEN)
def test_joining_gives_back_the_same_tree(tree: dict[str, Any], frozen: set[str]) -> None:
    """Objects compare by identity here: the leaves are the same ones."""
    assert join(*partition(tree, frozen)) == tree


@given(TREES, FROZEN)
def test_every_leaf_is_in_one_of_the_trees_by_the_names_above_it(tree: dict[str, Any], frozen: set[str]) -> None:
    trained, kept = partition(tree, frozen)
    for path, leaf in leaves(tree):
        assert (dict(leaves(kept)).get(path) is leaf) == bool(frozen & set(path))
        assert (dict(leaves(trained)).get(path) is leaf) != bool(frozen & set(path))
    assert len(dict(leaves(trained))) + len(dict(leaves(kept))) == len(dict(leaves(tree)))


@given(TREES, FROZEN)
def test_there_are_no_empty_branches(tree: dict[str, Any], frozen: set[str]) -> None:
    """Checkpoints refuse them, and `tower` tells the kinds of trees by their branches."""
    for part in partition(tree, frozen):
        assert all(leaf != {} for _, leaf in leaves(part))


@given(TREES, FROZEN)
def test_what_is_given_is_left_as_it_was(tree: dict[str, Any], frozen: set[str]) -> None:
    before = dict(leaves(tree))
    trained, kept = partition(tree, frozen)
    pieces = dict(leaves(trained)), dict(leaves(kept))
    join(trained, kept)["more"] = None
    assert dict(leaves(tree)) == before and (dict(leaves(trained)), dict(leaves(kept))) == pieces


def test_a_dual_encoder_s_adapters_are_what_is_trained() -> None:
    def tower(number: int) -> dict[str, Any]:
        return {"bert": {"layers": {"query": number}}, "projection": {"bias": number}, "adapter": {"lora": number}}

    params = {"question": tower(1), "passage": tower(2)}
    trained, frozen = partition(params, ("bert", "projection"))
    assert trained == {"question": {"adapter": {"lora": 1}}, "passage": {"adapter": {"lora": 2}}}
    assert frozen["passage"] == {"bert": {"layers": {"query": 2}}, "projection": {"bias": 2}}
    assert partition(params, ()) == (params, {})
    assert partition(params, ("question", "passage")) == ({}, params)
