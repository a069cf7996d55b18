"""What encoding texts takes, by the engine and by the form of attention."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import Params, bind, define
from jaxretr.models.backbones.t5 import T5Model
from jaxretr.models.embed import abstract_params, embed
from jaxretr.models.encode import Engine, PackedEngine
from jaxretr.runtime.parallel.programs import device_jit
from on_gpu import formulas
from on_gpu.attention import left_to
from on_gpu.inputs import mesh_of_one, random_params, random_tokens
from on_gpu.measuring import Part, repeat, waits
from on_gpu.shapes import BERT_BASE, T5_BASE, TOY_T5, WIDTH, encoder_of, words_of


def encode(part: Part, bert: BertConfig, texts: int, *, packed: bool = False) -> None:
    """Token ids on the host to vectors on the host, by the engine behind `encode_passages`; `packed`, by that of packed rows,
    which must give a text the same bits among other texts."""
    config = encoder_of(part, bert, shared=True)
    n = part.scaled(texts, 64)
    lengths = formulas.draw_lengths(formulas.PASSAGE_TOKENS, n, WIDTH)
    rng = np.random.default_rng(0)
    ids = [rng.integers(5, config.backbone.vocab_size, length, dtype=np.int32) for length in lengths]
    params = random_params(abstract_params(config), mesh_of_one())["shared"]
    program = device_jit(lambda params, tokens, lengths: embed(config, params, tokens, lengths, dtype="bfloat16"))
    engine = (PackedEngine if packed else Engine)(program, params, "bfloat16")

    def rows(start: int, stop: int) -> tuple[list[Any], int]:
        return ids[start:stop], 0

    def run() -> np.ndarray:
        return engine.encode(rows, n, config.embedding_size, max_length=WIDTH, progress=False)[0]

    first, second = repeat(run, 0.0, 2, 2)
    if packed:
        order = rng.permutation(n)
        shuffled = [ids[place] for place in order]
        again = engine.encode(
            lambda start, stop: (shuffled[start:stop], 0), n, config.embedding_size, max_length=WIDTH, progress=False
        )[0]
        same = (again == run()[order]).all(1).mean()
        part.say(f"{same:.2%} of the texts have the same bits among others")

    def peer() -> Callable[[], np.ndarray]:
        theirs = part.torch.encoding(config.backbone, params["bert"], ids, 65536)
        assert_near(run()[:256], theirs()[:256])
        return theirs

    tokens = int(lengths.sum())
    part.compare(
        f"encode{' packed rows' * packed}, {words_of(config.backbone)}",
        run,
        peer if part.torch else None,
        flops=formulas.bert_flops(config.backbone, lengths),
        rate=("tokens/s", tokens),
        compile=max(0.0, first - second),
        shape=f"{n} texts of {lengths.mean():.0f} tokens, bfloat16",
    )


def assert_near(ours: np.ndarray, theirs: np.ndarray) -> None:
    """The peer computes the same up to bfloat16's rounding; raises where it is another function."""
    ours, theirs = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (ours, theirs))
    least = float((ours * theirs).sum(1).min())
    if not least > 0.99:
        raise ValueError(f"the peer's vectors differ: least cosine {least:.4f}")


def attention(part: Part) -> None:
    """What encodes texts of one length, with attention by our kernels, written out, and by cuDNN: BERT-base, and T5-base's
    encoder with its bias of positions."""
    bert, t5 = encoder_of(part, BERT_BASE, shared=True), TOY_T5 if part.toy else T5_BASE
    mesh = mesh_of_one()
    weights = random_params(abstract_params(bert), mesh, jnp.bfloat16)["shared"]
    graph, shapes = define(lambda rngs: T5Model(t5, dtype="bfloat16", rngs=rngs))
    of_t5 = random_params(shapes, mesh, jnp.bfloat16)

    def encode(params: Params, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        return embed(bert, params, tokens, lengths, dtype="bfloat16")

    def encode_t5(params: Params, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        return bind(graph, params).encode(tokens, lengths)

    works = [
        (f"{words_of(bert.backbone)} of {width} tokens", encode, weights, width, bert.backbone.vocab_size)
        for width in ((32,) if part.toy else (128, 256))
    ]
    works.append(
        (f"T5's encoder, {t5.num_layers} of {t5.d_model}", encode_t5, of_t5, 32 if part.toy else 512, t5.vocab_size)
    )
    kinds = ("fused", "xla", "cudnn") if jax.default_backend() == "gpu" else ("xla",)
    for done, (name, program, params, width, vocabulary) in enumerate(works):
        lengths = np.full(part.scaled(65_536 // width, 4), width, np.int32)
        texts = random_tokens(mesh, lengths, width, vocabulary)
        rows = texts.tokens, texts.lengths
        for place, kind in enumerate(kinds):
            case = f"attention by {kind}, {name}"
            with left_to(kind):
                # A function of its own each: JAX would take what it traced for the other.
                call, seconds = part.compiled(case, jax.jit(partial(program)), params, *rows)
            part.compare(
                case,
                waits(partial(call, params, *rows)),
                None,
                share=1 / ((len(works) - done) * len(kinds) - place),
                rate=("tokens/s", int(lengths.sum())),
                compile=seconds,
                shape=f"{len(lengths)} texts, bfloat16",
            )
