"""Index-aware training: the loss on scores as the served index will compute them.

An index of quantised passages ranks by q . Q(p), where Q rounds a passage to int8 or to product codes; the encoder is
usually trained on q . p. Here the loss is taken on q . Q(p), and its gradient passes Q as if it were the identity, so
that the encoder learns embeddings whose ranking survives the rounding. JPQ (Zhan et al. 2021,
https://arxiv.org/abs/2108.00644) and RepCONC (Zhan et al. 2022, https://arxiv.org/abs/2110.05789) train with product
codes in such a way; `commitment` is the second's penalty on the distance to the codes, without its constraint of equal
use.

Centres of product codes are fitted to a sample of passages before the first step and every `relearn_every` steps, by a
separate compiled program. They are a part of the state, so that a resumed run continues with the same ones.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxretr.config import IndexAware
from jaxretr.indexes.certified.learnt import score_threshold
from jaxretr.losses.quantised import StoredRows, fitted_codebook
from jaxretr.models.backbones.layers import Params
from jaxretr.runtime.parallel.mesh import DATA
from jaxretr.runtime.parallel.sharding import compiled_over_data
from jaxretr.runtime.streams import KeyStream
from jaxretr.training.state import CorpusTokens, ProductCodes, step_key
from jaxretr.training.steps.encoding import embed_side
from jaxretr.training.steps.live_index import IndexProgram, fetch_rows


def stored_rows(settings: IndexAware, codes: ProductCodes | None) -> StoredRows:
    """Return the quantiser of a kind of index; `codes` are the state's product codes, None for int8."""
    if settings.kind == "int8":
        return StoredRows()
    assert codes is not None
    return StoredRows(codes.codebook, codes.threshold if settings.anisotropic else None)


def loss_on_index(
    settings: IndexAware, codes: ProductCodes | None, loss_on: Callable[..., tuple[jax.Array, Any]]
) -> tuple[jax.Array, Any]:
    """Return the loss on the scores of a quantised index, or its weighted mean with the loss on exact scores.

    Args:
      settings: kind of index, "none" for exact scores alone; weight of the loss on its scores.
      codes: product codes of the state.
      loss_on: function that takes the rows' quantiser as `stored`, or nothing for exact rows, and returns the loss and an
        auxiliary value.

    Returns:
      The loss, and its auxiliary value, which is that of the loss on the index's scores.
    """
    if settings.kind == "none":
        return loss_on()
    loss, others = loss_on(stored=stored_rows(settings, codes))
    if settings.weight < 1:
        loss = settings.weight * loss + (1 - settings.weight) * loss_on()[0]
    return loss, others


def make_learn(program: IndexProgram, mesh: Mesh, count: int) -> Callable[..., ProductCodes]:
    """Build the compiled program that fits the centres of product codes to passages, dropout off.

    Args:
      count: number of passages, the first ones on the devices, that the fit may use.

    Returns:
      learn(params, passages, codes, step, seed) -> codes, where `passages` is the corpus's CorpusTokens and `codes` are
      the codes that the fit starts from, or None.
    """

    @compiled_over_data(mesh, (P(DATA), P(), P(), P()), P(), split=program.shard_parameters)
    def learn(
        params: Params, passages: CorpusTokens, codes: ProductCodes | None, step: jax.Array, seed: jax.Array
    ) -> ProductCodes:
        settings = program.index_aware
        rows = sampled_rows(program, count, step_key(seed, step), lax.axis_size(DATA))  # [m]
        found = fetch_rows(passages, rows[:, None])
        own = embed_side(program, "passage", params, {}, found, None)[:, 0]  # [m / devices, D]
        everyone = lax.all_gather(own, DATA, tiled=True, to="invarying")
        weights = (rows >= 0).astype(jnp.float32)
        start = None if codes is None else codes.codebook
        codebook = fitted_codebook(everyone, weights, settings.block, settings.centres, start)
        return ProductCodes(codebook, threshold_of(everyone, weights), step)

    return learn


def threshold_of(rows: jax.Array, weights: jax.Array) -> jax.Array:
    """Return T of the score-aware loss for such rows, float32 scalar, as our ScaNN index sets it.

    Args:
      rows: float32 [m, D].
      weights: float32 [m], 0 for rows that do not count.
    """
    mean = (jnp.square(rows).sum(axis=-1) * weights).sum() / weights.sum()
    return jnp.sqrt(mean) * score_threshold(rows.shape[-1])


def sampled_rows(program: IndexProgram, passages: int, key: jax.Array, devices: int) -> jax.Array:
    """Choose the passages that the centres are fitted to, one from each of equal parts of all.

    Args:
      program: constants of the run, with the number of passages to choose.
      passages: number of passages to choose from.
      key: key of the step, `TrainState.key`.
      devices: number of devices that share the passages.

    Returns:
      int32 [m], where m is a multiple of the devices; -1 at the end if the passages do not divide.
    """
    count = min(program.index_aware.sample, passages)
    ends = np.arange(count + 1, dtype=np.int64) * passages // count
    sizes, drawn = np.diff(ends).astype(np.int32), jax.random.fold_in(key, KeyStream.QUANTISER_SAMPLE)
    rows = ends[:-1].astype(np.int32) + jax.random.randint(drawn, (count,), 0, sizes)
    return jnp.pad(rows, (0, -count % devices), constant_values=-1)
