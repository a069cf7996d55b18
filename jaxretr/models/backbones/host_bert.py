"""BERT's forward pass on processors whose widest vectors are AVX2's: numpy's BLAS, compiled loops, and no padding.

XLA's matmuls of float32 are slower there than the BLAS, its attention and its error function are slower than
specialised loops, and each padded length is a program to compile. Here the tokens of all rows are stored one after the
other, so that the dense layers see real tokens only and any length is possible; everything between the matmuls is done
in one pass over the data. Processors with AVX-512 do not need it: XLA's programs for them are faster than other
libraries.

The loops index with unsigned integers: Numba assumes that signed ones which it cannot prove to be positive may count
from the end, and then does not vectorise.
"""

import itertools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numba import types
from numba.extending import intrinsic

from jaxretr.models.backbones.backbone_config import Backbone
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.runtime.parallel.machine import cpu_threads
from jaxretr.runtime.parallel.numba_loops import compiled

# Query positions whose scores with all keys are held at a time: [keys, _LANES] stays in the second-level cache.
_LANES = 64

# Number of tokens below which a loop takes less time than starting it in another thread.
_MANY_TOKENS = 64

# Options of Numba: multiplications and additions may be fused, sums be done in any order; x / 0 is no exception.
_EXACT: dict[str, Any] = {"fastmath": {"contract"}, "error_model": "numpy"}
_SUMS: dict[str, Any] = {"fastmath": {"contract", "reassoc"}, "error_model": "numpy"}


@dataclass(frozen=True)
class Norm:
    """A LayerNorm, and the bias of the dense layer before it: both float32 [D]."""

    before: np.ndarray
    scale: np.ndarray
    bias: np.ndarray


@dataclass(frozen=True)
class Layer:
    """The matrices of a layer, and the LayerNorms after its two blocks.

    Attributes:
      qkv: queries (scaled for the scores), keys and values, [D, 3 D].
      query_bias: scaled as well, [D]. The keys' bias adds the same to all scores of a query and changes nothing.
      out: kernel after the attention, [D, D]; the values' bias passes through it unchanged and is part of
        `after_attention`.
      ffn_in, ffn_in_bias, ffn_out: kernels and bias of the feed-forward block, [D, D_inner], [D_inner], [D_inner, D].
    """

    qkv: np.ndarray
    query_bias: np.ndarray
    out: np.ndarray
    after_attention: Norm
    ffn_in: np.ndarray
    ffn_in_bias: np.ndarray
    ffn_out: np.ndarray
    after_feed_forward: Norm


def suits(config: Backbone) -> TypeGuard[BertConfig]:
    """Whether the loops below are written for this encoder."""
    # _scores takes four numbers of a head at a time, and knows no biases of relative positions.
    return (
        isinstance(config, BertConfig)
        and config.num_hidden_layers > 0
        and config.hidden_act == "gelu"
        and config.hidden_size % (4 * config.num_attention_heads) == 0
        and not config.relative_attention_num_buckets
    )


class HostBert:
    """An encoder that is ready to be called, in float32.

    Args:
      config: shape of the encoder, one that `suits`.
      params: parameters of `BertEncoder`, with stacked layers and without adapters.
    """

    def __init__(self, config: BertConfig, params: dict[str, Any]):
        self.config = config
        self.words = _array(params["word_embedding"]["table"])
        self.positions = _array(params["position_embedding"]["table"])
        stacked = params["layers"]
        names = ("attention_norm", "ffn_norm")
        each = [(_array(stacked[n]["scale"][i]), _array(stacked[n]["bias"][i])) for i in self._numbers for n in names]
        own = (_array(params["norm"]["scale"]), _array(params["norm"]["bias"]))
        # Norms in the order of their use: Megatron's come before each block, and the encoder's own is the last.
        norms = [*each, own] if config.pre_layer_norm else [own, *each]
        types = params.get("type_embedding", {"table": np.zeros((1, config.hidden_size))})
        self.first = Norm(_array(types["table"][0]), *norms[0])
        self.layers = [_layer(config, stacked, i, norms[2 * i + 1], norms[2 * i + 2]) for i in self._numbers]

    @property
    def _numbers(self) -> range:
        return range(self.config.num_hidden_layers)

    def __call__(self, tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Encode rows of tokens.

        Args:
          tokens: int [B, L].
          lengths: number of real tokens in each row, int [B], at least 1.

        Returns:
          The real tokens' states, row after row, float32 [sum of lengths, D].
        """
        # The n real tokens of all rows in one array: word embeddings x and position embeddings y, float32 [n, D].
        config, heads, ends = self.config, self.config.num_attention_heads, np.cumsum(lengths)
        real = np.arange(tokens.shape[1]) < lengths[:, None]
        starts, n = np.concatenate([[0], ends]).astype(np.int64), int(ends[-1])
        x = self.words[tokens[real]]
        if config.positions_skip_padding:
            counted = tokens != config.pad_token_id
            y = self.positions[np.maximum(np.cumsum(counted, axis=1) - 1, 0)[real]] * counted[real][:, None]
        else:
            y = self.positions[np.nonzero(real)[1]]
        # The result of a LayerNorm is the residual stream itself, or with pre-LN separate from it.
        h = np.empty_like(x) if config.pre_layer_norm else x
        # Arrays that all layers share: attention's result [n, D], queries, keys and values [n, 3 D], the inner states.
        mixed, qkv = np.empty_like(x), np.empty((n, 3 * config.hidden_size), np.float32)
        inner = np.empty((n, config.intermediate_size), np.float32)
        with ThreadPoolExecutor(cpu_threads()) as pool:
            run = map if cpu_threads() == 1 or n < _MANY_TOKENS else pool.map

            def each_piece(loop: Callable[[slice], None], count: int) -> None:
                list(run(loop, _cuts(count)))

            def add_and_normalise(norm: Norm) -> None:
                eps = np.float32(config.layer_norm_eps)
                each_piece(lambda p: _add_norm(x[p], y[p], norm.before, norm.scale, norm.bias, eps, h[p]), n)

            add_and_normalise(self.first)
            for layer in self.layers:
                np.matmul(h, layer.qkv, out=qkv)
                each_piece(
                    lambda p, bias=layer.query_bias: _attend(qkv, bias, starts, heads, p.start, p.stop, mixed),
                    len(lengths) * heads,
                )
                np.matmul(mixed, layer.out, out=y)
                add_and_normalise(layer.after_attention)
                np.matmul(h, layer.ffn_in, out=inner)
                each_piece(lambda p, bias=layer.ffn_in_bias: gelu(inner[p], bias), n)
                np.matmul(inner, layer.ffn_out, out=y)
                add_and_normalise(layer.after_feed_forward)
        return h


def _layer(config: BertConfig, stacked: dict[str, Any], number: int, after_attention: Any, after_ffn: Any) -> Layer:
    def part(name: str, which: str) -> np.ndarray:
        return np.asarray(stacked[name][which][number], np.float64)

    scale = (config.hidden_size // config.num_attention_heads) ** -0.5
    qkv = [scale * part("query", "kernel"), part("key", "kernel"), part("value", "kernel")]
    out = part("attention_out", "kernel")
    return Layer(
        qkv=_array(np.concatenate(qkv, axis=1)),
        query_bias=_array(scale * part("query", "bias")),
        out=_array(out),
        after_attention=Norm(_array(part("attention_out", "bias") + part("value", "bias") @ out), *after_attention),
        ffn_in=_array(part("ffn_in", "kernel")),
        ffn_in_bias=_array(part("ffn_in", "bias")),
        ffn_out=_array(part("ffn_out", "kernel")),
        after_feed_forward=Norm(_array(part("ffn_out", "bias")), *after_ffn),
    )


def _array(values: Any) -> np.ndarray:
    # A copy: for JAX's read-only arrays Numba would compile every loop once more.
    return np.array(values, np.float32, order="C")


def _cuts(count: int) -> list[slice]:
    """Divide `count` places into a few slices per thread, so that others take over from a thread that is held up."""
    cuts = np.linspace(0, count, min(4 * cpu_threads(), count) + 1).astype(int).tolist()
    return [slice(*cut) for cut in itertools.pairwise(cuts)]


# ---- the loops -------------------------------------------------------------------------------------------------------

_F, _U = np.float32, np.uintp
_ONE, _TWO, _THREE, _FOUR = _U(1), _U(2), _U(3), _U(4)
_ROW, _ROW2, _ROW3 = _U(_LANES), _U(2 * _LANES), _U(3 * _LANES)


@compiled(**_SUMS)
def _add_norm(x, y, before, scale, bias, eps, out):
    """Add y [n, D] + before [D] to x, and write LayerNorm(x) to `out`, which may be x."""
    n, size = x.shape
    share = _F(1) / _F(size)
    for i in range(n):
        total = square = _F(0)
        for j in range(size):
            value = x[i, j] + (y[i, j] + before[j])
            x[i, j] = value
            total += value
        mean = total * share
        for j in range(size):
            square += (x[i, j] - mean) * (x[i, j] - mean)
        factor = _F(1) / np.sqrt(square * share + eps)
        for j in range(size):
            out[i, j] = (x[i, j] - mean) * factor * scale[j] + bias[j]


@compiled(**_EXACT)
def gelu(x, bias):
    """Replace x [n, D] by the exact GELU of x + bias [D], up to some roundings of x.

    The error function is Eigen's: a quotient of polynomials up to the value where it is 1 in float32.
    """
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            value = x[i, j] + bias[j]
            z = min(max(value * _F(math.sqrt(0.5)), _F(-4)), _F(4))
            t = z * z
            p = _F(-2.72614225801306e-10) * t + _F(2.77068142495902e-08)
            p = (p * t + _F(-2.10102402082508e-06)) * t + _F(-5.69250639462346e-05)
            p = (p * t + _F(-7.34990630326855e-04)) * t + _F(-2.95459980854025e-03)
            p = (p * t + _F(-1.60960333262415e-02)) * z
            q = _F(-1.45660718464996e-05) * t + _F(-2.13374055278905e-04)
            q = ((q * t + _F(-1.68282697438203e-03)) * t + _F(-7.37332916720468e-03)) * t + _F(-1.42647390514189e-02)
            erf = p / q
            erf = _F(1) if z > _F(3.9) else erf
            erf = _F(-1) if z < _F(-3.9) else erf
            x[i, j] = _F(0.5) * value * (_F(1) + erf)


@compiled(**_EXACT)
def _attend(qkv, bias, starts, heads, first, last, out):
    """Compute attention of the (row, head) pairs [first, last), counted row by row.

    Args:
      qkv: queries, keys and values of all tokens, [n, 3 D].
      bias: bias of the queries, [D].
      starts: start of each row and end of the last one, [B + 1].
      heads: number of heads of a row.
      first, last: the pairs.
      out: result, [n, D]; changed in place.
    """
    size = out.shape[1]
    dim = size // heads
    longest = 0
    for row in range(first // heads, (last - 1) // heads + 1):
        longest = max(longest, starts[row + 1] - starts[row])
    # Keys x queries, so that all loops run along queries; two more rows, as four are handled at a time.
    scores, top, total = np.empty((longest + 3) * _LANES, _F), np.empty(_LANES, _F), np.empty(_LANES, _F)
    queries, mixed = np.empty(dim * _LANES, _F), np.empty(dim * _LANES, _F)
    for pair in range(first, last):
        begin, column = starts[pair // heads], pair % heads * dim
        n = starts[pair // heads + 1] - begin
        for at in range(0, n, _LANES):
            # A multiple of 32 lanes leaves no remainder when a loop is vectorised and unrolled.
            lanes = _U((min(_LANES, n - at) + 31) // 32 * 32)
            place = _U(begin), _U(column), _U(n), _U(at)
            _scores(qkv, bias, place, _U(size), _U(dim), lanes, queries, scores)
            _exponentials(_U(n), lanes, scores, top, total)
            _mix(qkv, place, _U(size), _U(dim), lanes, scores, total, mixed, out)


@compiled(**_EXACT)
def _scores(qkv, bias, place, size, dim, lanes, queries, scores):
    """Write the scores [n, lanes] of keys with queries; the last query fills the remaining lanes."""
    begin, column, n, at = place
    for i in range(lanes):
        row = begin + min(at + i, n - _ONE)
        for d in range(dim):
            queries[d * _ROW + i] = qkv[row, column + d] + bias[column + d]
    for half in range((n + _ONE) // _TWO):
        # Two keys and four of their numbers at a time fit into a processor's registers.
        key = begin + half * _TWO
        other = min(key + _ONE, begin + n - _ONE)
        b = half * _ROW2
        for i in range(_ROW2):
            scores[b + i] = _F(0)
        for quarter in range(dim // _FOUR):
            d = size + column + quarter * _FOUR
            x0, x1, x2, x3 = qkv[key, d], qkv[key, d + _ONE], qkv[key, d + _TWO], qkv[key, d + _THREE]
            y0, y1, y2, y3 = qkv[other, d], qkv[other, d + _ONE], qkv[other, d + _TWO], qkv[other, d + _THREE]
            q = quarter * _FOUR * _ROW
            for i in range(lanes):
                q0, q1, q2, q3 = queries[q + i], queries[q + _ROW + i], queries[q + _ROW2 + i], queries[q + _ROW3 + i]
                scores[b + i] += x0 * q0 + x1 * q1 + x2 * q2 + x3 * q3
                scores[b + _ROW + i] += y0 * q0 + y1 * q1 + y2 * q2 + y3 * q3


@intrinsic
def _as_float(typingctx, bits):
    def code(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.int32), code


@compiled(**_EXACT)
def _exponentials(n, lanes, scores, top, total):
    """Replace each lane's n scores by exp(score - the largest), and write their sum to `total`."""
    for i in range(lanes):
        top[i] = scores[i]
        total[i] = _F(0)
    for j in range(n):
        for i in range(lanes):
            top[i] = max(top[i], scores[j * _ROW + i])
    for j in range(n):
        for i in range(lanes):
            # Cephes' expf: 2^k times a polynomial over half a power of two to each side; never below 2^-126.
            z = max(scores[j * _ROW + i] - top[i], _F(-87))
            k = np.int32(z * _F(1.44269504088896341) - _F(0.5))
            z = z - _F(k) * _F(0.693359375) - _F(k) * _F(-2.12194440e-4)
            p = (_F(1.9875691500e-4) * z + _F(1.3981999507e-3)) * z + _F(8.3334519073e-3)
            p = ((p * z + _F(4.1665795894e-2)) * z + _F(1.6666665459e-1)) * z + _F(5.0000001201e-1)
            power = _as_float(np.int32((k + np.int32(127)) << np.int32(23)))  # pyright: ignore[reportCallIssue]
            value = (p * z * z + z + _F(1)) * power
            scores[j * _ROW + i] = value
            total[i] += value


@compiled(**_EXACT)
def _mix(qkv, place, size, dim, lanes, scores, total, mixed, out):
    """Write the sums of the values, weighted by `scores` [n, lanes] / total [lanes]."""
    begin, column, n, at = place
    end = begin + n - _ONE
    for i in range(dim * _ROW):
        mixed[i] = _F(0)
    for i in range(_THREE * _ROW):
        scores[n * _ROW + i] = _F(0)
    for quarter in range((n + _THREE) // _FOUR):
        r0 = begin + quarter * _FOUR
        r1, r2, r3 = min(r0 + _ONE, end), min(r0 + _TWO, end), min(r0 + _THREE, end)
        s = quarter * _FOUR * _ROW
        for half in range(dim // _TWO):
            d = _TWO * size + column + half * _TWO
            x0, x1, x2, x3 = qkv[r0, d], qkv[r1, d], qkv[r2, d], qkv[r3, d]
            y0, y1, y2, y3 = qkv[r0, d + _ONE], qkv[r1, d + _ONE], qkv[r2, d + _ONE], qkv[r3, d + _ONE]
            b = half * _ROW2
            for i in range(lanes):
                s0, s1, s2, s3 = scores[s + i], scores[s + _ROW + i], scores[s + _ROW2 + i], scores[s + _ROW3 + i]
                mixed[b + i] += x0 * s0 + x1 * s1 + x2 * s2 + x3 * s3
                mixed[b + _ROW + i] += y0 * s0 + y1 * s1 + y2 * s2 + y3 * s3
    for i in range(min(_ROW, n - at)):
        for d in range(dim):
            out[begin + at + i, column + d] = mixed[d * _ROW + i] / total[i]
