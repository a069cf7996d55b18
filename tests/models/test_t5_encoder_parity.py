"""T5 encoders against PyTorch transformers: hidden states to 1e-5 and every gradient to 1e-4, in float32.

The tolerances are those of float32 sums in another order; a wrong formula is off by 1e-2 and more.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from encoder_parity import (
    BATCH,
    LENGTHS,
    SEED,
    VOCABULARY,
    WIDTH,
    Case,
    by_transformers,
    case_of,
    check_bfloat16,
    check_gradient,
    check_padding,
    check_states_and_loss,
    randomised,
    run,
    states_of,
)
from flax import nnx
from flax.traverse_util import flatten_dict
from jax.sharding import PartitionSpec as P
from peers import torch, transformers
from tiny import lively

from jaxretr.config import AdapterShape
from jaxretr.models.backbones import dropout, layers
from jaxretr.models.backbones.adapter_layers import abstract_adapter, init_adapter, merge_lora
from jaxretr.models.backbones.backbone import make_backbone
from jaxretr.models.backbones.layer_stacks import unstack
from jaxretr.models.backbones.layers import define
from jaxretr.models.backbones.t5_encoder_config import T5EncoderConfig
from jaxretr.models.hub.adapter_formats import read_peft, write_peft
from jaxretr.models.hub.encoder_params import encoder_shape_of, export_encoder, read_checkpoint
from jaxretr.models.hub.hf_files import read_json
from jaxretr.models.hub.tensor_files import TensorFiles, write_safetensors
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel.sharding import spec_of

pytestmark = pytest.mark.usefixtures("float32_products")

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "d_kv": 6,  # heads * d_kv differs from d_model: a swapped reshape would show.
    "d_ff": 20,
    "num_layers": 3,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,  # Small, so that 24 positions reach the logarithmic buckets and the last one.
    "relative_attention_max_distance": 8,
}
VERSIONS = {"v1.0": SIZES, "v1.1": SIZES | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}}


@pytest.fixture(scope="module", params=VERSIONS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    torch.manual_seed(SEED)
    model = randomised(transformers.T5EncoderModel(transformers.T5Config(**VERSIONS[request.param])))
    made = case_of(model, tmp_path_factory.mktemp("model"))
    config = made.ours.config
    assert made.ours.kind.endswith("t5") and isinstance(config, T5EncoderConfig) and config.hidden_dropout_prob == 0.1
    return made


def test_states_and_every_gradient_equal_transformers(case: Case) -> None:
    gradients = check_states_and_loss(case)
    expected = {name: parameter.grad.numpy() for name, parameter in case.theirs.named_parameters()}
    _, ours = export_encoder(case.ours.config, gradients)
    assert set(ours) == set(expected)
    for name, gradient in ours.items():
        assert np.abs(expected[name]).max() > 1e-6, name
        check_gradient(gradient, expected[name], name)


def test_padding_does_not_reach_real_positions(case: Case) -> None:
    check_padding(case)


def test_bfloat16_differs_by_its_rounding(case: Case) -> None:
    check_bfloat16(case)


def _apart(config: T5EncoderConfig, params: Any, adapter: AdapterShape | None = None) -> Callable[..., Any]:
    """The encoder with its layers apart, compiled, of (tokens, keys)."""
    graph, _ = define(lambda rngs: make_backbone(config, adapter=adapter, stacked=False, rngs=rngs))
    params = {name: unstack(part) if name in ("layers", "adapter") else part for name, part in params.items()}
    encode = jax.jit(lambda params, tokens, keys: nnx.merge(graph, params)(tokens, LENGTHS, keys))
    return lambda tokens, keys=None: encode(params, tokens, keys)


def test_layers_apart_compute_what_stacked_ones_do(case: Case) -> None:
    tokens, real, _ = BATCH
    config, params = case.ours.config, case.ours.params
    assert isinstance(config, T5EncoderConfig)
    states = states_of(case)
    np.testing.assert_allclose(np.asarray(_apart(config, params)(tokens))[real], states[real], atol=1e-5, rtol=1e-5)


def test_dropout_has_the_places_of_transformers(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, told by the shapes of what is dropped; and a row's masks depend on its own key alone."""
    tokens, real, _ = BATCH
    config, places, theirs = case.ours.config, [], []
    assert isinstance(config, T5EncoderConfig)
    plain, functional = dropout.dropped, torch.nn.functional.dropout

    def noted(x: jax.Array, keys: jax.Array | None, rate: float) -> jax.Array:
        assert keys is not None
        places.append((x.shape, rate))
        return plain(x, keys, rate)

    def noted_theirs(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        theirs.append((tuple(x.shape), p))
        return functional(x, p, training, inplace)

    # That of the attention's probabilities is applied within `layers.attend`; all others are calls of a `Dropout`.
    for module in (dropout, layers):
        monkeypatch.setattr(module, "dropped", noted)
    monkeypatch.setattr(torch.nn.functional, "dropout", noted_theirs)
    encode = _apart(config, case.ours.params)
    keys = jax.random.split(jax.random.key(SEED), 3)
    states = np.asarray(encode(tokens, keys))
    # Other implementations of attention drop its probabilities within.
    eager = transformers.T5EncoderModel.from_pretrained(case.folder, attn_implementation="eager").train()
    by_transformers(eager, tokens, real)
    assert places == theirs and len(places) == 2 + 4 * SIZES["num_layers"]
    zeros = (states[real] == 0).mean()
    assert 0.05 < zeros < 0.15  # The last place's share of 0.1.
    others = np.asarray(encode(tokens, keys.at[0].set(jax.random.key(1))))
    np.testing.assert_allclose(others[1:][real[1:]], states[1:][real[1:]], atol=1e-5)
    assert np.abs(others - states)[0].max() > 0.1


def test_export_loads_in_transformers_and_returns_bit_for_bit(case: Case, tmp_path: Path) -> None:
    config, tensors = export_encoder(case.ours.config, case.ours.params)
    stored = TensorFiles.open(case.folder)
    assert sorted(tensors) == stored.names
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, stored.read(name), err_msg=name)
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_safetensors(tmp_path / "model.safetensors", tensors, {"format": "pt"})
    again = read_checkpoint(tmp_path)
    assert again.config == case.ours.config
    jax.tree.map(np.testing.assert_array_equal, again.params, case.ours.params)
    loaded = transformers.T5EncoderModel.from_pretrained(tmp_path).eval()
    tokens, real, _ = BATCH
    with torch.no_grad():
        expected = by_transformers(case.theirs, tokens, real)
        torch.testing.assert_close(by_transformers(loaded, tokens, real), expected, rtol=0, atol=0)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_encoder_of_a_whole_t5(version: str, tmp_path: Path) -> None:
    torch.manual_seed(SEED)
    whole = randomised(transformers.T5ForConditionalGeneration(transformers.T5Config(**VERSIONS[version])))
    whole.save_pretrained(tmp_path / "whole")
    transformers.T5EncoderModel.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "encoder")
    expected = read_checkpoint(tmp_path / "encoder")
    found = read_checkpoint(tmp_path / "whole")
    assert found.config == expected.config
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)
    # Old checkpoints have the embedding under other names, alone or twice.
    tensors = TensorFiles.open(tmp_path / "encoder")
    arrays = {name: tensors.read(name) for name in tensors.names}
    table = arrays.pop("shared.weight")
    for change in ({}, {"shared.weight": table}):
        content = arrays | {"encoder.embed_tokens.weight": table} | change
        write_safetensors(tmp_path / "encoder/model.safetensors", content, {"format": "pt"})
        jax.tree.map(np.testing.assert_array_equal, read_checkpoint(tmp_path / "encoder").params, expected.params)
    content = arrays | {"encoder.embed_tokens.weight": table, "shared.weight": table + 1}
    write_safetensors(tmp_path / "encoder/model.safetensors", content, {"format": "pt"})
    with pytest.raises(UserError, match=r"embed_tokens\.weight differs from shared\.weight"):
        read_checkpoint(tmp_path / "encoder")


# ---- adapters ----------------------------------------------------------------------------------------------------------

LORA = AdapterShape(lora_rank=2, lora_alpha=3.0, bottleneck=0)


def test_lora_comes_and_goes_by_peft(case: Case, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="LoRA is compared with real PEFT: pip install peft")
    tokens, real, weights = BATCH
    config, params = case.ours.config, case.ours.params
    assert isinstance(config, T5EncoderConfig)
    shape = replace(LORA, lora_targets=tuple(config.dense_sizes()))
    assert ("ffn_gate" in shape.lora_targets) == (config.feed_forward_proj == "gated-gelu")
    modules = lively(init_adapter(shape, config, seed=0), seed=1)
    write_peft(tmp_path / "lora", shape, modules, config, str(case.folder))
    again = read_peft(tmp_path / "lora", config)
    assert again[0].equals(shape)
    jax.tree.map(np.testing.assert_array_equal, again[1], modules)
    model = transformers.T5EncoderModel.from_pretrained(case.folder)
    with torch.no_grad():
        adapted = peft.PeftModel.from_pretrained(model, tmp_path / "lora").eval()
        expected = by_transformers(adapted, tokens, real).numpy()[real]
    ours = np.asarray(_apart(config, {**params, "adapter": modules}, shape)(tokens))[real]
    np.testing.assert_allclose(ours, expected, atol=1e-5, rtol=1e-5)
    merged = merge_lora(params, modules, shape)
    assert merged["layers"]["ffn_norm"]["scale"] is params["layers"]["ffn_norm"]["scale"]
    states = np.asarray(run(config, "float32", merged, tokens, weights)[0])[real]
    np.testing.assert_allclose(states, expected, atol=2e-5, rtol=1e-5)


def test_peft_names_some_of_the_dense_layers(case: Case, tmp_path: Path) -> None:
    config = case.ours.config
    for targets in (("query", "value"), ("attention_out", "ffn_out"), ("ffn_in",)):
        shape = replace(LORA, lora_targets=targets)
        modules = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), abstract_adapter(shape, config))
        write_peft(tmp_path / targets[0], shape, modules, config, "x")
        assert read_peft(tmp_path / targets[0], config)[0].lora_targets == targets


def test_peft_of_another_number_of_layers_is_refused(case: Case, tmp_path: Path) -> None:
    config = case.ours.config
    assert isinstance(config, T5EncoderConfig)
    modules = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), abstract_adapter(LORA, config))
    write_peft(tmp_path / "lora", LORA, modules, config, "x")
    with pytest.raises(UserError, match="is for 3 layers, but the encoder has 2"):
        read_peft(tmp_path / "lora", replace(config, num_layers=2))


def test_a_parallel_adapter_reads_what_the_feed_forward_network_reads(case: Case) -> None:
    """Against transformers with the adapter's product added to the network's result by a hook."""
    tokens, real, _ = BATCH
    config = case.ours.config
    assert isinstance(config, T5EncoderConfig)
    shape = AdapterShape(lora_rank=0, bottleneck=3, scale=2.0)
    modules = lively(init_adapter(shape, config, seed=0), seed=1)
    ours = np.asarray(_apart(config, {**case.ours.params, "adapter": modules}, shape)(tokens))[real]
    down, up = (jax.tree.map(torch.tensor, modules["parallel"][part]) for part in ("down", "up"))
    hooks = []
    for number, block in enumerate(case.theirs.encoder.block):

        def added(_: Any, inputs: Any, output: Any, number: int = number) -> Any:
            inner = torch.relu(inputs[0] @ down["kernel"][number] + down["bias"][number])
            return output + 2.0 * (inner @ up["kernel"][number] + up["bias"][number])

        hooks.append(block.layer[1].DenseReluDense.register_forward_hook(added))
    with torch.no_grad():
        expected = by_transformers(case.theirs, tokens, real).numpy()[real]
    for hook in hooks:
        hook.remove()
    np.testing.assert_allclose(ours, expected, atol=1e-5, rtol=1e-5)


# ---- shapes, and what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "has num_layers 0, but it must be at least 1"),
        ({"num_layers": 4}, r"tensors are missing: encoder\.block\.3"),
        ({"num_layers": 2}, r"have no place in this architecture: encoder\.block\.2"),
        ({"num_layers": 10**9}, "says num_layers 1000000000, but no tensor here is nearly that large"),
        ({"d_model": "many"}, "'d_model' must be int, not 'many'"),
        ({"d_model": 32}, r"has shape \[37, 16\], but by config.json it must have \[37, 32\]"),
        ({"num_heads": 3}, r"has shape \[8, 2\], but by config.json it must have \[8, 3\]"),
        ({"feed_forward_proj": "gated-silu"}, "has feed_forward_proj 'gated-silu'; supported: relu, gated-gelu"),
        ({"feed_forward_proj": "gated-gelu"}, r"tensors are missing: .*wi_0"),
        ({"relative_attention_num_buckets": 3}, "give at least 4 buckets"),
        (
            {"relative_attention_max_distance": 2},
            "give at least 4 buckets, and a distance of more than a quarter as many",
        ),
        ({"model_type": "mt5", "architectures": ["MT5EncoderModel"]}, "MT5EncoderModel.*supported: .*T5EncoderModel"),
        ({"architectures": ["BertModel"]}, r"BertModel \(model_type 't5'\), which is not a supported encoder"),
    ],
)
def test_wrong_settings_are_one_line_errors(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    transformers.T5EncoderModel(transformers.T5Config(**SIZES)).save_pretrained(tmp_path)
    config = read_json(tmp_path, "config.json") | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message) as caught:
        read_checkpoint(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_shapes_are_told_without_weights() -> None:
    """gtr-t5-base and gtr-t5-large are encoders of T5 v1.0, with as many parameters as their cards say."""
    shape, projection = encoder_shape_of({**SIZES, "model_type": "t5"}, "x")
    assert shape == T5EncoderConfig(**SIZES) and projection == 0
    base = {"model_type": "t5", "d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
    large = {"model_type": "t5", "d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_heads": 16}
    for stated, millions in ((base, 110), (large, 335)):
        published = encoder_shape_of(stated, "x")[0]
        params = define(lambda rngs, shape=published: make_backbone(shape, rngs=rngs))[1]
        assert round(sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(params)) / 1e6) == millions


def test_every_parameter_has_a_place_on_a_mesh() -> None:
    """Heads and inner widths are split over the axis "model", as the scorer's are; what is left over "data", if a run asks."""
    shape = replace(T5EncoderConfig(**SIZES), feed_forward_proj="gated-gelu")
    names = flatten_dict(define(lambda rngs: make_backbone(shape, rngs=rngs))[1], sep=".")
    specs = {name: spec_of(f"shared.bert.{name}") for name in names}
    split = {name.removeprefix("layers.") for name, spec in specs.items() if spec != P()}
    attention = {f"attention.{name}.kernel" for name in ("query", "key", "value", "out")}
    assert split == attention | {f"ffn.{name}.kernel" for name in ("inner", "gate", "outer")} | {"word_embedding.table"}
    assert specs["layers.attention.out.kernel"] == specs["layers.ffn.outer.kernel"] == P(None, "model", "data")
