"""Generation of texts inside one compiled program: prompts are read once, then one token of each row after another."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxretr.models.backbones.layers import Params, matmuls_in
from jaxretr.models.generation.decoders import Decoder
from jaxretr.runtime.errors import UsageError, is_number, require_at_least
from jaxretr.runtime.parallel.programs import device_jit


@dataclass(frozen=True)
class Sampling:
    """The way in which each token is chosen.

    Attributes:
      temperature: divisor of the logits; 0: always the most likely token (greedy).
      top_k: number of the most likely tokens that are drawn from; 0: all.
      top_p: tokens are drawn from the most likely ones whose probabilities sum up to this, at least one (nucleus
        sampling, Holtzman et al. 2020, arXiv 1904.09751).
      max_new_tokens: number of tokens to generate at most.
    """

    temperature: float = 0.7
    top_k: int = 25
    top_p: float = 0.95
    max_new_tokens: int = 64

    def __post_init__(self) -> None:
        """Refuse impossible settings.

        Raises:
          UsageError: one of them is out of its range.
        """
        require_at_least(1, max_new_tokens=self.max_new_tokens)
        require_at_least(0, top_k=self.top_k)
        if not is_number(self.temperature) or self.temperature < 0:
            raise UsageError(
                f"temperature={self.temperature!r}: give 0 for the most likely tokens, or a number above it"
            )
        if not is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise UsageError(f"top_p={self.top_p!r}: give a number above 0, up to 1 for all tokens")


class Generated(NamedTuple):
    """Generated tokens of B rows, arrays of JAX or numpy.

    Attributes:
      tokens: int32 [B, T]; 0 after a row's end.
      counts: number of tokens of each row, the last one included, int32 [B].
      log_probs: mean log p(token | tokens before it) of each row, in nats, at temperature 1 over the whole vocabulary,
        float32 [B].
      ended: whether each row ended within T tokens, bool [B].
    """

    tokens: Any
    counts: Any
    log_probs: Any
    ended: Any


@partial(device_jit, static_argnums=(0,), static_argnames=("per_prompt", "sampling", "dtype"))
def generate(
    decoder: Decoder,
    params: Params,
    tokens: jax.Array,
    lengths: jax.Array,
    draws: jax.Array,
    ends: jax.Array,
    never_first: jax.Array,
    seed: jax.Array,
    *,
    per_prompt: int,
    sampling: Sampling,
    dtype: str,
) -> Generated:
    """Generate continuations of prompts, compiled.

    A row's numbers are drawn by its own `draws`, so that the rows around it do not decide what it says.

    Args:
      params: the model's parameters, a causal language model's layers apart.
      tokens: token ids of the prompts, int32 [P, L], padded on the right.
      lengths: int32 [P]; rows of length 0 are padding.
      draws: number of each row's draw, uint32 [B], where B = P x per_prompt, those of a prompt one behind the other.
      ends: whether each token ends a row, bool [V].
      never_first: whether each token cannot be the first of a row, bool [V].
      seed: seed of all draws, uint32.
      per_prompt: number of rows of each prompt.
      sampling: the way in which tokens are chosen; T = max_new_tokens.

    Returns:
      B rows.
    """
    with matmuls_in(jnp.dtype(dtype)):
        logits, read = decoder.begin(params, tokens, lengths, sampling.max_new_tokens, dtype=jnp.dtype(dtype))
        logits, read = jnp.repeat(logits, per_prompt, axis=0), read.repeated(per_prompt)
        keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(draws)
        rows = jnp.arange(len(draws))

        def chosen(logits: jax.Array, number: Any) -> tuple[jax.Array, jax.Array]:
            allowed = jnp.where(never_first & (number == 0), -jnp.inf, logits)
            token = _choose(allowed, keys, number, sampling)
            return token, jax.nn.log_softmax(logits, axis=-1)[rows, token]

        first, log_prob = chosen(logits, 0)
        empty = jnp.repeat(lengths == 0, per_prompt)
        out = jnp.zeros((len(draws), sampling.max_new_tokens), jnp.int32).at[:, 0].set(jnp.where(empty, 0, first))
        live = ~empty
        state = jnp.ones((), jnp.int32), first, live & ~ends[first], out, live.astype(jnp.int32), log_prob, read

        def unfinished(state: Any) -> jax.Array:
            return (state[0] < sampling.max_new_tokens) & state[2].any()

        def follow(state: Any) -> Any:
            number, token, live, out, counts, total, read = state
            logits, read = decoder.follow(params, token, number - 1, read, dtype=jnp.dtype(dtype))
            token, log_prob = chosen(logits, number)
            token = jnp.where(live, token, 0)
            out = jax.lax.dynamic_update_slice_in_dim(out, token[:, None], number, axis=1)
            total, counts = total + jnp.where(live, log_prob, 0.0), counts + live
            return number + 1, token, live & ~ends[token], out, counts, total, read

        _, _, live, out, counts, total, _ = jax.lax.while_loop(unfinished, follow, state)
    return Generated(out, counts, total / jnp.maximum(counts, 1), ~live & ~empty)


def _choose(logits: jax.Array, keys: jax.Array, number: Any, sampling: Sampling) -> jax.Array:
    """Return the next token of each row: logits float32 [B, V], keys [B] -> int32 [B]."""
    if sampling.temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    size = min(sampling.top_k or logits.shape[-1], logits.shape[-1])
    values, ids = jax.lax.top_k(logits / sampling.temperature, size)
    if sampling.top_p < 1:
        probabilities = jax.nn.softmax(values, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        values = jnp.where(before < sampling.top_p, values, -jnp.inf)
    place = jax.vmap(lambda key, values: jax.random.categorical(jax.random.fold_in(key, number), values))(keys, values)
    return jnp.take_along_axis(ids, place[:, None], axis=1)[:, 0].astype(jnp.int32)
