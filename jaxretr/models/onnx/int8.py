"""Encoding in 8 bits on CPUs: our graph, run by ONNX Runtime, kept on disk once its vectors have been compared with float32's."""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.partition import add_to_digest
from jaxretr.models.embed import DualEncoderConfig
from jaxretr.models.onnx import graph, program
from jaxretr.runtime.errors import UserError, import_extra
from jaxretr.runtime.parallel.compilation_cache import LIMIT_BYTES, trim
from jaxretr.runtime.storage.files import made_once, write_json
from jaxretr.runtime.storage.paths import cache_root
from jaxretr.runtime.storage.sealed_folder import read_object

LEAST_COSINE = 0.99
"""The least mean cosine of vectors in int8 to those in float32 with which int8 is used."""

# Raised where the graph changes.
_VERSION = 1
_CERTIFICATE = "certificate.json"
_REMEDY = "encode in bfloat16 or float32"

_log = logging.getLogger(__name__)


class Cosines(NamedTuple):
    """The cosines of some texts' vectors to the float32 model's: their mean and the least."""

    mean: float
    least: float

    @classmethod
    def of(cls, found: np.ndarray, exact: np.ndarray) -> "Cosines":
        """Compare vectors [n, D] with the exact ones, row by row; a NaN counts as a cosine of -1."""
        lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(exact, axis=1)
        cosines = np.nan_to_num((found * exact).sum(axis=1) / np.maximum(lengths, 1e-12), nan=-1.0)
        return cls(round(float(cosines.mean()), 5), round(float(cosines.min()), 5))

    def __str__(self) -> str:
        return f"{self.mean:.5f} on average, {self.least:.5f} at least"


def check(config: DualEncoderConfig) -> None:
    """Refuse int8 where it cannot compute an encoder's vectors.

    Raises:
      UserError: JAX's device is none of CPUs, there is no graph of such an encoder, or a package is not installed.
    """
    what = graph.without_graph(config)
    if what is None and config.adapter is not None and config.adapter.bottleneck:
        what = "an encoder with a parallel adapter"
    if what is not None:
        raise UserError(f"{what} is not computed in int8; {_REMEDY}")
    if (device := jax.default_backend()) != "cpu":
        raise UserError(f"int8 is for encoding on CPUs, and this machine encodes on its {device.upper()}; {_REMEDY}")
    for package in program.PACKAGES:
        import_extra(package, "export")


def embed_in_int8(
    config: DualEncoderConfig,
    params: Params,
    sample: Callable[[], Sequence[Sequence[int]]],
    exact: Callable[[Sequence[Sequence[int]]], np.ndarray],
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return `embed` of (tokens [B, L], lengths [B]) in int8; the graph is in $JAXRETR_CACHE/onnx or ~/.cache/jaxretr/onnx.

    Args:
      config: configuration of the dual encoder, for which `check` has passed.
      params: parameters of the tower, with LoRA's products in the kernels.
      sample: gives rows of token ids whose vectors are compared, when the graph is made.
      exact: function (rows) -> their vectors in float32 [n, D].

    Raises:
      UserError: the mean cosine of the sample's vectors to the exact ones is below `LEAST_COSINE`; or the folder of the
        graph cannot be written.
    """

    def opened(folder: Path) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        cosines = read_object(folder / _CERTIFICATE, "remove the folder")
        _log.debug("%s: int8, with cosines to float32: %s", folder, cosines)
        return _of_lengths(program.load(folder))

    def make(partial: Path) -> None:
        trim(partial.parent, LIMIT_BYTES)
        program.write(partial, config, params, int8=True)
        rows = sample()
        lengths = np.array([len(row) for row in rows])
        tokens = np.zeros((len(rows), lengths.max()), np.int32)
        for row, ids in zip(tokens, rows, strict=True):
            row[: len(ids)] = ids
        cosines = Cosines.of(_of_lengths(program.load(partial))(tokens, lengths), exact(rows))
        said = f"the vectors of {len(rows)} texts in int8 have a cosine to float32's of {cosines}"
        if cosines.mean < LEAST_COSINE:
            raise UserError(f"{said}, where {LEAST_COSINE} on average is the least; {_REMEDY}")
        _log.info("%s", said)
        write_json(partial / _CERTIFICATE, {**cosines._asdict(), "texts": len(rows)})

    stated = {"version": _VERSION, "least_cosine": LEAST_COSINE, "config": config.to_json()}
    digest = hashlib.sha256(json.dumps(stated, sort_keys=True).encode())
    add_to_digest(digest, params)
    return made_once(cache_root() / "onnx" / digest.hexdigest()[:32], opened, make)


def _of_lengths(
    run: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return a graph's function as one of (tokens [B, L], lengths [B], at least 1)."""

    def embed(tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        longest = int(lengths.max())
        mask = np.arange(longest) < lengths[:, None]
        return run(tokens[:, :longest].astype(np.int64), mask.astype(np.int64))

    return embed
