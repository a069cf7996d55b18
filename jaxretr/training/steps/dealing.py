"""The assignment of a step's pairs to the devices that ask the teacher for them, and the order on each device.

Pairs that share a passage belong together where the teacher reads a passage once for all of them: they are a unit. For
any other teacher each pair is a unit. Units are sorted by their width, longest first, and assigned to the devices in
turn, so that all have equally many of each width. Everything here is integers, and the same on every device until
`share`.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

_NOT_OURS = jnp.iinfo(jnp.int32).max


def first_of_equals(numbers: jax.Array, rows: jax.Array) -> jax.Array:
    """Return for each pair the first one with the same question and the same passage.

    Args:
      numbers: numbers of the questions, int32 [B]; a question can stand in a batch twice.
      rows: their passages, int32 [B, K].

    Returns:
      int32 [B * K], numbers of pairs; pair i is question i // K with its passage i % K.
    """
    flat, of_question = rows.reshape(-1), jnp.repeat(numbers, rows.shape[1])
    order = jnp.lexsort((flat, of_question))  # Stable: the first of equal pairs stays first.
    begins = _begins(of_question[order]) | _begins(flat[order])
    first = jax.lax.cummax(jnp.where(begins, jnp.arange(len(flat)), 0))
    return jnp.zeros_like(order).at[order].set(order[first])


@jax.tree_util.register_dataclass
@dataclass
class Deal:
    """A step's units, assigned to D devices, each of which has room for m."""

    device: jax.Array
    """Number of the device that asks for each pair, int32 [P]; D where nothing is to be asked."""
    slot: jax.Array
    """Place of each pair's unit on its device, int32 [P]."""
    rows: jax.Array
    """Corpus rows of the units' passages, int32 [D, m]; -1 after a device's last."""
    row_lengths: jax.Array
    """Tokens of the units' rows, see `Teacher.row_lengths`: int32 [D, m]; 0 after a device's last."""


def deal(
    rows: jax.Array,
    is_new: jax.Array,
    row_lengths: jax.Array,
    widths: tuple[int, ...],
    *,
    devices: int,
    slots: int,
    shared: bool,
) -> Deal:
    """Assign the pairs of a step that the teacher is to score to the devices.

    Args:
      rows: corpus rows, int32 [P].
      is_new: whether the teacher is to score a pair, bool [P].
      row_lengths: tokens of the row that the teacher's encoder reads for each pair, int32 [P].
      widths: widths that such rows are padded to, ascending.
      devices: D, the number of devices.
      slots: m, the places of a device; D * m is at least the number of units.
      shared: whether pairs with the same row are one unit.
    """
    place = jnp.arange(len(rows))
    unit = rows if shared else place
    # Number of new pairs in each pair's unit, int32 [P], so that each width's passages with most pairs are spread as well.
    together = jnp.lexsort((unit, ~is_new))
    group = jnp.cumsum(_begins(unit[together])) - 1
    counts = jnp.zeros(len(rows), jnp.int32).at[group].add(is_new[together].astype(jnp.int32))
    pairs = jnp.zeros(len(rows), jnp.int32).at[together].set(counts[group])

    # Width class of each pair's row, 0 the narrowest, int [P]; then the pairs' order: new first, wide first, large
    # units first, the pairs of a unit together.
    width = (row_lengths[:, None] > jnp.array(widths[:-1], jnp.int32)).sum(axis=1)
    order = jnp.lexsort((unit, -pairs, -width, ~is_new))
    # Number of each pair's unit in that order, int32 [P]; units go to the devices in turn.
    begins = _begins(unit[order]) & is_new[order]
    number = jnp.zeros(len(rows), jnp.int32).at[order].set((jnp.cumsum(begins) - 1).astype(jnp.int32))
    device = jnp.where(is_new, number % devices, devices).astype(jnp.int32)
    slot = jnp.where(is_new, number // devices, slots).astype(jnp.int32)
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
    """Pairs that one device asks the teacher for."""

    pairs: jax.Array
    """The device's pairs by their questions' width, longest first, then by unit: int32 [P]; others' pairs follow."""
    starts: jax.Array
    """Start in `pairs` of the pairs of each width of questions, longest first, and of each unit: int32 [W, m + 1]."""


def share(deal: Deal, device: jax.Array, question_lengths: jax.Array, widths: tuple[int, ...]) -> Share:
    """Return one device's share.

    Args:
      question_lengths: tokens of each pair's question, int32 [P].
      widths: widths that questions are padded to, ascending.
    """
    slots = deal.rows.shape[1]
    # Class of each pair's question by its width, 0 the longest, int [P]; then the pairs' key: class first, unit second.
    rank = (question_lengths[:, None] <= jnp.array(widths[:-1], jnp.int32)).sum(axis=1)
    key = jnp.where(deal.device == device, rank * slots + deal.slot, _NOT_OURS)
    pairs = jnp.argsort(key, stable=True)
    # Pairs with each key, and with all keys up to each, [W m + 1]; a width's last entry is the next one's first.
    counts = jnp.zeros(len(widths) * slots, jnp.int32).at[key].add(1, mode="drop")
    until = jnp.concatenate([jnp.zeros_like(counts[:1]), jnp.cumsum(counts)])
    return Share(pairs, until[jnp.arange(len(widths))[:, None] * slots + jnp.arange(slots + 1)])


def _begins(sorted_: jax.Array) -> jax.Array:
    """Whether a new value begins in each place, bool [n]."""
    return jnp.concatenate([jnp.ones(1, bool), jnp.diff(sorted_) != 0])
