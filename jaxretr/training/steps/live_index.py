"""The live index: a corpus's tokens and embeddings on the devices, searched, read and written by compiled code.

index_refresh.py encodes it again. Everything here runs inside a shard_map over the mesh's "data" axis:
b = B / devices questions and n = N / devices corpus rows are local. ART and the contrastive objectives share it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxretr.config import IndexAware, LiveIndex
from jaxretr.indexes.topk import search_step
from jaxretr.models.backbones.layers import Params
from jaxretr.models.embed import DualEncoderConfig, JointConfig, embed, tower
from jaxretr.runtime.parallel.mesh import DATA
from jaxretr.runtime.parallel.sharding import compiled_over_data
from jaxretr.training.state import CorpusState, CorpusTokens


@dataclass(frozen=True, kw_only=True)
class IndexProgram:
    """Constants of the compiled programs around a live index."""

    encoder: DualEncoderConfig | JointConfig
    encoder_dtype: Any
    residual: str = "float32"
    """Type of the encoder's states between layers, see `jaxretr.models.backbones.layers.residual_in`."""
    corpus_rows: int
    """Number of passages in the corpus; the sharded arrays' further rows are padding."""
    index: LiveIndex
    chunk: int
    """Passages that a training step embeds at once on each device, as the section of the objective sets it."""
    activation_bytes: int
    """Bytes of questions' and of passages' activations, each, that a device may keep for the backward pass. If all
    chunks' fit in, each is embedded once; otherwise twice."""
    shard_parameters: bool = False
    """Whether the encoder's large matrices are split over "data", see jaxretr/runtime/parallel/split_parameters.py."""
    index_aware: IndexAware = field(default_factory=IndexAware)
    """Rounding of the loss's scores to those of a quantised index."""
    passage_widths: tuple[int, ...] = ()
    """Padded lengths that passages are cut to, see `chosen_widths`; empty: quarters of the longest."""
    packed_row: int = 0
    """Tokens, about, of the packed rows that texts are embedded in, one program for all lengths; 0: rows are padded."""
    layers_apart: bool = False
    """Whether the towers' layers are apart in the step's backward passes, see `layer_stacks.layers_apart`."""

    @property
    def numbers(self) -> dict[str, Any]:
        """The types of an embedding's numbers, as `embed` takes them."""
        return {"dtype": self.encoder_dtype, "residual": self.residual}

    @property
    def searches(self) -> bool:
        """Whether the step reads the live index."""
        return True


@jax.named_scope("search")
def find_passages(
    program: IndexProgram,
    mesh: Mesh,
    questions: jax.Array,
    index: CorpusState,
    k: int,
    allowed: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Search the live index with this device's questions; call it inside the shard_map.

    Args:
      questions: this device's embeddings, float32 [b, D].
      index: this device's part of the index.
      k: number of passages per question.
      allowed: this device's rows that may be found, bool [n]; None: all.

    Returns:
      scores float32 [B, k] and global rows int32 [B, k] of the whole batch, the same on all devices.
    """
    # The mesh's platform, not this process's default: a program can be compiled for devices that are not here.
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    return _search(program, questions if on_cpu else questions.astype(index.embeddings.dtype), index, k, allowed)


def _search(
    program: IndexProgram, questions: jax.Array, index: CorpusState, k: int, allowed: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    return search_step(
        questions,
        index.embeddings,
        k,
        num_valid=program.corpus_rows,
        queries_sharded=True,
        block_rows=program.index.block_rows,
        allowed=allowed,
    )


@jax.named_scope("fetch")
def fetch_rows(table: Any, rows: jax.Array) -> Any:
    """Bring rows of a sharded table to the devices that asked for them; call it inside the shard_map.

    Args:
      table: this device's rows, integers or floats [n, ...], or its `CorpusTokens`.
      rows: global rows wanted by all devices, int32 [B, K], the same everywhere; a row that does not exist gives 0.

    Returns:
      int32 or float32 [b, K, ...]: the wanted rows of this device's b questions; for a corpus's tokens int32
      `TokenRows`, with tokens [b, K, L] and lengths [b, K].
    """
    # Rows of this device's part, [B, K], and whether they are on this device.
    n = len(table.lengths) if isinstance(table, CorpusTokens) else len(table)
    local = rows - lax.axis_index(DATA) * n
    mine = (local >= 0) & (local < n)
    local = jnp.clip(local, 0, n - 1)

    def moved(values: jax.Array) -> jax.Array:
        dtype = jnp.int32 if jnp.issubdtype(values.dtype, jnp.integer) else jnp.float32
        values = jnp.where(mine.reshape(*mine.shape, *[1] * (values.ndim - 2)), values.astype(dtype), 0)
        # Each row is on exactly one device, so the sum moves it.
        return lax.psum_scatter(values, DATA, scatter_dimension=0, tiled=True)

    return jax.tree.map(moved, table.take(local) if isinstance(table, CorpusTokens) else table[local])


@jax.named_scope("write_back")
def write_back(index: CorpusState, rows: jax.Array, fresh: jax.Array, step: jax.Array) -> CorpusState:
    """Put freshly computed embeddings into the index.

    Args:
      index: this device's part of the index.
      rows: the retrieved global rows of the whole batch, int32 [B, K].
      fresh: embeddings of the rows of this device's questions, float32 [b, K, D].
      step: the number of updates that the weights had seen, int32 scalar.
    """
    everyone = lax.all_gather(fresh.astype(index.embeddings.dtype), DATA, tiled=True)  # [B, K, D]
    flat = rows.reshape(-1)
    # A passage that several questions found has several embeddings (dropout); the first question's counts, so that
    # the result does not depend on the order in which a device scatters. first: bool [B K].
    order = jnp.argsort(flat, stable=True)
    repeats = jnp.concatenate([jnp.zeros(1, bool), jnp.diff(flat[order]) == 0])
    first = jnp.zeros(flat.shape, bool).at[order].set(~repeats)
    # Rows of this device's part, [B K]; n for other devices' rows and for repeats.
    n = len(index.encoded_at)
    local = flat - lax.axis_index(DATA) * n
    place = jnp.where(first & (local >= 0) & (local < n), local, n)  # n is out of bounds: dropped
    return CorpusState(
        index.embeddings.at[place].set(everyone.reshape(len(flat), -1), mode="drop"),
        index.encoded_at.at[place].set(step, mode="drop"),
    )


def staleness(index: CorpusState, step: jax.Array, corpus_rows: int) -> jax.Array:
    """Return this device's share of the mean age of the index's rows, in steps; the devices' mean is the corpus's."""
    return _ages(index, step, corpus_rows).astype(jnp.float32).sum() * lax.axis_size(DATA) / corpus_rows


def staleness_max(index: CorpusState, step: jax.Array, corpus_rows: int) -> jax.Array:
    """Return the age of the index's oldest row, in steps, float32 scalar; the same on all devices."""
    return lax.pmax(_ages(index, step, corpus_rows).max(), DATA).astype(jnp.float32)


def _ages(index: CorpusState, step: jax.Array, corpus_rows: int) -> jax.Array:
    """Return the steps since each of this device's rows was encoded, int32 [n]; padding counts as fresh."""
    n = len(index.encoded_at)
    real = lax.axis_index(DATA) * n + jnp.arange(n) < corpus_rows
    return jnp.where(real, step - index.encoded_at, 0)


def staleness_of(index: CorpusState, rows: jax.Array, step: jax.Array) -> jax.Array:
    """Return this device's share of the mean age of some rows, in steps; the devices' mean is the mean, 0 for no rows.

    Args:
      index: this device's part of the index, as it was when the rows were found.
      rows: global rows, int32, the same on all devices; those that do not exist are left out.
      step: the number of updates that the weights have seen, int32 scalar.
    """
    n = len(index.encoded_at)
    local = rows - lax.axis_index(DATA) * n
    mine = (local >= 0) & (local < n)
    age = jnp.where(mine, step - index.encoded_at.at[local].get(mode="clip"), 0).astype(jnp.float32)
    count = ((rows >= 0) & (rows < n * lax.axis_size(DATA))).sum()
    return age.sum() * lax.axis_size(DATA) / jnp.maximum(count, 1)


def make_search(program: IndexProgram, mesh: Mesh, k: int) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Build the compiled search of evaluation questions over the live index, dropout off.

    Returns:
      search(params, index, tokens [B, L], lengths [B], allowed) -> (scores float32 [B, k], rows int32 [B, k]), the same
      on all devices; `allowed`: the rows that may be found, bool [N], or None for all.
    """

    @compiled_over_data(mesh, (P(DATA), P(DATA), P(DATA), P(DATA)), (P(), P()), split=program.shard_parameters)
    def search(
        params: Params, index: CorpusState, tokens: jax.Array, lengths: jax.Array, allowed: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        q = embed(program.encoder, tower(params, "question"), tokens, lengths, **program.numbers)
        return _search(program, q, index, k, allowed)

    return search


def make_embed_questions(program: IndexProgram, mesh: Mesh) -> Callable[..., jax.Array]:
    """Build the compiled program that encodes evaluation questions, dropout off.

    Returns:
      embed(params, tokens [n, L], lengths [n]) -> float32 [n, D], the same on all devices; n is a multiple of them.
    """

    @compiled_over_data(mesh, (P(DATA), P(DATA)), P(), split=program.shard_parameters)
    def embed_questions(params: Params, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        q = embed(program.encoder, tower(params, "question"), tokens, lengths, **program.numbers)
        return lax.all_gather(q, DATA, tiled=True, to="invarying")

    return embed_questions
