"""LoRA and the parallel adapter inside our encoders: against their equations in float64, and without an effect when new."""

import dataclasses
import json
import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny import lively

from jaxretr.config import AdapterShape
from jaxretr.models.backbones.adapter_layers import abstract_adapter, count, init_adapter, merge_lora
from jaxretr.models.backbones.bert import BertEncoder
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layer_stacks import unstack
from jaxretr.models.backbones.layers import define
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, embed, init_params
from jaxretr.runtime.errors import UserError

pytestmark = pytest.mark.usefixtures("float32_products")

SEED = 5
TARGETS = ("query", "key", "value", "attention_out", "ffn_in", "ffn_out")
# No two sizes are equal but where they must be, so that a mixed-up axis cannot pass.
BERT = BertConfig(
    vocab_size=29,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=12,
)
PRE = dataclasses.replace(BERT, pre_layer_norm=True)
ORDERS = pytest.mark.parametrize("bert", [BERT, PRE], ids=["post-LN", "pre-LN"])
SHAPES = {
    "as DDR": AdapterShape(lora_rank=5, bottleneck=7),
    "LoRA everywhere": AdapterShape(lora_rank=3, lora_alpha=7.5, lora_targets=TARGETS, bottleneck=0),
    "parallel alone": AdapterShape(lora_rank=0, bottleneck=40, scale=0.7),
    "both": AdapterShape(3, 1.2, lora_targets=("ffn_out", "key", "attention_out", "ffn_in"), bottleneck=7, scale=2.5),
}
LENGTHS = np.array([9, 4, 1], np.int32)
TOKENS = np.random.default_rng(SEED).integers(1, BERT.vocab_size, (3, 9))
REAL = np.arange(9) < LENGTHS[:, None]


def config_of(bert: BertConfig, shape: AdapterShape | None) -> DualEncoderConfig:
    return DualEncoderConfig(bert, shared=True, pooling="mean", adapter=shape)


def drawn(bert: BertConfig, shape: AdapterShape) -> Any:
    """A tower in which every parameter is drawn at random, B, W_up and the biases too."""
    return lively(init_params(config_of(bert, shape), SEED)["shared"], SEED, noise=0.25)


@partial(jax.jit, static_argnames=("bert", "shape", "dtype"))
def states_of(
    bert: BertConfig, shape: AdapterShape | None, params: Any, keys: Any = None, dtype: str = "float32"
) -> jax.Array:
    """Our encoder's states; of layers that are stacked, or kept apart."""
    stacked = 0 not in params["bert"]["layers"]
    graph, _ = define(lambda rngs: BertEncoder(bert, adapter=shape, dtype=jnp.dtype(dtype), stacked=stacked, rngs=rngs))
    adapter = {} if shape is None else {"adapter": params["adapter"]}
    return nnx.merge(graph, {**params["bert"], **adapter})(TOKENS, LENGTHS, keys)


# ---- the equations ---------------------------------------------------------------------------------------------------


def reference(bert: BertConfig, shape: AdapterShape, params: Any) -> np.ndarray:
    """The encoder as the papers write it, in float64; rows one by one, without padding or masks."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    out = np.zeros((*TOKENS.shape, bert.hidden_size))
    for row, length in enumerate(LENGTHS):
        out[row, :length] = _row(bert, shape, params["bert"], params.get("adapter", {}), TOKENS[row, :length])
    return out


def _norm(params: Any, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12) * params["scale"] + params["bias"]


def _row(bert: BertConfig, shape: AdapterShape, params: Any, adapter: Any, tokens: np.ndarray) -> np.ndarray:
    x = params["word_embedding"]["table"][tokens] + params["type_embedding"]["table"][0]
    x = x + params["position_embedding"]["table"][: len(tokens)]
    if not bert.pre_layer_norm:
        x = _norm(params["norm"], x)
    for number in range(bert.num_hidden_layers):
        layer, modules = jax.tree.map(lambda leaf, number=number: leaf[number], (params["layers"], adapter))
        x = _layer(bert, shape, layer, modules, x)
    return _norm(params["norm"], x) if bert.pre_layer_norm else x


def _layer(bert: BertConfig, shape: AdapterShape, layer: Any, modules: Any, x: np.ndarray) -> np.ndarray:
    def dense(name: str, x: np.ndarray) -> np.ndarray:
        """W x + b + (alpha / r) B (A x)."""
        y = x @ layer[name]["kernel"] + layer[name]["bias"]
        if shape.lora_rank and name in shape.lora_targets:
            alpha = shape.lora_rank if shape.lora_alpha is None else shape.lora_alpha
            a, b = (modules["lora"][name][part]["kernel"].T for part in ("down", "up"))
            y = y + alpha / shape.lora_rank * (b @ (a @ x.T)).T
        return y

    def attention(x: np.ndarray) -> np.ndarray:
        size = bert.hidden_size // bert.num_attention_heads
        q, k, v = (dense(name, x) for name in ("query", "key", "value"))
        heads = []
        for start in range(0, bert.hidden_size, size):
            part = slice(start, start + size)
            weights = np.exp(q[:, part] @ k[:, part].T / np.sqrt(size))
            heads.append(weights / weights.sum(axis=-1, keepdims=True) @ v[:, part])
        return dense("attention_out", np.concatenate(heads, axis=-1))

    def feed_forward(x: np.ndarray) -> np.ndarray:
        inner = dense("ffn_in", x)
        return dense("ffn_out", inner * (1 + np.vectorize(math.erf)(inner / np.sqrt(2))) / 2)

    def beside(x: np.ndarray) -> np.ndarray:
        """scale (W_up relu(W_down x + b_d) + b_u)."""
        if not shape.bottleneck:
            return np.zeros_like(x)
        down, up = modules["parallel"]["down"], modules["parallel"]["up"]
        inner = np.maximum(x @ down["kernel"] + down["bias"], 0)
        return shape.scale * (inner @ up["kernel"] + up["bias"])

    if bert.pre_layer_norm:
        x = x + attention(_norm(layer["attention_norm"], x))
        normed = _norm(layer["ffn_norm"], x)
        return x + feed_forward(normed) + beside(normed)
    x = _norm(layer["attention_norm"], x + attention(x))
    return _norm(layer["ffn_norm"], feed_forward(x) + beside(x) + x)


@ORDERS
@pytest.mark.parametrize("name", SHAPES)
def test_states_are_those_of_the_equations(name: str, bert: BertConfig) -> None:
    """To the rounding of float32 sums over three layers; without its adapters the encoder is somewhere else."""
    shape = SHAPES[name]
    params = drawn(bert, shape)
    expected = reference(bert, shape, params)
    states = np.asarray(states_of(bert, shape, params))
    np.testing.assert_allclose(states[REAL], expected[REAL], rtol=1e-4, atol=1e-5)
    bare = np.asarray(states_of(bert, None, params))
    np.testing.assert_allclose(
        bare[REAL], reference(bert, AdapterShape(0, bottleneck=0), params)[REAL], rtol=1e-4, atol=1e-5
    )
    assert np.abs(states - bare)[REAL].max() > 0.1


@ORDERS
def test_layers_kept_apart_give_what_stacked_ones_give(bert: BertConfig) -> None:
    shape = SHAPES["both"]
    params = drawn(bert, shape)
    apart = {"bert": {**params["bert"], "layers": unstack(params["bert"]["layers"])}}
    apart["adapter"] = unstack(params["adapter"])
    np.testing.assert_allclose(states_of(bert, shape, apart), states_of(bert, shape, params), rtol=1e-4, atol=1e-5)


def test_the_embedding_has_the_adapters_in_it() -> None:
    """`embed`, which all programs go through, hands each layer its own adapters."""
    shape = SHAPES["both"]
    params = drawn(BERT, shape)
    embedded = jax.jit(partial(embed, config_of(BERT, shape), dtype="float32"))(params, TOKENS, LENGTHS)
    expected = reference(BERT, shape, params).sum(axis=1) / LENGTHS[:, None]
    np.testing.assert_allclose(embedded, expected, rtol=1e-4, atol=1e-5)


@ORDERS
def test_dropout_leaves_the_parallel_adapter_s_result_alone(bert: BertConfig) -> None:
    """At a rate that leaves nothing, the layers are what is not dropped: residual connections, norms, adapters."""
    bert = dataclasses.replace(bert, hidden_dropout_prob=0.99999, attention_probs_dropout_prob=0.0)
    shape = SHAPES["both"]
    params = drawn(bert, shape)
    states = states_of(bert, shape, params, jax.random.split(jax.random.key(SEED), len(TOKENS)))
    x = np.zeros(bert.hidden_size)
    for number in range(bert.num_hidden_layers):
        layer, parallel = jax.tree.map(
            lambda leaf, number=number: np.asarray(leaf[number], np.float64),
            (params["bert"]["layers"], params["adapter"]["parallel"]),
        )
        residual = x if bert.pre_layer_norm else _norm(layer["attention_norm"], x)
        read = _norm(layer["ffn_norm"], residual) if bert.pre_layer_norm else residual
        inner = np.maximum(read @ parallel["down"]["kernel"] + parallel["down"]["bias"], 0)
        x = residual + shape.scale * (inner @ parallel["up"]["kernel"] + parallel["up"]["bias"])
        x = x if bert.pre_layer_norm else _norm(layer["ffn_norm"], x)
    if bert.pre_layer_norm:
        x = _norm(params["bert"]["norm"], x)
    np.testing.assert_allclose(states, np.broadcast_to(x, states.shape), rtol=1e-4, atol=1e-5)


# ---- new adapters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["stacked", "apart", "with dropout"])
@ORDERS
def test_new_adapters_change_no_bit(bert: BertConfig, form: str) -> None:
    """Training begins at the backbone itself, and with its dropout's masks; adding zeros must round nothing."""
    bert = dataclasses.replace(bert, hidden_size=96, intermediate_size=192)
    shape = AdapterShape(lora_rank=192, bottleneck=192)
    params = {"bert": drawn(bert, shape)["bert"], "adapter": init_adapter(shape, bert, SEED)}
    keys = jax.random.split(jax.random.key(SEED), len(TOKENS)) if form == "with dropout" else None
    if form == "apart":
        params = {
            "bert": {**params["bert"], "layers": unstack(params["bert"]["layers"])},
            "adapter": unstack(params["adapter"]),
        }
    bare, states = states_of(bert, None, params, keys), states_of(bert, shape, params, keys)
    np.testing.assert_array_equal(np.asarray(states).view(np.int32), np.asarray(bare).view(np.int32))
    params["adapter"] = jax.tree.map(lambda leaf: leaf + 0.01, params["adapter"])
    assert np.abs(np.asarray(states_of(bert, shape, params, keys) - bare)).min(axis=-1).max() > 0


PASSAGES = [
    {"title": "Chicago", "text": "a city in the state of Illinois"},
    "who wrote it",
    {"title": "", "text": "the river " * 12},
]


def with_adapter(model: DualEncoder, shape: AdapterShape, noise: float) -> DualEncoder:
    config = dataclasses.replace(model.config, adapter=shape)
    adapter = lively(init_adapter(shape, model.config.backbone, SEED), SEED, noise)
    return DualEncoder(
        config, {name: {**tower, "adapter": adapter} for name, tower in model.params.items()}, model.tokenizer
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_a_model_with_new_adapters_encodes_as_before(
    tiny_models: Path, name: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where both are compiled: without AVX-512 the loops for encoding know no parallel adapters, and round otherwise."""
    monkeypatch.setattr("jaxretr.models.engine_choice.blas_beats_xla", lambda: False)
    model = DualEncoder.from_pretrained(tiny_models / "encoder", shared=shared, max_passage_length=48)
    fresh, moved = (with_adapter(model, SHAPES[name], noise) for noise in (0.0, 0.1))
    for encode in (DualEncoder.encode_passages, DualEncoder.encode_queries):
        texts = PASSAGES if encode is DualEncoder.encode_passages else ["who wrote it", "where"]
        np.testing.assert_array_equal(encode(fresh, texts), encode(model, texts))
        assert np.abs(encode(moved, texts) - encode(model, texts)).max() > 1e-2


def test_lora_begins_uniform_and_zero() -> None:
    """As torch's Linear does, which the published modules began with: U(+-1/sqrt(in)), `in` being the layer's own."""
    bert = dataclasses.replace(BERT, hidden_size=64, intermediate_size=144)
    shape = AdapterShape(lora_rank=48, lora_targets=TARGETS, bottleneck=40)
    adapter = jax.device_get(init_adapter(shape, bert, SEED))
    lora, parallel = adapter["lora"], adapter["parallel"]
    assert set(lora) == set(TARGETS) and set(lora["query"]["down"]) == {"kernel"}, "LoRA has no bias"
    downs = {**{target: lora[target]["down"]["kernel"] for target in TARGETS}, "parallel": parallel["down"]["kernel"]}
    for name, kernel in downs.items():
        inputs, outputs = (144 if name == "ffn_out" else 64), (40 if name == "parallel" else 48)
        assert kernel.shape == (3, inputs, outputs) and kernel.dtype == np.float32
        for layer in kernel:
            unit = np.sort(layer.ravel()) * inputs**0.5
            assert np.abs(unit).max() <= 1.0, name
            # The distance of the sample's distribution function from the uniform one (Kolmogorov); 2 / sqrt(n) is
            # exceeded with a chance of 7e-4.
            distance = np.abs((unit + 1) / 2 - (np.arange(unit.size) + 0.5) / unit.size).max()
            assert distance < 2 / unit.size**0.5, f"{name}: {distance}"
    zeros = [*(lora[target]["up"] for target in TARGETS), parallel["up"], parallel["down"]["bias"]]
    assert all(not leaf.any() for leaf in jax.tree.leaves(zeros))


def test_no_two_kernels_begin_equal() -> None:
    """Neither layers, nor targets of one size, nor seeds; one seed gives the same again, and the backbone of always."""
    shape = AdapterShape(lora_rank=5, lora_targets=TARGETS, bottleneck=5)
    first, again, other = (jax.device_get(init_adapter(shape, BERT, seed)) for seed in (1, 1, 2))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    downs = [
        branch["down"]["kernel"][layer].ravel()
        for adapter in (first, other)
        for branch in (*adapter["lora"].values(), adapter["parallel"])
        for layer in range(3)
    ]
    starts = sorted(tuple(kernel[:3]) for kernel in downs)
    assert len(starts) == 2 * 7 * 3 and all(a != b for a, b in pairwise(starts))
    assert all(np.mean(a[: len(b)] == b[: len(a)]) < 0.1 for a, b in pairwise(downs))
    bare, adapted = (init_params(config_of(BERT, adapter), 1)["shared"] for adapter in (None, shape))
    jax.tree.map(np.testing.assert_array_equal, bare["bert"], adapted["bert"])
    jax.tree.map(np.testing.assert_array_equal, adapted["adapter"], first)


# ---- numbers of parameters -------------------------------------------------------------------------------------------

BASE = BertConfig()
MINILM = BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536)


@pytest.mark.parametrize(
    ("bert", "shape", "expected"),
    [
        (BASE, AdapterShape(lora_rank=192), 7_077_888),
        (BASE, AdapterShape(bottleneck=192), 3_550_464),
        (BASE, AdapterShape(lora_rank=192, bottleneck=192), 7_077_888 + 3_550_464),
        (MINILM, AdapterShape(lora_rank=96, bottleneck=0), 884_736),
        (MINILM, AdapterShape(lora_rank=192, bottleneck=0), 1_769_472),
        (MINILM, AdapterShape(lora_rank=0, bottleneck=96), 445_248),
    ],
)
def test_the_published_numbers_of_parameters(bert: BertConfig, shape: AdapterShape, expected: int) -> None:
    leaves = jax.tree.leaves(abstract_adapter(shape, bert))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves), "nothing is allocated"
    assert count(abstract_adapter(shape, bert)) == expected


def test_the_abstract_adapter_has_the_shapes_of_a_drawn_one() -> None:
    for shape in SHAPES.values():
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), init_adapter(shape, BERT, 0))
        assert jax.tree.leaves_with_path(like) == jax.tree.leaves_with_path(abstract_adapter(shape, BERT))


# ---- merging, and bfloat16 -------------------------------------------------------------------------------------------


@ORDERS
@pytest.mark.parametrize("name", ["as DDR", "LoRA everywhere", "both"])
def test_merged_lora_gives_the_same_embeddings(name: str, bert: BertConfig) -> None:
    shape = SHAPES[name]
    params = drawn(bert, shape)
    before = jax.tree.map(np.array, params)
    merged = {**params, "bert": merge_lora(params["bert"], params["adapter"], shape)}
    config = config_of(bert, shape)
    run = jax.jit(partial(embed, dtype="float32"), static_argnums=0)
    apart, together = (
        run(config, params, TOKENS, LENGTHS),
        run(dataclasses.replace(config, lora_merged=True), merged, TOKENS, LENGTHS),
    )
    np.testing.assert_allclose(together, apart, atol=1e-5, rtol=0)
    assert np.abs(together - run(config, merged, TOKENS, LENGTHS)).max() > 1e-2, "twice would be wrong"

    touched = {("layers", target, "kernel") for target in shape.lora_targets}
    for (path, old), (_, new) in zip(
        *(jax.tree.leaves_with_path(tree["bert"]) for tree in (params, merged)), strict=True
    ):
        assert (old is not new) == (tuple(key.key for key in path) in touched), path
    jax.tree.map(np.testing.assert_array_equal, params, before)  # what was given is left as it was

    back = merge_lora(merged["bert"], params["adapter"], shape, sign=-1.0)
    for target in shape.lora_targets:
        old, sum_, new = (tree["layers"][target]["kernel"] for tree in (params["bert"], merged["bert"], back))
        # Two roundings, each of half a unit in the last place.
        assert (np.abs(new - old) <= 2.0**-24 * (np.abs(sum_) + np.abs(new)) * 1.01).all()


@pytest.mark.parametrize("name", ["as DDR", "LoRA everywhere"])
def test_a_model_is_merged_once_and_comes_back(tiny_models: Path, name: str) -> None:
    model = DualEncoder.from_pretrained(tiny_models / "encoder", shared=True, max_passage_length=48)
    adapted = with_adapter(model, SHAPES[name], noise=0.1)
    merged = adapted.merge_lora()
    assert merged is not adapted and merged.merge_lora() is merged and adapted.unmerge_lora() is adapted
    vectors = merged.encode_passages(PASSAGES)
    np.testing.assert_allclose(vectors, adapted.encode_passages(PASSAGES), atol=1e-5, rtol=0)
    np.testing.assert_allclose(merged.unmerge_lora().encode_passages(PASSAGES), vectors, atol=1e-5, rtol=0)
    for bare in (adapted.without_adapters(), merged.without_adapters()):
        assert bare.config == model.config
        np.testing.assert_allclose(bare.encode_passages(PASSAGES), model.encode_passages(PASSAGES), atol=1e-5, rtol=0)


@ORDERS
def test_bfloat16_stays_near_float32(bert: BertConfig) -> None:
    """Operands of 8 bits are off by 0.4 % each; the adapters' own effect is a hundred times what that sums up to."""
    shape = SHAPES["both"]
    params = drawn(bert, shape)
    exact, short = (np.asarray(states_of(bert, shape, params, dtype=dtype))[REAL] for dtype in ("float32", "bfloat16"))
    error = np.sqrt(np.mean((short - exact) ** 2) / np.mean(exact**2))
    assert short.dtype == np.float32 and 1e-5 < error < 0.03
    bare = np.asarray(states_of(bert, None, params))[REAL]
    assert np.sqrt(np.mean((bare - exact) ** 2) / np.mean(exact**2)) > 10 * error


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (AdapterShape(lora_rank=0, bottleneck=0), "one of them must be above 0"),
        (AdapterShape(lora_rank=-1), "one of them must be above 0"),
        (AdapterShape(lora_rank=4, lora_targets=("query", "pooler")), "choose among query"),
        (AdapterShape(lora_rank=4, lora_targets=()), "choose among query"),
    ],
)
def test_shapes_that_mean_nothing_are_refused(shape: AdapterShape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        init_adapter(shape, BERT, 0)


def test_a_model_s_folder_that_names_such_a_shape_is_refused(tiny_models: Path, tmp_path: Path) -> None:
    model = DualEncoder.from_pretrained(tiny_models / "encoder")
    with_adapter(model, SHAPES["both"], 0.1).save(tmp_path / "model")
    note = tmp_path / "model/jaxretr.json"
    content = json.loads(note.read_text())
    content["config"]["adapter"]["lora_targets"] = ["query", "pooler"]
    note.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"jaxretr\.json: lora_targets=.*choose among query"):
        DualEncoder.from_pretrained(tmp_path / "model")
