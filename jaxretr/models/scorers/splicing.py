"""Rows of token ids that are joined from fixed ids and texts of different lengths, inside a compiled program."""

from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

import jax
import jax.numpy as jnp

Segment = tuple[int, ...] | tuple[jax.Array, jax.Array]
"""Ids that all rows have, or (token ids [..., W] padded on the right, number of real ones int32 [...])."""


class Spliced(NamedTuple):
    """Rows of token ids.

    Attributes:
      tokens: int32 [..., L], padded on the right with 0.
      lengths: int32 [...].
      starts: start of each segment, int32 [...] or a number.
    """

    tokens: jax.Array
    lengths: jax.Array
    starts: tuple[jax.Array | int, ...]


def splice(segments: Sequence[Segment], width: int | None = None) -> Spliced:
    """Join segments one after the other.

    Args:
      segments: segments, at least one of them with separate ids for each row.
      width: L, if all rows are known to be no longer; None: the width of the longest possible row.
    """
    # The L columns of all rows; each segment is written over the columns from its start on, so that later ones replace
    # the padding of earlier ones.
    widths = [part[0].shape[-1] if _is_rows(part) else len(part) for part in segments]
    place = jnp.arange(sum(widths) if width is None else min(width, sum(widths)))
    tokens: jax.Array | None = None
    start: jax.Array | int = 0
    starts: list[jax.Array | int] = []
    for part, size in zip(segments, widths, strict=True):
        starts.append(start)
        if not size:
            continue
        # Each column's place in the segment, [..., L] or [L]; negative before its start.
        here = place - (start if isinstance(start, int) else start[..., None])
        inside = jnp.clip(here, 0, size - 1)
        if _is_rows(part):
            rows, lengths = part
            rows = rows.astype(jnp.int32)
            ids = rows[..., inside] if inside.ndim == 1 else jnp.take_along_axis(rows, inside, axis=-1)
            start = start + lengths
        else:
            ids = jnp.array(part, jnp.int32)[inside]
            start = start + size
        tokens = ids if tokens is None else jnp.where(here < 0, tokens, ids)
    assert tokens is not None and not isinstance(start, int)
    return Spliced(jnp.where(place < start[..., None], tokens, 0), start.astype(jnp.int32), tuple(starts))


def _is_rows(segment: Segment) -> TypeGuard[tuple[jax.Array, jax.Array]]:
    return bool(segment) and not isinstance(segment[0], int)
