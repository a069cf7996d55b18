"""Adapters: small modules in a frozen encoder, the only ones that are trained; DDR's relevance module consists of them.

Two kinds, which can be combined (Zhan et al. 2023, section 3.2):

- LoRA (Hu et al. 2021) parallel to a dense layer: W x + b + (alpha / rank) B A x. It can be merged into W.
- The parallel adapter (He et al. 2022) next to the feed-forward network, on the same input x:
  FFN(x) + scale (W_up relu(W_down x + b_down) + b_up). Dropout applies to FFN(x) alone.

B and W_up begin at zero, so that new adapters do not change an encoder's results.
"""

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxretr.config import AdapterShape
from jaxretr.models.backbones.backbone_config import Backbone
from jaxretr.models.backbones.layer_stacks import make_layers
from jaxretr.models.backbones.layers import Dense, Params, define, initialise, scaled
from jaxretr.models.backbones.t5_encoder_config import T5_DENSE


class Bottleneck(nnx.Module):
    """A projection to few dimensions and back; its result is zero at first."""

    def __init__(self, inputs: int, inner: int, outputs: int, *, bias: bool, dtype: Any, rngs: nnx.Rngs):
        self.down = Dense(inputs, inner, bias=bias, std=0.0, dtype=dtype, rngs=rngs)
        self.up = Dense(inner, outputs, bias=bias, std=0.0, dtype=dtype, rngs=rngs)
        # The bound of torch's Linear, which the published modules were initialised with.
        bound = inputs**-0.5
        kernel = jax.random.uniform(rngs.params(), (inputs, inner), jnp.float32, minval=-bound, maxval=bound)
        self.down.kernel = nnx.Param(kernel)


class LayerAdapter(nnx.Module):
    """All adapters of one layer."""

    def __init__(self, shape: AdapterShape, backbone: Backbone, *, dtype: Any, rngs: nnx.Rngs):
        sizes = backbone.dense_sizes()
        check_shape(shape, sizes)
        if shape.lora_rank:
            self.lora = nnx.Dict(
                {
                    target: Bottleneck(
                        sizes[target][0], shape.lora_rank, sizes[target][1], bias=False, dtype=dtype, rngs=rngs
                    )
                    for target in shape.lora_targets
                }
            )
        if shape.bottleneck:
            size = backbone.hidden_size
            self.parallel = Bottleneck(size, shape.bottleneck, size, bias=True, dtype=dtype, rngs=rngs)
        self.shape = shape

    def beside_dense(self, name: str, x: jax.Array) -> jax.Array | float:
        """Return LoRA's addition to the result of the dense layer `name`; x float32 [..., in] -> float32 [..., out]."""
        if not self.shape.lora_rank or name not in self.shape.lora_targets:
            return 0.0
        lora = self.lora[name]
        return self.shape.lora_factor * lora.up(lora.down(x)).astype(jnp.float32)

    def beside_feed_forward(self, x: jax.Array) -> jax.Array | float:
        """Return the parallel adapter's addition to the feed-forward result; float32 [..., D] -> float32 [..., D]."""
        if not self.shape.bottleneck:
            return 0.0
        return scaled(self.parallel.up(jax.nn.relu(self.parallel.down(x))).astype(jnp.float32), self.shape.scale)


def beside_feed_forward(adapter: LayerAdapter | None, x: jax.Array) -> jax.Array | float:
    """Return the addition of a layer's parallel adapter, 0 without adapters; float32 [..., D] -> float32 [..., D]."""
    return 0.0 if adapter is None else adapter.beside_feed_forward(x)


def check_shape(shape: AdapterShape, targets: Collection[str]) -> None:
    """Raise ValueError for an adapter that adapts nothing, or a layer that does not exist."""
    if min(shape.lora_rank, shape.bottleneck) < 0 or not shape.lora_rank + shape.bottleneck:
        raise ValueError(f"lora_rank={shape.lora_rank} and bottleneck={shape.bottleneck}: one of them must be above 0")
    if shape.lora_rank and (not shape.lora_targets or not set(shape.lora_targets) <= set(targets)):
        raise ValueError(f"lora_targets={shape.lora_targets}: choose among {', '.join(targets)}")


def make_adapters(shape: AdapterShape, backbone: Backbone, *, dtype: Any, stacked: bool, rngs: nnx.Rngs) -> Any:
    """Return the adapters of all layers, stacked as the layers are."""
    make = lambda rngs: LayerAdapter(shape, backbone, dtype=dtype, rngs=rngs)  # noqa: E731
    return make_layers(make, backbone.num_hidden_layers, stacked=stacked, rngs=rngs)


def adapted(dense: Dense, name: str, x: jax.Array, adapter: LayerAdapter | None) -> jax.Array:
    """Return the result of the dense layer `name` with LoRA's addition; [..., in] -> [..., out] of the layer's type."""
    y = dense(x)
    return y if adapter is None else (y + adapter.beside_dense(name, x)).astype(y.dtype)


def init_adapter(shape: AdapterShape, backbone: Backbone, seed: int) -> Params:
    """Draw the adapters of one encoder.

    Returns:
      float32, with N layers: {"lora": {target: {"down": {"kernel": [N, in, rank]}, "up": {"kernel": [N, rank, out]}}},
      "parallel": {"down": {"kernel": [N, D, bottleneck], "bias": [N, bottleneck]}, "up": {"kernel": [N, bottleneck, D],
      "bias": [N, D]}}}, without the kind that the shape leaves out.
    """
    return initialise(lambda rngs: make_adapters(shape, backbone, dtype=jnp.float32, stacked=True, rngs=rngs), seed)


def abstract_adapter(shape: AdapterShape, backbone: Backbone) -> Params:
    """Return the shapes of the adapters that `init_adapter` draws (ShapeDtypeStructs); allocates nothing."""
    return define(lambda rngs: make_adapters(shape, backbone, dtype=jnp.float32, stacked=True, rngs=rngs))[1]


def kinds_of(shape: AdapterShape, adapter: Params) -> Params:
    """Return the kinds of adapters that the shape has, from stacked or unstacked layers' parameters."""
    if 0 in adapter:
        return {number: kinds_of(shape, layer) for number, layer in adapter.items()}
    present = {"lora": shape.lora_rank > 0, "parallel": shape.bottleneck > 0}
    return {kind: adapter[kind] for kind in present if present[kind]}


def merge_lora(backbone_params: Params, adapter: Params, shape: AdapterShape, *, sign: float = 1.0) -> Params:
    """Add LoRA's product to the kernels that it belongs to, in float32.

    Args:
      backbone_params: parameters of an encoder with stacked layers.
      adapter: parameters of its adapters, laid out as by `init_adapter`.
      sign: 1 adds the product, -1 subtracts it again.

    Returns:
      The encoder's parameters; arrays that do not change are not copied.
    """
    layers = flatten_dict(backbone_params["layers"])
    for target, lora in adapter.get("lora", {}).items():
        down, up = (np.asarray(lora[part]["kernel"], np.float32) for part in ("down", "up"))
        product = np.float32(sign * shape.lora_factor) * np.matmul(down, up)
        path = (target, "kernel") if (target, "kernel") in layers else (*T5_DENSE[target], "kernel")
        layers[path] = np.asarray(layers[path]) + product
    return {**backbone_params, "layers": unflatten_dict(layers)}


def count(params: Params) -> int:
    """Return the number of parameters."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
