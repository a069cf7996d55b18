"""Which device asks the teacher for which pairs of a step, and in which order.

Pairs that share a passage belong together where the teacher reads a passage once for all of them: they are a unit. A
teacher of another kind has a unit a pair. Units are sorted by their width, longest first, and dealt out to the devices in
turn, so that all have as many of each width. Everything here is integers, and the same on every device until `share`.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

_NOT_OURS = jnp.iinfo(jnp.int32).max


def first_of_equals(numbers: jax.Array, rows: jax.Array) -> jax.Array:
    """For each pair the first one with the same question and the same passage.

    Args:
      numbers: of the questions, int32 [B]; a question can stand in a batch twice.
      rows: their passages, int32 [B, K].

    Returns:
      int32 [B * K], numbers of pairs; pair i is question i // K with its passage i % K.
    """
    flat, of_question = rows.reshape(-1), jnp.repeat(numbers, rows.shape[1])
    order = jnp.lexsort((flat, of_question))  # Stable: of equals the first pair is the first.
    begins = _begins(of_question[order]) | _begins(flat[order])
    first = jax.lax.cummax(jnp.where(begins, jnp.arange(len(flat)), 0))
    return jnp.zeros_like(order).at[order].set(order[first])


@jax.tree_util.register_dataclass
@dataclass
class Deal:
    """A step's units, dealt out to D devices; each has room for m."""

    device: jax.Array
    """Of each pair, int32 [P]; D where nothing is to be asked."""
    slot: jax.Array
    """The place of each pair's unit on its device, int32 [P]."""
    rows: jax.Array
    """The corpus rows of the units' passages, int32 [D, m]; -1 behind a device's last."""
    row_lengths: jax.Array
    """Tokens of the units' rows, see `Teacher.row_lengths`: int32 [D, m]; 0 behind a device's last."""


def deal(
    rows: jax.Array,
    asked: jax.Array,
    row_lengths: jax.Array,
    widths: tuple[int, ...],
    *,
    devices: int,
    slots: int,
    shared: bool,
) -> Deal:
    """Deals out the pairs of a step that the teacher is asked for.

    Args:
      rows: corpus rows, int32 [P].
      asked: which of the pairs, bool [P].
      row_lengths: tokens of what the teacher's encoder reads for each pair, int32 [P].
      widths: that such rows are padded to, ascending.
      devices: D.
      slots: m; D * m is at least the number of units.
      shared: whether pairs with the same row are one unit.
    """
    place = jnp.arange(len(rows))
    unit = rows if shared else place
    # How many pairs each unit has, so that each width's most asked passages are dealt out evenly, too.
    together = jnp.lexsort((unit, ~asked))
    group = jnp.cumsum(_begins(unit[together])) - 1
    counts = jnp.zeros(len(rows), jnp.int32).at[group].add(asked[together].astype(jnp.int32))
    pairs = jnp.zeros(len(rows), jnp.int32).at[together].set(counts[group])

    width = (row_lengths[:, None] > jnp.array(widths[:-1], jnp.int32)).sum(axis=1)
    order = jnp.lexsort((unit, -pairs, -width, ~asked))
    begins = _begins(unit[order]) & asked[order]
    number = jnp.zeros(len(rows), jnp.int32).at[order].set((jnp.cumsum(begins) - 1).astype(jnp.int32))
    device = jnp.where(asked, number % devices, devices).astype(jnp.int32)
    slot = jnp.where(asked, number // devices, slots).astype(jnp.int32)
    empty = jnp.zeros((devices, slots), jnp.int32)
    return Deal(
        device,
        slot,
        (empty - 1).at[device, slot].set(rows, mode="drop"),
        empty.at[device, slot].set(row_lengths, mode="drop"),
    )


@jax.tree_util.register_dataclass
@dataclass
class Share:
    """What one device asks the teacher for."""

    pairs: jax.Array
    """Its pairs by their questions' width, longest first, then by unit: int32 [P]; what follows its last is not its own."""
    starts: jax.Array
    """Where the pairs of each width of questions, longest first, and of each unit begin in `pairs`: int32 [W, m + 1]."""


def share(deal: Deal, device: jax.Array, question_lengths: jax.Array, widths: tuple[int, ...]) -> Share:
    """One device's share.

    Args:
      deal: the step's.
      device: its number.
      question_lengths: of each pair, int32 [P].
      widths: that questions are padded to, ascending.
    """
    slots = deal.rows.shape[1]
    rank = (question_lengths[:, None] <= jnp.array(widths[:-1], jnp.int32)).sum(axis=1)  # 0: the longest
    key = jnp.where(deal.device == device, rank * slots + deal.slot, _NOT_OURS)
    pairs = jnp.argsort(key, stable=True)
    counts = jnp.zeros(len(widths) * slots, jnp.int32).at[key].add(1, mode="drop")
    until = jnp.concatenate([jnp.zeros_like(counts[:1]), jnp.cumsum(counts)])
    return Share(pairs, until[jnp.arange(len(widths))[:, None] * slots + jnp.arange(slots + 1)])


def _begins(sorted_: jax.Array) -> jax.Array:
    """Where a new value begins, bool [n]."""
    return jnp.concatenate([jnp.ones(1, bool), jnp.diff(sorted_) != 0])
