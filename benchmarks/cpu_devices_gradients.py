"""A fault of XLA on CPUs, in plain JAX: wrong gradients where one process runs a program on several CPU devices.

    python benchmarks/cpu_devices_gradients.py             # half a minute; exit code 1 where the fault is there

Two loops over chunks of a batch, each with a loop over rematerialised transformer layers inside, sum up the gradients of
the same parameters. On one device they are right. On two devices of one process the first sixteenth of the rows of the
feed-forward block's second matrix is wrong by a third, in every layer, and nothing else is. What was found out, on jax
0.10.2 and a machine with two cores:

- wrong: 6 layers of 384 x 1536, two loops; with `--narrow` (128 x 512) right, with a single loop (`--loops 1`) right, with
  two layers (`--layers 2`) right, and with a single core (`taskset -c 0`) right. So two threads get into each other's way.
- The values can be the same in every call, and yet wrong; in larger programs they change from call to call.
- The compiler gives the product its output in the buffer of the weights' slice that the product before it reads.

jaxretr therefore trains on one device of a CPU, and refuses several of one process for layers as wide as these. When this
program ends with 0 on the pinned jax, `jaxretr.runtime.parallel.mesh.check_cpu_devices` can go. Similar: jax-ml/jax issue 39741.
"""

import argparse
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

HEADS, ROWS, LENGTH = 12, 8, 64
CALLS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--loops", type=int, choices=[1, 2], default=2)
    parser.add_argument("--narrow", action="store_true", help="layers of 128 x 512 instead of 384 x 1536")
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_platforms", "cpu")
    size, inner = (128, 512) if args.narrow else (384, 1536)
    rng = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    square = {name: normal(args.layers, size, size, scale=0.02) for name in "qkvo"}
    params = {
        **square,
        "ffn_in": normal(args.layers, size, inner, scale=0.02),
        "ffn_in_bias": normal(args.layers, inner, scale=0.02),
        "ffn_out": normal(args.layers, inner, size, scale=0.02),
        "scale_1": np.ones((args.layers, size), np.float32),
        "scale_2": np.ones((args.layers, size), np.float32),
    }
    parts = [(normal(chunks, ROWS, LENGTH, size), normal(chunks, ROWS, LENGTH, size)) for chunks in (8, 4)]
    parts = parts[: args.loops]

    right = jax.device_get(gradients(1)(params, parts))
    several = gradients(2)
    worst = 0.0
    print(f"jax {jax.__version__}, {args.layers} layers of {size} x {inner}, {args.loops} loops over chunks")
    for call in range(CALLS):
        found = jax.device_get(several(params, parts))
        for name, expected in right.items():
            if name == "k":  # only rounding where there is no bias
                continue
            error = np.abs(found[name] - expected).max() / np.abs(expected).max()
            worst = max(worst, float(error))
            if error > 1e-4:
                rows = np.unique(np.nonzero(np.abs(found[name] - expected) > 1e-3 * np.abs(expected).max())[1])
                print(f"call {call + 1}: {name} is wrong by {error:.0%}, in rows {rows.min()} to {rows.max()}")
    print("one device and two agree" if worst < 1e-4 else "the gradients of two devices are WRONG")
    return int(worst >= 1e-4)


def gradients(devices: int) -> Any:
    """The compiled gradients of all chunks, summed over the devices."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    def of_parts(params: Any, parts: Any) -> Any:
        local = jax.tree.map(lambda p: lax.pcast(p, "data", to="varying"), params)
        sums = [of_chunks(local, *part) for part in parts]
        return lax.psum(jax.tree.map(lambda *x: sum(x), *sums), "data")

    return of_parts


def of_chunks(params: Any, chunks: jax.Array, cotangents: jax.Array) -> Any:
    """The gradients of chunks [c, B, L, D], one after the other."""

    def one(total: Any, chunk: Any) -> tuple[Any, None]:
        x, cotangent = chunk
        gradient = jax.vjp(lambda p: encode(p, x), params)[1](cotangent)[0]
        return jax.tree.map(jnp.add, total, gradient), None

    return lax.scan(one, jax.tree.map(lambda p: jnp.where(p > 0, 0.0, 0.0), params), (chunks, cotangents))[0]


def encode(params: Any, x: jax.Array) -> jax.Array:
    """Layers of BERT without biases, scanned; only the products without batch dimensions are kept."""
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return lax.scan(jax.checkpoint(layer, policy=policy), x, params)[0]


def layer(x: jax.Array, p: Any) -> tuple[jax.Array, None]:
    rows, length, size = x.shape
    split = (rows, length, HEADS if size % HEADS == 0 else 4, -1)
    q, k, v = (dense(x, p[name]).reshape(split).transpose(0, 2, 1, 3) for name in "qkv")
    weights = jax.nn.softmax(jnp.einsum("bhld,bhmd->bhlm", q * q.shape[-1] ** -0.5, k), axis=-1)
    mixed = jnp.einsum("bhlm,bhmd->bhld", weights, v).transpose(0, 2, 1, 3).reshape(x.shape)
    x = normalise(x + dense(mixed, p["o"])) * p["scale_1"]
    h = dense(x, p["ffn_in"]) + p["ffn_in_bias"]
    h = 0.5 * h * (1 + lax.erf(h * 0.5**0.5))
    return normalise(x + dense(h, p["ffn_out"])) * p["scale_2"], None


def dense(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return (x.reshape(-1, x.shape[-1]) @ kernel).reshape(*x.shape[:-1], -1)


def normalise(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-12)


if __name__ == "__main__":
    sys.exit(main())
