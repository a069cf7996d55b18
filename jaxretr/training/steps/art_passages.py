"""The passages that a question of ART is compared on: the top of the search, given ones, and drawn ones.

ART takes the first K of a search (section 2.4). Its authors also compare kinds of passages (section 4.3, Table 7):
judged ones, hard negatives, and passages that are drawn uniformly from the corpus.
"""

import jax
import jax.numpy as jnp
from jax import lax

_NONE = -1


def without_repeats(rows: jax.Array) -> jax.Array:
    """Return rows int32 [B, K] with -1 in every place whose row stands in an earlier place of its question."""
    k = rows.shape[1]
    earlier = jnp.arange(k) < jnp.arange(k)[:, None]  # [K, K]
    repeated = ((rows[:, :, None] == rows[:, None, :]) & earlier).any(axis=-1)
    return jnp.where(repeated, _NONE, rows)


def filled(rows: jax.Array, passages: int, keys: jax.Array) -> jax.Array:
    """Fill the empty places with passages that are drawn uniformly from those that the question does not have yet.

    Args:
      rows: int32 [B, K], -1 in empty places; no row twice.
      passages: number of passages in the corpus, at least K.
      keys: one PRNG key a question, [B].

    Returns:
      int32 [B, K]; no row twice.
    """
    k = rows.shape[1]
    last = jnp.iinfo(jnp.int32).max

    def fill(place: jax.Array, rows: jax.Array) -> jax.Array:
        taken = jnp.sort(jnp.where(rows < 0, last, rows), axis=1)
        free = passages - (rows >= 0).sum(axis=1)
        draw = jax.vmap(lambda key, free: jax.random.randint(jax.random.fold_in(key, place), (), 0, free))
        number = draw(keys, free)  # among those that are not taken
        # A taken row has as many free rows before it as its own number less its place in the order of taken rows.
        drawn = number + (taken - jnp.arange(k) <= number[:, None]).sum(axis=1)
        return rows.at[:, place].set(jnp.where(rows[:, place] < 0, drawn, rows[:, place]))

    return lax.fori_loop(0, k, fill, rows)
