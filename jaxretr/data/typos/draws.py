"""Random numbers that are a function of the key by which they are asked for, and of nothing else."""

from collections.abc import Sequence
from typing import TypeVar

_Item = TypeVar("_Item")

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def output(state: int, number: int) -> int:
    """Return an output of SplitMix64 (Steele, Lea and Flood 2014), by its number.

    Args:
      state: the seed of the generator, of any size and sign, taken modulo 2^64.
      number: the number of the output, counted from 0, taken modulo 2^64.

    Returns:
      A number of 64 bits. As a state of its own it seeds another generator, so that a key of several numbers is hashed
      by taking one output after the other.
    """
    z = (state + _GOLDEN * (number + 1)) & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31


class Draws:
    """Small random numbers from the outputs of one SplitMix64: a few from each, since making one costs the most.

    An output is read as a fraction of 1. Multiplied by n, its whole part is a number below n and what is left is a
    fraction again, shorter by log2(n) bits. Call `renew` before they are used up: one output is good for a dozen
    numbers below 30.
    """

    __slots__ = ("_fraction", "_number", "_state")

    def __init__(self, state: int):
        self._state = state
        self._number = 0
        self._fraction = 0

    def renew(self) -> None:
        """Take the next output."""
        self._fraction = output(self._state, self._number)
        self._number += 1

    def below(self, n: int) -> int:
        """Return one of 0 ... n - 1, each with the same chance (up to 2^-40 for the numbers of one output)."""
        product = self._fraction * n
        self._fraction = product & _MASK
        return product >> 64

    def one_of(self, items: Sequence[_Item]) -> _Item:
        """Return one of the items, each with the same chance."""
        product = self._fraction * len(items)
        self._fraction = product & _MASK
        return items[product >> 64]
