"""Self-attention as GPU kernels: scores, probabilities and dropout's masks never leave the multiprocessor.

XLA writes the scores of a batch out in float32, reads them for the softmax, and writes the masks as well: of a
contrastive step of BERT-base on an H100 that was a third of the time. These kernels hold a block of queries against one
block of keys after the other (Dao et al. 2022, FlashAttention), skip the blocks that are padding, and read queries,
keys and values as the dense layers wrote them. Numbers are as in the written-out form: products of bfloat16 summed in
float32, a softmax in float32, probabilities and cotangents rounded to bfloat16 before they are multiplied.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from jaxretr.models.backbones.attention_kernels import KeyBias
from jaxretr.models.backbones.dropout import PackedKeys, element_bits, folded, folded_words, keys_of_texts, threshold
from jaxretr.models.backbones.packed_rows import are_packed, text_tiles
from jaxretr.runtime.parallel.mesh import varying_alike
from jaxretr.runtime.parallel.programs import pallas_triton

BLOCK = 64
"""Largest number of queries, and of keys, in a block; fewer where the rows are shorter."""

QUERIES_A_WARP, STAGES = 16, 2
"""Lines of a block per warp: four warps of 16 lines are what a Hopper multiprocessor's matrix unit multiplies at once.
Compiled for it, neither kernel spills a register with heads of 64."""

_LOG2_E = math.log2(math.e)

triton: Any = pallas_triton()


class Form(NamedTuple):
    """Constants of a kernel, known when a program is traced.

    Attributes:
      scale: factor of the scores, before the bias.
      rate: rate of dropout.
      interpret: whether to run the kernels as JAX operations on any device, for tests.
    """

    scale: float
    rate: float
    interpret: bool = False


def fused_attention(
    q_blhd: jax.Array,
    k_blhd: jax.Array,
    v_blhd: jax.Array,
    bias: KeyBias,
    keys: jax.Array | None,
    form: Form,
    written_out: Callable[..., jax.Array],
) -> jax.Array:
    """Compute attention of every real position over the real positions of its row, or of its text in packed rows.

    Padding queries give zeros, unlike in the written-out form, and have no gradient. A text's result does not depend on
    the other texts of its row, to the bit.

    Args:
      q_blhd: queries, bfloat16 [B, L, H, d] with d in `SIZES`.
      k_blhd: keys, of the same shape and type.
      v_blhd: values, of the same shape and type.
      keys: keys of dropout, uint32 [B, 2] or `PackedKeys` with [B, M, 2]; None: no dropout.
      written_out: function of (q, k, v, bias, keys) that computes the same without a kernel: its gradient is taken
        where there is a bias of positions.

    Returns:
      bfloat16 [B, L, H * d].
    """
    words = keys.words if isinstance(keys, PackedKeys) else keys
    *arrays, words = varying_alike(q_blhd, k_blhd, v_blhd, *bias, words)
    q, k, v, bias = *arrays[:3], KeyBias(*arrays[3:])
    if bias.positions is None:
        return _fused(q, k, v, bias.lengths, _of_heads(words, q.shape[2]), form)
    return _fused_with_positions(q, k, v, bias, words, form, written_out)


@partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _fused_with_positions(
    q: jax.Array, k: jax.Array, v: jax.Array, bias: KeyBias, keys: Any, form: Form, written_out: Any
) -> jax.Array:
    return _attended(q, k, v, bias.lengths, _of_heads(keys, q.shape[2]), form, positions=bias.positions)[0]


def _forward_with_positions(*arguments: Any) -> Any:
    return _fused_with_positions(*arguments), arguments[:5]


def _backward_with_positions(form: Form, written_out: Any, saved: Any, cotangent: jax.Array) -> Any:
    q, k, v, bias, keys = saved

    def of_these(q: jax.Array, k: jax.Array, v: jax.Array, hidden: jax.Array, positions: jax.Array) -> jax.Array:
        return written_out(q, k, v, KeyBias(hidden, positions, bias.lengths), keys_of_texts(keys, bias.lengths))

    *of_qkv, hidden, positions = jax.vjp(of_these, q, k, v, bias.hidden, bias.positions)[1](cotangent)
    return *of_qkv, KeyBias(hidden, positions, None), None  # pyright: ignore[reportArgumentType]


_fused_with_positions.defvjp(_forward_with_positions, _backward_with_positions)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _fused(q: jax.Array, k: jax.Array, v: jax.Array, lengths: jax.Array, keys: Any, form: Form) -> jax.Array:
    return _attended(q, k, v, lengths, keys, form)[0]


def _forward(q: jax.Array, k: jax.Array, v: jax.Array, lengths: jax.Array, keys: Any, form: Form) -> Any:
    out, sums = _attended(q, k, v, lengths, keys, form, keep_sums=True)
    return out, (q, k, v, lengths, keys, out, sums)


def _backward(form: Form, saved: Any, cotangent: jax.Array) -> Any:
    """Return the gradients of queries, keys and values. Each block is one program, which computes the scores twice:
    once for its keys and values, over all queries, and once for its queries, over all keys."""
    q, k, v, lengths, keys, out, sums = saved
    batch, length, heads, size = q.shape
    cotangent = cotangent.astype(q.dtype)
    # deltas: the sum of probabilities times their cotangents, float32 [B, H, L], which the softmax's gradient
    # subtracts. With dropout, too, it is the sum of results times their cotangents.
    products = out.astype(jnp.float32) * cotangent.astype(jnp.float32)
    deltas = products.reshape(q.shape).sum(-1).transpose(0, 2, 1)
    block = _block(length)
    # Inputs of the kernel: per head of a row, queries to cotangents are [L, d], the sums and deltas [L].
    tiles = _tiles(lengths, length, block)
    given = [tiles, q, k, v, cotangent.reshape(q.shape), sums, deltas, *([] if keys is None else [keys])]
    row = pl.BlockSpec((None, length, None, size), lambda _, head, row: (row, 0, head, 0))
    line = pl.BlockSpec((None, None, length), lambda _, head, row: (row, head, 0))
    gradients = _call(
        partial(_backward_kernel, form=form, block=block),
        given,
        [pl.BlockSpec(), row, row, row, row, line, line, pl.BlockSpec()][: len(given)],
        [(q.shape, q.dtype)] * 3,
        [row] * 3,
        (_count(tiles, length, block), heads, batch),
        form,
    )
    return *gradients, None, None


_fused.defvjp(_forward, _backward)


def _of_heads(keys: jax.Array | None, heads: int) -> Any:
    """Return the keys of each head, uint32 [B, ..., H, 2], as `random_bits` folds them."""
    return None if keys is None else folded(keys[..., None, :], jnp.arange(heads))


def _attended(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    lengths: jax.Array,
    keys: Any,
    form: Form,
    *,
    positions: jax.Array | None = None,
    keep_sums: bool = False,
) -> tuple[jax.Array, Any]:
    """Return the attention, [B, L, H * d]; and log2 of the sum of exponentials, float32 [B, H, L], if kept."""
    batch, length, heads, size = q.shape
    block = _block(length)
    # A program sees one head of one row: queries, keys and values [L, d], sums [L], relative positions [keys, queries].
    row = pl.BlockSpec((None, length, None, size), lambda _, head, row: (row, 0, head, 0))
    line = pl.BlockSpec((None, None, length), lambda _, head, row: (row, head, 0))
    tiles = _tiles(lengths, length, block)
    given, specs = [tiles, q, k, v], [pl.BlockSpec(), row, row, row]
    if keys is not None:
        given, specs = [*given, keys], [*specs, pl.BlockSpec()]
    if positions is not None:
        of_head = pl.BlockSpec((None, None, length, length), lambda _, head, row: (0, head, 0, 0))
        given, specs = [*given, positions], [*specs, of_head]
    out, *sums = _call(
        partial(
            _forward_kernel, form=form, block=block, has_keys=keys is not None, has_positions=positions is not None
        ),
        given,
        specs,
        [(q.shape, q.dtype), ((batch, heads, length), jnp.float32)][: 1 + keep_sums],
        [row, line][: 1 + keep_sums],
        (_count(tiles, length, block), heads, batch),
        form,
    )
    return out.reshape(batch, length, heads * size), sums[0] if sums else None


def _block(length: int) -> int:
    return min(BLOCK, max(16, 1 << (length - 1).bit_length()))


def _tiles(lengths: jax.Array, width: int, block: int) -> jax.Array:
    """Return the array that tells a program its block: the lengths of padded rows, or the tiles of packed ones."""
    return text_tiles(lengths, width, block) if are_packed(lengths) else lengths


def _count(tiles: jax.Array, width: int, block: int) -> int:
    """Return the number of programs for one head of a row."""
    return tiles.shape[1] if tiles.ndim == 3 else pl.cdiv(width, block)


def _call(
    kernel: Any, arrays: list[Any], in_specs: list[Any], shapes: list[Any], out_specs: list[Any], grid: Any, form: Form
) -> Any:
    arrays = list(varying_alike(*arrays))
    varying: Any = jax.typeof(arrays[0]).manual_axis_type
    block = kernel.keywords["block"]
    return pl.pallas_call(
        kernel,
        grid=grid,  # the blocks of one head of a row are adjacent
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=[jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=varying) for shape, dtype in shapes],
        compiler_params=triton.CompilerParams(num_warps=max(1, block // QUERIES_A_WARP), num_stages=STAGES),
        interpret=form.interpret,
    )(*arrays)


class _Block(NamedTuple):
    """A part of a text, from its token `start` on, that a program holds or reads.

    Attributes:
      start: place of the first token in the text.
      size: number of tokens.
      base: place of the text's first token in its row.
      end: number of the text's places that are written.
    """

    start: Any
    size: int
    base: Any
    end: Any

    def at(self, number: Any) -> "_Block":
        """The text's block of this number."""
        return self._replace(start=number * self.size)

    @property
    def places(self) -> jax.Array:
        return self.start + jnp.arange(self.size, dtype=jnp.int32)

    def rows(self, ref: Any, length: Any) -> jax.Array:
        """Load the block's lines of [L, d]: [size, d], 0 from the row's `length` on."""
        return triton.load(ref.at[self._in_row, :], mask=(self.places < length)[:, None], other=0.0)

    def line(self, ref: Any, length: Any) -> jax.Array:
        """Load the block's elements of [L]: [size], 0 from the row's `length` on."""
        return triton.load(ref.at[self._in_row], mask=self.places < length, other=0.0)

    def biases(self, ref: Any, keys: "_Block", length: Any) -> jax.Array:
        """Load a block of [keys, queries]: [this block's queries, keys], 0 from the row's `length` on."""
        mask = (keys.places < length)[:, None] & (self.places < length)[None, :]
        in_texts = pl.ds(keys.start, keys.size), pl.ds(self.start, self.size)
        return triton.load(ref.at[*in_texts], mask=mask, other=0.0).T

    def store_rows(self, ref: Any, values: jax.Array) -> None:
        triton.store(ref.at[self._in_row, :], values.astype(ref.dtype), mask=(self.places < self.end)[:, None])

    def store_line(self, ref: Any, values: jax.Array) -> None:
        triton.store(ref.at[self._in_row], values, mask=self.places < self.end)

    @property
    def _in_row(self) -> Any:
        return pl.ds(self.base + self.start, self.size)


def _own_block(tiles: Any, width: int, block: int) -> tuple[_Block, Any]:
    """Return the block of this program and the real length of its text."""
    number, row = pl.program_id(0), pl.program_id(2)
    if len(tiles.shape) == 1:
        return _Block(number * block, block, 0, width), tiles[row]
    base, first, length, end = (tiles[row, number, part] for part in range(4))
    return _Block(first * block, block, base, end), length


def _forward_kernel(tiles, q, k, v, *others, form: Form, block: int, has_keys: bool, has_positions: bool) -> None:
    """Compute the attention of one block of queries, of a head of a row."""
    keys = others[0] if has_keys else None
    positions = others[has_keys] if has_positions else None
    out, *sums = others[has_keys + has_positions :]
    here, length = _own_block(tiles, q.shape[0], block)
    queries = here.rows(q, length)
    words = _words(_own_key(keys, tiles), here)

    def add(number: jax.Array, sofar: Any) -> Any:
        # For each query: the largest score so far, the sum of exponentials relative to it, [queries], and the values'
        # sum weighted by them, [queries, d].
        top, total, mixed = sofar
        there = here.at(number)
        # Scores in units of log2, [queries, keys]; -inf at padding keys.
        scores = triton.dot(queries, there.rows(k, length), trans_b=True) * (form.scale * _LOG2_E)
        if positions is not None:
            scores += here.biases(positions, there, length) * _LOG2_E
        scores = jnp.where((there.places < length)[None, :], scores, -jnp.inf)
        # Exponentials relative to the new largest score; the sums so far shrink to it.
        new = jnp.maximum(top, scores.max(1))
        weights, shrink = jnp.exp2(scores - new[:, None]), jnp.exp2(top - new)
        total = total * shrink + weights.sum(1)
        # Dropout applies to the weights of the values, not to their sum.
        if words is not None:
            weights = jnp.where(_kept(words, there, form), weights, 0.0)
        mixed = mixed * shrink[:, None] + triton.dot(weights.astype(v.dtype), there.rows(v, length))
        return new, total, mixed

    start = jnp.full((block,), -jnp.inf, jnp.float32), jnp.zeros((block,), jnp.float32), _zeros(block, q)
    top, total, mixed = lax.fori_loop(0, _blocks(here, length), add, start)
    # Divide by the sum, and write zeros for padding queries.
    real = here.places < length
    total = jnp.where(real, total, 1.0)
    here.store_rows(out, jnp.where(real[:, None], mixed * (_rescale(form, keys) / total)[:, None], 0.0))
    if sums:
        here.store_line(sums[0], jnp.where(real, top + jnp.log2(total), 0.0))


def _backward_kernel(tiles, q, k, v, cotangents, sums, deltas, *others, form: Form, block: int) -> None:
    """Compute the gradients of one block of keys and values and of one block of queries, of a head of a row."""
    *given, of_q, of_k, of_v = others
    keys = given[0] if given else None
    own_key = _own_key(keys, tiles)
    here, length = _own_block(tiles, q.shape[0], block)
    blocks, real = _blocks(here, length), (here.places < length)[:, None]
    rescale = _rescale(form, keys)

    # First, keys and values. Scores are laid out keys x queries, so that nothing is transposed before it is multiplied.
    own_k, own_v = here.rows(k, length), here.rows(v, length)

    def add_queries(number: jax.Array, sofar: Any) -> Any:
        sum_k, sum_v = sofar
        there = here.at(number)
        queries, cotangent = there.rows(q, length), there.rows(cotangents, length)
        # Probabilities again, from the forward pass's sums, and their cotangents (`back`), both [keys, queries].
        scores = triton.dot(own_k, queries, trans_b=True) * (form.scale * _LOG2_E)
        probabilities = jnp.exp2(scores - there.line(sums, length)[None, :])
        back = triton.dot(own_v, cotangent, trans_b=True)
        weights = probabilities
        # Dropout: dropped probabilities weigh nothing and get no cotangent; the others' is rescaled.
        if keys is not None:
            kept = _kept(_words(own_key, there), here, form, keys_first=True)
            weights, back = jnp.where(kept, probabilities, 0.0), jnp.where(kept, back * rescale, 0.0)
        sum_v += triton.dot(weights.astype(v.dtype), cotangent)
        # Cotangents of the scores, by the softmax's gradient.
        back = probabilities * (back - there.line(deltas, length)[None, :])
        return sum_k + triton.dot(back.astype(q.dtype), queries), sum_v

    sum_k, sum_v = lax.fori_loop(0, blocks, add_queries, (_zeros(block, q), _zeros(block, q)))
    # Lines of padding keys are meaningless, and may be infinite.
    here.store_rows(of_k, jnp.where(real, sum_k * form.scale, 0.0))
    here.store_rows(of_v, jnp.where(real, sum_v * rescale, 0.0))

    # Then queries, with scores laid out queries x keys.
    own_q, cotangent = here.rows(q, length), here.rows(cotangents, length)
    own_sums, own_deltas = here.line(sums, length)[:, None], here.line(deltas, length)[:, None]
    words = _words(own_key, here)

    def add_keys(number: jax.Array, sum_q: jax.Array) -> jax.Array:
        there = here.at(number)
        of_keys = there.rows(k, length)
        scores = triton.dot(own_q, of_keys, trans_b=True) * (form.scale * _LOG2_E)
        probabilities = jnp.where((there.places < length)[None, :], jnp.exp2(scores - own_sums), 0.0)
        back = triton.dot(cotangent, there.rows(v, length), trans_b=True)
        if words is not None:
            back = jnp.where(_kept(words, there, form), back * rescale, 0.0)
        back = probabilities * (back - own_deltas)
        return sum_q + triton.dot(back.astype(q.dtype), of_keys)

    here.store_rows(of_q, lax.fori_loop(0, blocks, add_keys, _zeros(block, q)) * form.scale)


def _blocks(here: _Block, length: jax.Array) -> jax.Array:
    """Return the number of key blocks of a row to read; 0 where all of this block is padding."""
    return jnp.where(here.start < length, lax.div(length + (here.size - 1), jnp.int32(here.size)), 0)


def _zeros(block: int, like: Any) -> jax.Array:
    return jnp.zeros((block, like.shape[-1]), jnp.float32)


def _rescale(form: Form, keys: Any) -> float:
    return 1.0 if keys is None else 1.0 / (1.0 - form.rate)


def _own_key(keys: Any, tiles: Any) -> Any:
    """Return the two words of the key of this program's text and head, or None without dropout."""
    if keys is None:
        return None
    number, head, row = (pl.program_id(axis) for axis in range(3))
    text = () if len(tiles.shape) == 1 else (tiles[row, number, 4],)
    return keys[row, *text, head, 0], keys[row, *text, head, 1]


def _words(key: Any, queries: _Block) -> Any:
    """Return two words for each query's line of probabilities, or None without dropout."""
    return None if key is None else folded_words(key[0], key[1], queries.places.astype(jnp.uint32))


def _kept(words: Any, keys: _Block, form: Form, *, keys_first: bool = False) -> jax.Array:
    """Return whether dropout keeps probabilities, as `dropout.dropped`; bool [queries, keys] or [keys, queries]."""
    one, other = (word[None, :] if keys_first else word[:, None] for word in words)
    places = keys.places.astype(jnp.uint32)
    bits = element_bits(one, other, places[:, None] if keys_first else places[None, :])
    return bits >= np.uint32(threshold(form.rate))
