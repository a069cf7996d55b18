"""Pieces of an ONNX graph that several architectures share."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxretr.models.backbones.layers import Params
from jaxretr.runtime.errors import UserError

IDS, MASK, EMBEDDING = "input_ids", "attention_mask", "embedding"

RUNTIME = "com.microsoft"
"""The domain of the operators that ONNX Runtime has beyond ONNX's."""


class Graph:
    """Nodes and constants in the order in which they are made; values are known by their names.

    Args:
      int8: whether dense layers multiply in 8 bits.
    """

    def __init__(self, onnx: Any, int8: bool = False):
        self.int8 = int8
        self._rounded: dict[str, tuple[str, str]] = {}
        self.helper, self.numpy_helper = onnx.helper, onnx.numpy_helper
        self.FLOAT: int = onnx.TensorProto.FLOAT
        self.INT64: int = onnx.TensorProto.INT64
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node with one output; return its name."""
        name = name or f"{operator}_{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def split(self, x: str, sizes: Sequence[int]) -> list[str]:
        """Split a value into parts of these sizes along the last axis."""
        name = f"Split_{len(self.nodes)}"
        parts = [f"{name}.{number}" for number in range(len(sizes))]
        self.nodes.append(self.helper.make_node("Split", [x, self.integers(*sizes)], parts, name=name, axis=-1))
        return parts

    def constant(self, values: Any, name: str = "", dtype: Any = np.float32) -> str:
        name = name or f"constant_{len(self.constants)}"
        self.constants[name] = self.numpy_helper.from_array(np.asarray(values, dtype, order="C"), name)
        return name

    def integers(self, *values: int) -> str:
        return self.constant(values, dtype=np.int64)

    def length(self) -> str:
        """The number of tokens of the padded rows, int64 [1]."""
        return self.add("Shape", IDS, start=1, end=2)

    def dense(self, x: str, params: Params, name: str) -> str:
        if self.int8:
            y = self._product_int8(x, params["kernel"], name)
        else:
            y = self.add("MatMul", x, self.constant(params["kernel"], f"{name}.kernel"))
        return self.add("Add", y, self.constant(params["bias"], f"{name}.bias")) if "bias" in params else y

    def _product_int8(self, x: str, kernel: Any, name: str) -> str:
        """Multiply x [..., D] by a kernel [D, E] in 8 bits: a scale for each token and for each column of the kernel.

        A token's scale is its own largest number, so that a text's vector does not depend on the others of its batch.
        Kernels have 7 bits: without VNNI, processors add two products of a uint8 and an int8 in 16 bits, and 2 * 255 * 64
        is below 2 ** 15, while 2 * 255 * 127 is not.
        """
        middle = self.constant(128, dtype=np.uint8)
        if x not in self._rounded:
            largest = self.add("ReduceMax", self.add("Abs", x), axes=[-1], keepdims=1)
            largest = self.add("Max", largest, self.constant(1e-9))
            codes = self.add("QuantizeLinear", self.add("Div", x, largest), self.constant(1 / 127), middle)
            self._rounded[x] = codes, largest  # query, key and value share theirs
        codes, largest = self._rounded[x]
        kernel = np.asarray(kernel, np.float32)
        scales = np.maximum(np.abs(kernel).max(axis=0), 1e-9) / 64
        weights = self.constant(np.rint(kernel / scales), f"{name}.kernel", np.int8)
        # ONNX's own MatMulInteger leaves the scales to two more passes over the result: half the speed.
        product = self.add(
            "MatMulIntegerToFloat", codes, weights, self.constant(1.0), self.constant(scales / 127), middle,
            domain=RUNTIME,
        )  # fmt: skip
        return self.add("Mul", product, largest)

    def layer_norm(self, x: str, params: Params, eps: float, name: str) -> str:
        parts = [self.constant(params[part], f"{name}.{part}") for part in ("scale", "bias") if part in params]
        return self.add("LayerNormalization", x, *parts, axis=-1, epsilon=eps)

    def rms_norm(self, x: str, scale: Any, eps: float, name: str) -> str:
        """Normalise by the root mean square; this opset has no RMSNormalization."""
        variance = self.add("ReduceMean", self.add("Mul", x, x), axes=[-1], keepdims=1)
        divisor = self.add("Sqrt", self.add("Add", variance, self.constant(eps)))
        return self.add("Mul", self.add("Div", x, divisor), self.constant(scale, f"{name}.scale"))

    def padding_bias(self, mask: str) -> str:
        """The bias that hides padding keys, float32 [batch, 1, 1, length], from a mask float32 [batch, length]."""
        hidden = self.add("Mul", self.add("Sub", self.constant(1.0), mask), self.constant(-1e9))
        return self.add("Unsqueeze", hidden, self.integers(1, 2))

    def attend(self, q: str, k: str, v: str, scale: float, bias: str) -> str:
        """Add attention of queries, keys and values [batch, length, heads, size] -> [batch, length, heads * size]."""
        q, v = (self.add("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, v))
        scores = self.add("MatMul", q, self.add("Transpose", k, perm=[0, 2, 3, 1]))
        scores = self.add("Add", self.add("Mul", scores, self.constant(scale)), bias)
        mixed = self.add("Transpose", self.add("MatMul", self.add("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        return self.add("Reshape", mixed, self.integers(0, 0, -1))  # 0: as it was

    def activation(self, kind: str, x: str) -> str:
        if kind == "relu":
            return self.add("Relu", x)
        if kind == "silu":
            return self.add("Mul", x, self.add("Sigmoid", x))
        half = self.add("Mul", x, self.constant(0.5))
        if kind == "gelu":
            bent = self.add("Erf", self.add("Mul", x, self.constant(math.sqrt(0.5))))
        elif kind == "gelu_new":
            cube = self.add("Mul", self.add("Mul", self.add("Mul", x, x), x), self.constant(0.044715))
            inner = self.add("Mul", self.add("Add", x, cube), self.constant(math.sqrt(2 / math.pi)))
            bent = self.add("Tanh", inner)
        else:
            raise UserError(f"the activation '{kind}' has no ONNX form here; export it with to=stablehlo")
        return self.add("Mul", half, self.add("Add", bent, self.constant(1.0)))


def layer_params(stacked: Params, number: int) -> Params:
    """Take one layer's parameters out of those of stacked layers."""
    return jax.tree.map(lambda values: np.asarray(values)[number], stacked)
