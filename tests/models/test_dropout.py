"""Dropout by a hash: rates, independence of everything that must not matter, and no pattern between neighbours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxretr.models.backbones.dropout import Dropout, folded, random_bits

RATE = 0.1
KEYS = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(3), jnp.arange(4))


def dropped(keys: jax.Array, *shape: int, site: int = 0, layer: int = 0) -> np.ndarray:
    """Where elements are set to zero, bool [B, *shape]."""

    @jax.jit
    def of_ones(keys: jax.Array) -> jax.Array:
        drop = Dropout(folded(keys, layer), RATE)
        drop.calls = site
        return drop(jnp.ones((len(keys), *shape)))

    return np.asarray(of_ones(keys)) == 0


def reference(key: tuple[int, int], layer: int, site: int, *place: int) -> int:
    """The bits of one element in Python's integers: MurmurHash3's finaliser, key word by key word."""
    keep = 2**32 - 1

    def finalised(x: int, between: int = 0) -> int:
        x = ((x ^ x >> 16) * 0x85EBCA6B & keep) ^ between
        x = (x ^ x >> 13) * 0xC2B2AE35 & keep
        return x ^ x >> 16

    one, other = key
    *lines, last = place
    for number in (layer, site, *lines):
        one = finalised(one + (number + 1) * 0x9E3779B9 & keep)
        other = finalised(other ^ one)
    return finalised(one + last * 0x9E3779B9 & keep, other)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
def test_the_bits_are_those_of_the_reference(shape: tuple[int, ...]) -> None:
    found = np.asarray(random_bits(folded(folded(KEYS, 7), 2), shape))
    words = np.asarray(jax.random.key_data(KEYS)).tolist()
    for row in range(len(KEYS)):
        for place in np.ndindex(shape):
            assert found[(row, *place)] == reference(tuple(words[row]), 7, 2, *place)


def test_padding_moves_no_element() -> None:
    """A row's mask would otherwise depend on the chunk that it is embedded in."""
    np.testing.assert_array_equal(dropped(KEYS, 6, 8), dropped(KEYS, 9, 8)[:, :6])
    np.testing.assert_array_equal(dropped(KEYS, 2, 6, 6), dropped(KEYS, 2, 9, 9)[:, :, :6, :6])
    np.testing.assert_array_equal(dropped(KEYS, 6, 8)[2:], dropped(KEYS[2:], 6, 8))


def test_what_is_kept_is_scaled_and_its_gradient_is_masked_alike() -> None:
    x = jax.random.normal(jax.random.key(0), (4, 6, 8), jnp.bfloat16)
    found, pull = jax.vjp(lambda x: Dropout(KEYS, RATE)(x), x)
    kept = np.asarray(found) != 0
    assert 0.5 < kept.mean() < 1 and found.dtype == jnp.float32
    np.testing.assert_allclose(found, np.where(kept, np.float32(x) / 0.9, 0), rtol=1e-6)
    np.testing.assert_allclose(np.float32(pull(jnp.ones_like(found))[0]), np.where(kept, 1 / 0.9, 0), rtol=2**-8)
    assert Dropout(None, RATE)(x) is x and Dropout(KEYS, 0.0)(x) is x


def test_masks_are_as_good_as_random() -> None:
    """Every share of two masks' agreement lies within five standard deviations of chance."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(5), jnp.arange(32))
    mask = dropped(keys, 64, 96)  # of many rows, [32, 64, 96]

    def check(what: str, both: np.ndarray, share: float) -> None:
        deviation = (share * (1 - share) / both.size) ** 0.5
        assert abs(both.mean() - share) < 5 * deviation, (what, both.mean(), share)

    check("the rate", mask, RATE)
    for axis in range(3):  # Rows, tokens, dimensions: each row's, token's and dimension's own rate, and neighbours.
        others = tuple(other for other in range(3) if other != axis)
        rates, count = mask.mean(axis=others), mask.size / mask.shape[axis]
        assert np.abs(rates - RATE).max() < 5 * (RATE * (1 - RATE) / count) ** 0.5, axis
        for distance in (1, 2, 7, 16):
            moved = np.roll(mask, distance, axis)
            check(f"neighbours along {axis} at {distance}", mask & moved, RATE**2)
    check("sites", mask & dropped(keys, 64, 96, site=1), RATE**2)
    check("layers", mask & dropped(keys, 64, 96, layer=1), RATE**2)
    check("a layer and a site", dropped(keys, 64, 96, site=1) & dropped(keys, 64, 96, layer=1), RATE**2)
    steps = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(6), jnp.arange(32))
    check("steps", mask & dropped(steps, 64, 96), RATE**2)
    heads = dropped(keys, 4, 32, 32)
    check("heads", heads[:, 1:] & heads[:, :-1], RATE**2)
    check("queries and keys", heads & heads.swapaxes(2, 3) & ~np.eye(32, dtype=bool), RATE**2 * 31 / 32)


def test_each_bit_is_one_half_of_the_time() -> None:
    bits = np.asarray(random_bits(folded(KEYS, 0), (64, 96)))
    shares = [(bits >> place & 1).mean() for place in range(32)]
    assert max(abs(share - 0.5) for share in shares) < 5 * 0.5 * bits.size**-0.5
