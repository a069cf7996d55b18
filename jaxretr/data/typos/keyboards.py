"""Keyboards as rows of keys, and which letters lie next to each other on them."""

from collections.abc import Mapping
from functools import lru_cache
from math import hypot
from types import MappingProxyType
from typing import NamedTuple

from jaxretr.runtime.errors import UsageError, did_you_mean


class _Row(NamedTuple):
    """Keys from left to right: the first one is `offset` key widths to the right of Q's place."""

    offset: float
    keys: str


# From the row of digits down, each row a key's height below the one before. The offsets are those of the usual
# staggered keyboard. A dot is a key without a letter.
KEYBOARDS: Mapping[str, tuple[_Row, ...]] = MappingProxyType(
    {
        "qwerty": (_Row(-0.5, ""), _Row(0, "qwertyuiop"), _Row(0.25, "asdfghjkl"), _Row(0.75, "zxcvbnm")),
        "qwertz": (
            _Row(-0.5, "..........ß"),
            _Row(0, "qwertzuiopü"),
            _Row(0.25, "asdfghjklöä"),
            _Row(0.75, "yxcvbnm"),
        ),
        "azerty": (
            _Row(-0.5, ".é....è.çà"),
            _Row(0, "azertyuiop"),
            _Row(0.25, "qsdfghjklmù"),
            _Row(0.75, "wxcvbn"),
        ),
    }
)

# Distance between the centres of two keys, in key widths: it includes the neighbours in the row and the two nearest
# keys above and below.
_NEAR = 1.3


@lru_cache
def neighbours(keyboard: str) -> Mapping[str, str]:
    """Return the letters that lie next to each letter of a keyboard.

    Args:
      keyboard: a key of `KEYBOARDS`.

    Returns:
      {letter: its neighbours}, lower-case, in the order of the keys; of QWERTY for instance g: "tyfhvb".

    Raises:
      UsageError: there is no such keyboard.
    """
    if keyboard not in KEYBOARDS:
        hint = did_you_mean(keyboard, KEYBOARDS) or f" (there are {', '.join(KEYBOARDS)})"
        raise UsageError(f"unknown keyboard '{keyboard}'{hint}")
    places = {
        key: (row.offset + column, height)
        for height, row in enumerate(KEYBOARDS[keyboard])
        for column, key in enumerate(row.keys)
        if key != "."
    }
    return {
        key: "".join(other for other, (a, b) in places.items() if other != key and hypot(a - x, b - y) < _NEAR)
        for key, (x, y) in places.items()
    }
