"""What programs take to compile and to run: by the compiler's options, by scanned or unrolled layers, by the number of threads.

A GPU's compiler keeps in memory what it has tried out, so that each case is a part in a process of its own, and reads nothing
from the cache.
"""

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxretr.models.backbones.layer_stacks import unstack
from jaxretr.models.embed import abstract_params, embed
from jaxretr.runtime.parallel import programs
from on_gpu import formulas
from on_gpu.inputs import mesh_of_one, random_params
from on_gpu.measuring import Part, waits
from on_gpu.shapes import BERT_BASE, encoder_of, words_of

# Tokens of a full batch, and of the texts in it.
BATCH, LENGTH = 65_536, 136


def _encoder(part: Part) -> tuple[Any, Any, Any]:
    """(its config, embedding as a function, random weights in bfloat16) of BERT-base."""
    config = encoder_of(part, BERT_BASE, shared=True)

    def encode(params: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        return embed(config, params, tokens, lengths, dtype="bfloat16")

    return config, encode, random_params(abstract_params(config), mesh_of_one(), jnp.bfloat16)["shared"]


def _rows(part: Part, length: int) -> tuple[jax.Array, jax.Array]:
    """Tokens and lengths of a full batch of equally long texts."""
    rows = part.scaled(BATCH // length, 4)
    return jnp.ones((rows, length), jnp.int32), jnp.full(rows, length, jnp.int32)


def _timed(part: Part, name: str, encode: Any, params: Any, options: dict[str, Any] | None) -> None:
    config = encoder_of(part, BERT_BASE)
    jax.config.update("jax_enable_compilation_cache", False)
    rows = _rows(part, 16 if part.toy else LENGTH)
    call, seconds = part.compiled(name, jax.jit(partial(encode), compiler_options=options), params, *rows)
    lengths = np.asarray(rows[1])
    part.compare(
        name,
        waits(partial(call, params, *rows)),
        None,
        flops=formulas.bert_flops(config.backbone, lengths),
        rate=("tokens/s", int(lengths.sum())),
        compile=seconds,
        shape=f"{words_of(config.backbone)}, {len(lengths)} texts of {lengths[0]} tokens, bfloat16",
    )


def with_options(part: Part, tuned: bool, level: int) -> None:
    """Encoding a batch with XLA's autotuner of fusions on or off, and its autotuning of products at a level."""
    options = {
        "xla_gpu_enable_triton_gemm": False,
        "xla_gpu_experimental_enable_fusion_autotuner": tuned,
        "xla_gpu_autotune_level": level,
    }
    known = {}
    for name, value in options.items():
        known |= programs.accepted({name: value})
    _, encode, params = _encoder(part)
    left_out = [name for name in options if name not in known]
    words = f"fusions {'tuned' if tuned else 'not tuned'}, level {level}"
    _timed(part, f"encode, {words}{', without ' + ', '.join(left_out) if left_out else ''}", encode, params, known)


def layers(part: Part, kind: str) -> None:
    """Encoding a batch with layers in a loop ("scanned") or one behind the other ("unrolled"), with the library's options."""
    _, encode, params = _encoder(part)
    if kind == "unrolled":
        bert = jax.device_get(params["bert"])
        params = {**params, "bert": jax.device_put({**bert, "layers": unstack(bert["layers"])})}
    _timed(part, f"encode, layers {kind}", encode, params, programs.compiler_options())


def threads(part: Part, number: int) -> None:
    """Compiling eight programs of one encoder for texts of eight lengths in so many threads; nothing runs."""
    jax.config.update("jax_enable_compilation_cache", False)
    _, encode, params = _encoder(part)
    lengths = range(4, 36, 4) if part.toy else range(32, 288, 32)
    shapes = [(params, *_rows(part, length)) for length in lengths]
    programs._THREADS = number
    before, began = programs.programs(), time.perf_counter()
    programs.compile_all(programs.device_jit(encode), shapes)
    seconds, news = time.perf_counter() - began, programs.programs() - before
    name = f"{len(shapes)} programs compiled in {number} {'thread' if number == 1 else 'threads'}"
    part.say(f"{name}: {seconds:.1f} s, {news.seconds:.1f} s of all threads")
    part.report(name, ours=dict.fromkeys(("median", "min", "max"), seconds) | {"runs": 1}, compile=news.seconds)
