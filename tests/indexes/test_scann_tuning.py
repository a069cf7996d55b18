"""The settings that reach targets of recall, tuned by an index and a clock that are made up."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxretr.indexes.certified.tuning import Setting, tune
from jaxretr.indexes.recall import certain_recall, ladder


def test_the_fastest_sufficient_setting_is_chosen() -> None:
    """An index of 4 leaves that finds a neighbour in leaf 3 and, among its candidates, at place 30."""
    questions, k = 2000, 2
    exact = np.tile(np.array([[7, 8]]), (questions, 1))
    asked = []

    def candidates(leaves: int, count: int) -> np.ndarray:
        found = np.tile(np.arange(1000, 1000 + count), (questions, 1))
        found[:, 0] = 7
        if leaves >= 3:
            found[:, 29] = 8
        return found

    def search(leaves: int, count: int, some: int) -> None:
        asked.append((leaves, count))

    low, high = tune(candidates, search, exact, np.full(questions, -1), targets=(0.4, 0.9), leaves=4, rows=5000)
    assert (low.leaves, low.candidates, low.tuning_recall) == (1, k, 0.5)
    assert high.leaves == 3 and high.candidates >= 30 and high.tuning_recall == 1.0
    assert high.candidates < 30 * 1.4  # the next rung of the ladder


def tuned_by_shares(shares: Sequence[float], targets: Sequence[float], leaves: int) -> list[Setting]:
    """Tunes an index whose searches with n leaves take n seconds and find shares[n], or else the last share."""
    now, questions, k = 0.0, 1200, 5
    luck = np.random.default_rng(0).permutation(questions * k).reshape(questions, k) / (questions * k)

    def candidates(leaves: int, count: int) -> np.ndarray:
        found = np.where(luck < shares[min(leaves, len(shares) - 1)], np.arange(k), -1)
        return np.pad(found, ((0, 0), (0, count - k)), constant_values=-1)

    def search(leaves: int, count: int, some: int) -> None:
        nonlocal now
        now += leaves

    exact, own = np.tile(np.arange(k), (questions, 1)), np.full(questions, -1)
    return tune(candidates, search, exact, own, targets=targets, leaves=leaves, rows=5000, clock=lambda: now)


def test_leaves_are_tuned_more_finely_than_the_rungs() -> None:
    """Neighbours are in the 62nd leaf: the next rung of the ladder is 73, and 66 is between."""
    [setting] = tuned_by_shares([0.0] * 62 + [1.0], [0.9], leaves=200)
    assert setting.reached and setting.leaves == 66


@pytest.mark.parametrize("targets", [(0.8, 0.9), (0.9, 0.8), (0.9, 0.9), (0.99, 0.85, 0.8, 0.9)])
def test_leaves_between_two_rungs_serve_every_target_that_they_reach(targets: tuple[float, ...]) -> None:
    """5 and 7 leaves are rungs; 6, which are measured for the target that 5 reach, are the fewest for the next one."""
    found = tuned_by_shares([0.0, 0.3, 0.5, 0.6, 0.7, 0.87, 0.95, 0.96, 0.97], targets, leaves=16)
    # Of 0.99 no share is certain; most is with 8 leaves, though the next rung is 9.
    fewest = {0.8: (5, True), 0.85: (5, True), 0.9: (6, True), 0.99: (8, False)}
    assert [(each.leaves, each.reached) for each in found] == [fewest[target] for target in targets]
    assert [each.target for each in found] == list(targets)


@settings(max_examples=200, deadline=None)
@given(
    targets=st.lists(st.floats(0.01, 1), min_size=1, max_size=6),
    leaves=st.integers(1, 80),
    shares=st.lists(st.floats(0, 1) | st.just(1.0), min_size=1, max_size=30),
    rising=st.booleans(),
    readings=st.lists(st.floats(-9, 9), min_size=1, max_size=9),
    seed=st.integers(0, 999),
)
def test_any_times_and_recalls_give_each_target_the_fastest_setting_that_was_measured(
    targets: list[float], leaves: int, shares: list[float], rising: bool, readings: list[float], seed: int
) -> None:
    """A clock may stand still or go back, and more leaves may find less."""
    rng = np.random.default_rng(seed)
    questions, rows, k = 60, 700, int(rng.integers(1, 4))
    exact = np.argsort(rng.random((questions, rows)))[:, :k]
    own = np.where(rng.random(questions) < rng.choice([0, 0.5]), rows, -1)
    places = np.argsort(rng.random((questions, rng.integers(k, 500))))[:, :k]  # of the neighbours among the candidates
    luck = rng.random((questions, k))
    shares = sorted(shares) if rising else shares

    def bound(leaves: int, count: int) -> float:
        return certain_recall(((luck < shares[leaves % len(shares)]) & (places < count)).mean(axis=1), k)

    def tuned(targets: list[float]) -> list[Setting]:
        """Tunes, and compares with everything that was measured and timed."""
        chance = np.random.default_rng(seed)
        measured: set[tuple[int, int]] = set()
        read: list[float] = []
        began: dict[tuple[int, int], list[int]] = {}  # numbers of readings, of the last timing

        def candidates(leaves: int, count: int) -> np.ndarray:
            counts = ladder(k + int((own >= 0).any()), count)
            measured.update((leaves, each) for each in counts)
            began.clear()
            found = np.full((questions, count), -1)
            hits = np.where(luck < shares[leaves % len(shares)], exact, -1)
            np.put_along_axis(found, places, hits, axis=1)
            return found

        def search(leaves: int, count: int, some: int) -> None:
            began.setdefault((leaves, count), []).append(len(read) - 1)

        def clock() -> float:
            read.append(float(chance.choice(readings)))
            return read[-1]

        found = tune(candidates, search, exact, own, targets=targets, leaves=leaves, rows=rows, clock=clock)
        certain = {setting: bound(*setting) for setting in measured}
        seconds = {setting: min(read[at + 1] - read[at] for at in starts) for setting, starts in began.items()}
        assert began.keys() <= measured
        for each, target in zip(found, targets, strict=True):
            chosen, enough = (each.leaves, each.candidates), {some for some in measured if certain[some] >= target}
            assert each.target == target and chosen in measured and each.certain == certain[chosen]
            assert each.reached == bool(enough) == (chosen in enough)
            if not enough:
                assert each.certain == max(certain.values())
                continue
            # What searches no less than another is no faster, whatever the clock says; all others are compared.
            least = {some for some in enough if not any(a <= some[0] and b <= some[1] for a, b in enough - {some})}
            assert chosen in least and seconds[chosen] == min(seconds[some] for some in least)
        return found

    found = tuned(targets)
    reached = [done for _, done in sorted((each.target, each.reached) for each in found)]
    assert reached == sorted(reached, reverse=True)
    assert tuned(targets[::-1]) == found[::-1]
