"""Encoders with rotary positions against PyTorch transformers: hidden states to 1e-5 and every gradient to 1e-4, in float32.

The tolerances are those of float32 sums in another order; a wrong formula is off by 1e-2 and more.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from encoder_parity import (
    BATCH,
    LENGTH,
    LENGTHS,
    Case,
    by_transformers,
    case_of,
    check_bfloat16,
    check_gradient,
    check_padding,
    check_states_and_loss,
    run,
    states_of,
)
from flax import nnx
from flax.traverse_util import flatten_dict
from peers import torch, transformers
from rotary_models import HEADS, LLAMA3, MODELS, SIZES, random_model

from jaxretr.models.backbones.backbone import make_backbone
from jaxretr.models.backbones.backbone_config import BACKBONE
from jaxretr.models.backbones.layer_stacks import unstack
from jaxretr.models.backbones.layers import define
from jaxretr.models.backbones.masked_lm import MaskedLm
from jaxretr.models.backbones.positions import rotary_frequencies
from jaxretr.models.backbones.rotary_config import RotaryConfig, RotaryScaling
from jaxretr.models.embed import DualEncoderConfig
from jaxretr.models.hub.encoder_params import (
    encoder_shape_of,
    export_encoder,
    import_checkpoint,
    read_checkpoint,
    shape_of,
)
from jaxretr.models.hub.hf_files import read_json
from jaxretr.models.hub.tensor_files import TensorFiles, write_safetensors
from jaxretr.models.onnx import graph as onnx_graph
from jaxretr.runtime.errors import UserError

pytestmark = pytest.mark.usefixtures("float32_products")


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    made = case_of(random_model(request.param), tmp_path_factory.mktemp("model"))
    assert made.ours.kind == request.param.split()[0].rstrip(",")
    return made


def test_states_and_every_gradient_equal_transformers(case: Case, tmp_path: Path) -> None:
    gradients = check_states_and_loss(case)
    # Their gradients as a checkpoint, so that its names and the tensors that are cut apart are those of the import.
    copy = type(case.theirs)(case.theirs.config)
    for mine, its in zip(copy.parameters(), case.theirs.parameters(), strict=True):
        assert its.grad is not None and float(its.grad.abs().max()) > 1e-9
        mine.data = its.grad
    copy.save_pretrained(tmp_path)
    theirs = flatten_dict(read_checkpoint(tmp_path).params, sep="/")
    for name, gradient in flatten_dict(gradients, sep="/").items():
        expected = theirs[name]
        if case.ours.kind == "modernbert" and name.startswith("layers/attention_norm"):  # The first layer has none.
            assert not gradient[0].any()
            gradient, expected = gradient[1:], expected[1:]
        check_gradient(gradient, expected, name)


def test_padding_on_the_left_gives_the_same_states(case: Case) -> None:
    """Rotary positions are relative, so transformers' absolute ones behind padding change rounding alone."""
    tokens, real, _ = BATCH
    left = np.zeros_like(tokens)
    for row, length in enumerate(LENGTHS):
        left[row, -length:] = tokens[row, :length]
    with torch.no_grad():
        expected = by_transformers(case.theirs, left, real[:, ::-1]).numpy()[real[:, ::-1]]
    states = states_of(case)
    np.testing.assert_allclose(states[real], expected, atol=2e-5, rtol=1e-5)


def test_padding_does_not_reach_real_positions(case: Case) -> None:
    check_padding(case)


def test_bfloat16_differs_by_its_rounding(case: Case) -> None:
    check_bfloat16(case)


def test_layers_apart_compute_what_stacked_ones_do(case: Case) -> None:
    tokens, real, _ = BATCH
    config, params = case.ours.config, case.ours.params
    graph, _ = define(lambda rngs: make_backbone(config, stacked=False, rngs=rngs))
    apart = jax.jit(lambda params: nnx.merge(graph, params)(tokens, LENGTHS))(
        {**params, "layers": unstack(params["layers"])}
    )
    states = states_of(case)
    np.testing.assert_allclose(np.asarray(apart)[real], states[real], atol=1e-5, rtol=1e-5)


def test_export_loads_in_transformers_and_returns_bit_for_bit(case: Case, tmp_path: Path) -> None:
    config, tensors = export_encoder(case.ours.config, case.ours.params)
    stored = TensorFiles.open(case.folder)
    assert sorted(tensors) == stored.names
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, stored.read(name), err_msg=name)
    (tmp_path / "config.json").write_text(json.dumps({**config, "pad_token_id": 0}))
    write_safetensors(tmp_path / "model.safetensors", tensors, {"format": "pt"})
    again = read_checkpoint(tmp_path)
    assert again.config == case.ours.config and again.kind == case.ours.kind
    jax.tree.map(np.testing.assert_array_equal, again.params, case.ours.params)
    loaded = transformers.AutoModel.from_pretrained(tmp_path).eval()
    assert type(loaded) is type(case.theirs)
    tokens, real, _ = BATCH
    with torch.no_grad():
        expected = by_transformers(case.theirs, tokens, real)
        torch.testing.assert_close(by_transformers(loaded, tokens, real), expected, rtol=0, atol=0)


def test_onnx_gives_our_vectors(case: Case) -> None:
    pytest.importorskip("onnx", reason="it holds the graph")
    runtime = pytest.importorskip("onnxruntime", reason="it runs the graph")
    tokens, real, _ = BATCH
    model = onnx_graph.build(DualEncoderConfig(case.ours.config, pooling="mean"), {BACKBONE: case.ours.params})
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {"input_ids": tokens, "attention_mask": real.astype(np.int64)})[0]
    states = states_of(case)
    expected = (states * real[..., None]).sum(1) / LENGTHS[:, None]
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)
    # Any number of rows of any length: no table ends, no shape is fixed.
    longer = np.concatenate([tokens[1:2], tokens[1:2]], axis=1)
    mask = (np.arange(2 * LENGTH) < LENGTHS[1]).astype(np.int64)[None]
    again = session.run(None, {"input_ids": longer, "attention_mask": mask})[0]
    np.testing.assert_allclose(again, expected[1:2], atol=1e-5, rtol=1e-5)


# ---- dialects, and what is refused -------------------------------------------------------------------------------------


def _published(**settings: Any) -> RotaryConfig:
    return shape_of(settings, "x")


def test_older_dialects_say_the_same_as_those_of_transformers_5() -> None:
    """As config.json of published models has them, from before rope_parameters and layer_types."""
    sizes = {name: size for name, size in SIZES.items() if name != "pad_token_id"}
    modern = _published(
        **sizes, model_type="modernbert", global_attn_every_n_layers=3, global_rope_theta=5e4, local_rope_theta=1e3
    )
    newer = {"full_attention": {"rope_theta": 5e4}, "sliding_attention": {"rope_theta": 1e3}}
    kinds = ["full_attention", "sliding_attention", "sliding_attention"]
    assert modern == _published(**sizes, model_type="modernbert", rope_parameters=newer, layer_types=kinds)
    assert modern.local_layers == (False, True, True) and modern.window == 64

    gemma = _published(
        **HEADS, model_type="gemma3_text", rope_theta=1e6, rope_local_base_freq=1e3, sliding_window_pattern=2,
        rope_scaling={"rope_type": "linear", "factor": 8.0}, use_bidirectional_attention=True, sliding_window=512,
    )  # fmt: skip
    assert gemma.local_layers == (True, False, True) and gemma.window == 256 and not gemma.causal
    assert (gemma.rope_theta, gemma.local_rope_theta) == (1e6, 1e3)
    assert gemma.rope_scaling == RotaryScaling("linear", 8.0)

    llama = {**HEADS, "model_type": "llama"}
    scaling = LLAMA3 | {"original_max_position_embeddings": 8}
    older = _published(**llama, rope_theta=5e5, rope_scaling=scaling)
    assert older == _published(**llama, rope_parameters=scaling | {"rope_theta": 5e5})

    nomic = _published(
        model_type="nomic_bert", vocab_size=37, n_embd=16, n_layer=3, n_head=4, n_inner=24, n_positions=LENGTH,
        activation_function="swiglu", layer_norm_epsilon=1e-12, rotary_emb_base=1000, rotary_emb_fraction=1.0,
        rotary_emb_interleaved=False, prenorm=False, qkv_proj_bias=False, mlp_fc1_bias=False, mlp_fc2_bias=False,
        use_rms_norm=False, causal=False, rotary_scaling_factor=None, type_vocab_size=2,
    )  # fmt: skip
    assert nomic == _published(**SIZES, model_type="nomic_bert")


def test_the_new_models_of_alibaba_are_those_of_gte(tmp_path: Path) -> None:
    """Their code on the hub multiplies the base of rotary positions by a factor, for which gte has another base."""
    tokens, real, weights = BATCH
    torch.manual_seed(0)
    theirs = transformers.GteModel(transformers.GteConfig(**SIZES, rope_parameters={"rope_theta": 8e4})).eval()
    theirs.save_pretrained(tmp_path)
    config = read_json(tmp_path, "config.json")
    del config["rope_parameters"]
    more = {"rope_theta": 1e4, "rope_scaling": {"type": "ntk", "factor": 8.0}, "position_embedding_type": "rope"}
    config |= {"model_type": "new", "architectures": ["NewModel"], **more}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = read_checkpoint(tmp_path)
    assert isinstance(ours.config, RotaryConfig) and ours.config.rope_scaling == RotaryScaling("ntk", 8.0)
    turns = rotary_frequencies(4, 1e4, ours.config.rope_scaling)
    np.testing.assert_allclose(turns, rotary_frequencies(4, 8e4) / 8 ** (2 / 4))
    plain = replace(ours.config, rope_theta=8e4, rope_scaling=None)
    states = np.asarray(run(plain, "float32", ours.params, tokens, weights)[0])
    with torch.no_grad():
        np.testing.assert_allclose(
            states[real], by_transformers(theirs, tokens, real).numpy()[real], atol=1e-5, rtol=1e-5
        )
    config, tensors = export_encoder(ours.config, ours.params)
    assert shape_of(config, "x") == ours.config and sorted(tensors) == TensorFiles.open(tmp_path).names


@pytest.mark.parametrize("scaling", [None, RotaryScaling("linear", 4.0), RotaryScaling("llama3", 8.0, 1.0, 4.0, 64)])
def test_frequencies_are_those_of_transformers(scaling: RotaryScaling | None) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    stated: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4}
    if scaling is not None:
        stated |= {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling is not None and scaling.kind == "llama3":
        stated |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=2, head_dim=32, rope_parameters=stated)
    if scaling is None:
        expected = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config).inv_freq
    else:
        expected = ROPE_INIT_FUNCTIONS[scaling.kind](config, "cpu")[0]
    np.testing.assert_allclose(rotary_frequencies(32, 1e4, scaling), expected.numpy(), rtol=2e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 3}, "3 heads cannot share 2 heads"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, but must be at least 1"),
        ({"head_dim": 7}, "4 heads of 7 do not fit"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 4, "layer_types": None}, r"1?\d tensors? .*missing|tensors are missing: layers\.3"),
        ({"hidden_act": "swish9"}, "hidden_act 'swish9'; supported: gelu"),
        ({"hidden_size": "many"}, "'hidden_size' must be int, not 'many'"),
        ({"hidden_size": 32}, r"has shape \[37, 16\], but by config.json it must have \[37, 32\]"),
        (
            {"layer_types": ["full_attention"]},
            "'layer_types' must say full_attention or sliding_attention for each of 3",
        ),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "scaled by 'yarn'; supported: default, linear"),
        ({"rope_parameters": [1]}, r"'rope_parameters' is \[1\], not an object"),
        (
            {"model_type": "qwen9", "architectures": ["Qwen9Model"]},
            r"Qwen9Model.*not a supported encoder; .*Qwen3Model",
        ),
        ({"architectures": ["LlamaModel"]}, r"LlamaModel \(model_type 'qwen3'\), which is not a supported encoder"),
    ],
)
def test_wrong_settings_are_one_line_errors(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    transformers.Qwen3Model(transformers.Qwen3Config(**HEADS)).save_pretrained(tmp_path)
    config = read_json(tmp_path, "config.json") | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message) as caught:
        read_checkpoint(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_tensors_of_another_model_are_named(tmp_path: Path) -> None:
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**HEADS, tie_word_embeddings=False))
    model.save_pretrained(tmp_path)
    assert read_checkpoint(tmp_path).kind == "qwen3"  # A decoder's head is of no use here, and no error.
    tensors = TensorFiles.open(tmp_path)
    arrays = {name: tensors.read(name) for name in tensors.names}
    lost = "model.layers.1.mlp.up_proj.weight"
    for change, message in (
        ({lost: None}, rf"1 of \d+ tensors are missing: {lost}"),
        ({"model.layers.0.extra": np.zeros(1, np.float32)}, "have no place in this architecture: model.layers.0.extra"),
        ({"model.norm.weight": np.zeros(3, np.float32)}, r"model.norm.weight has shape \[3\]"),
    ):
        changed = {name: array for name, array in (arrays | change).items() if array is not None}
        write_safetensors(tmp_path / "model.safetensors", changed, {"format": "pt"})
        with pytest.raises(UserError, match=message):
            read_checkpoint(tmp_path)


def test_shapes_are_told_without_weights() -> None:
    shape, projection = encoder_shape_of({**HEADS, "model_type": "qwen3"}, "x")
    assert isinstance(shape, RotaryConfig) and shape.head_dim == 8 and projection == 0


@pytest.mark.parametrize("norm_bias", [False, True])
def test_modernberts_head_gives_the_logits_of_transformers(norm_bias: bool, tmp_path: Path) -> None:
    """The head of masked language modelling is read, computed and written; its decoder is the word embedding."""
    tokens, real, _ = BATCH
    settings = MODELS["modernbert"][1] | {"norm_bias": norm_bias}
    theirs = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**settings)).eval()
    for parameter in theirs.parameters():
        parameter.data += 0.25 * torch.randn(parameter.shape)
    theirs.save_pretrained(tmp_path)
    ours = read_checkpoint(tmp_path)
    assert isinstance(ours.config, RotaryConfig) and ours.mlm_head is not None
    shape, places = ours.config, np.tile(np.arange(LENGTH), (3, 1))
    graph, _ = define(lambda rngs: MaskedLm(shape, rngs=rngs))
    params = {"bert": ours.params, "head": ours.mlm_head}
    logits = np.asarray(jax.jit(lambda params: nnx.merge(graph, params)(tokens, LENGTHS, places))(params))
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(tokens), attention_mask=torch.tensor(real.astype(int))).logits.numpy()
    np.testing.assert_allclose(logits[real], expected[real], atol=2e-5, rtol=1e-5)
    config, tensors = export_encoder(ours.config, ours.params, mlm_head=ours.mlm_head)
    assert config["architectures"] == ["ModernBertForMaskedLM"]
    assert set(tensors) == theirs.state_dict().keys() - {"decoder.weight"}
    again = import_checkpoint(config, TensorFiles.of(tensors, "x"))
    jax.tree.map(np.testing.assert_array_equal, (again.params, again.mlm_head), (ours.params, ours.mlm_head))
    tensors["decoder.weight"] = tensors["model.embeddings.tok_embeddings.weight"] + 1
    with pytest.raises(UserError, match=r"decoder\.weight differs from model.embeddings.tok_embeddings.weight"):
        import_checkpoint(config, TensorFiles.of(tensors, "x"))
