"""The choice of the engine that runs a tower, and of a training step's rows: the faster one, or what JAXRETR_ENGINE names."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np

from jaxretr.models.backbones.attention_kernels import attention_on_cuda
from jaxretr.models.backbones.backbone_config import BACKBONE, Backbone
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.packed_rows import ROW
from jaxretr.models.backbones.term_weights import QUERY_WEIGHTS, questions_on_host
from jaxretr.models.embed import DualEncoderConfig, JointConfig, dense_params, embed
from jaxretr.models.encode import Engine, HostEngine, PackedEngine
from jaxretr.runtime.errors import UsageError, environment_choice
from jaxretr.runtime.parallel.machine import blas_beats_xla
from jaxretr.runtime.parallel.programs import device_jit, is_cuda

ENGINE_VARIABLE = "JAXRETR_ENGINE"
_ENGINES = "auto", "packed", "padded", "host"

# Tokens of one batch in int8: with 2,048 they no longer stay in the processor's cache, and take a fifth longer.
_BATCH_TOKENS_INT8 = 1024

# Tokens, about, of training's packed rows where our kernel computes attention.
_LONG_ROW = 2048


def prefers_blas() -> bool:
    """Whether float32 encoders with BERT's layers run in numpy's BLAS: where JAXRETR_ENGINE says so, or it is faster.

    Raises:
      UsageError: JAXRETR_ENGINE names no engine.
    """
    chosen = environment_choice(ENGINE_VARIABLE, _ENGINES)
    return chosen == "host" or (chosen == "auto" and jax.default_backend() == "cpu" and blas_beats_xla())


def choose_engine(
    config: DualEncoderConfig,
    tower_params: Params,
    dtype: str,
    sample: Callable[[], Sequence[Sequence[int]]] = list,
) -> Engine:
    """Return the engine that JAXRETR_ENGINE names, or the faster one on this machine: the one place that chooses.

    Args:
      config: configuration of the encoder; LoRA's products are in the kernels.
      dtype: "float32", "bfloat16" or "int8".
      sample: for int8, see `embed_in_int8`.

    Raises:
      UsageError: JAXRETR_ENGINE names no engine, or one that cannot run this encoder.
      UserError: int8 is too inexact for this encoder.
    """
    if QUERY_WEIGHTS in tower_params:
        return HostEngine(questions_on_host(jax.device_get(tower_params[QUERY_WEIGHTS])))
    if dtype == "int8":
        from jaxretr.models.onnx.int8 import embed_in_int8

        if (chosen := environment_choice(ENGINE_VARIABLE, _ENGINES)) != "auto":
            raise UsageError(f"{ENGINE_VARIABLE}={chosen} is not for int8, which ONNX Runtime computes; set it to auto")

        def exact(rows: Sequence[Sequence[int]]) -> np.ndarray:
            engine = choose_engine(config, tower_params, "float32")
            return engine.embed_rows(rows, config.embedding_size, engine.few_shapes(max(map(len, rows))))

        return HostEngine(
            embed_in_int8(config, tower_params, sample, exact), batch_tokens=_BATCH_TOKENS_INT8, pads=True
        )
    if dtype == "float32" and prefers_blas():
        from jaxretr.models.backbones import host_bert  # Numba takes half a second to import.

        bare = config.adapter is None or (config.lora_merged and not config.adapter.bottleneck)
        # Any other pooling goes through XLA until it is written below as well.
        if bare and config.pooling in ("cls", "mean") and host_bert.suits(config.backbone):
            return HostEngine(embed_on_host(config, jax.device_get(tower_params)))
    if environment_choice(ENGINE_VARIABLE, _ENGINES) == "host":
        raise UsageError(
            f"{ENGINE_VARIABLE}=host is for float32, BERT's layers and pooling 'cls' or 'mean'; set it to padded or packed"
        )
    return compiled_engine(config.backbone, dtype)(jitted_embed(config, dtype), tower_params, dtype)


def compiled_engine(shape: Backbone, dtype: str) -> type[Engine]:
    """Return the class of an engine that compiles programs for an encoder of this shape: of packed rows, or of padded ones.

    Raises:
      UsageError: JAXRETR_ENGINE names no engine.
    """
    return PackedEngine if _packs([shape], dtype, jax.devices()[0]) else Engine


def packed_row(encoder: DualEncoderConfig | JointConfig, dtype: str, device: Any) -> int:
    """Return the tokens, about, of packed rows of training steps on devices such as this one; 0: their rows are padded.

    The attention kernel skips what is not of a text, so that rows can be long and their unfilled ends are a small part of
    them; written out, attention costs as much as the row is long.

    Raises:
      UsageError: JAXRETR_ENGINE names no engine.
    """
    parts = (encoder.base, encoder.lexical) if isinstance(encoder, JointConfig) else (encoder,)
    shapes = [part.backbone for part in parts]
    if not _packs(shapes, dtype, device):
        return 0
    return _LONG_ROW if _skips(shapes, dtype, device) else ROW


def _packs(shapes: list[Backbone], dtype: str, device: Any) -> bool:
    """Whether these encoders' rows are packed: where JAXRETR_ENGINE says so, and by themselves where nothing is lost."""
    chosen = environment_choice(ENGINE_VARIABLE, _ENGINES)
    return chosen == "packed" or (chosen == "auto" and _skips(shapes, dtype, device))


def _skips(shapes: list[Backbone], dtype: str, device: Any) -> bool:
    """Whether our attention kernel computes all attention of these encoders, in both directions, text by text."""
    return is_cuda(device) and all(
        isinstance(shape, BertConfig)
        and not shape.relative_attention_num_buckets
        and attention_on_cuda(
            dtype, shape.hidden_size // shape.num_attention_heads, _LONG_ROW, packed=True, drops=False
        )
        == "fused"
        for shape in shapes
    )


def embed_on_host(config: DualEncoderConfig, tower_params: Params) -> Any:
    """Return `embed` in numpy, a function of (tokens, lengths); the parameters become numpy arrays as well."""
    from jaxretr.models.backbones.host_bert import HostBert

    assert isinstance(config.backbone, BertConfig)
    encoder, dense = HostBert(config.backbone, tower_params[BACKBONE]), dense_params(config, tower_params)

    def embed_rows(tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        states, starts = encoder(tokens, lengths), np.cumsum(lengths) - lengths
        pooled = states[starts] if config.pooling == "cls" else np.add.reduceat(states, starts) / lengths[:, None]
        for layer, shape in dense:
            pooled = pooled @ layer["kernel"] + layer["bias"]
            pooled = np.tanh(pooled) if shape.activation == "tanh" else pooled
        pooled = pooled[:, : config.embedding_size].astype(np.float32, copy=False)
        if not config.normalise:
            return pooled
        return pooled / np.sqrt(np.maximum(np.square(pooled).sum(axis=1, keepdims=True), 1e-24))

    return embed_rows


@cache
def jitted_embed(config: DualEncoderConfig, dtype: str) -> Any:
    """Return the compiled `embed` of (parameters, tokens, lengths); one for all encoders of the same shape, so that none is compiled twice."""
    return device_jit(lambda tower_params, tokens, lengths: embed(config, tower_params, tokens, lengths, dtype=dtype))
