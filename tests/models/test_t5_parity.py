"""Our T5 against PyTorch transformers: states and target log-probs to 1e-5, every parameter's gradient to 1e-4."""

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from peers import torch, transformers

from jaxretr.models.backbones.layers import define
from jaxretr.models.backbones.positions import relative_bucket
from jaxretr.models.backbones.t5 import T5Config, T5Model
from jaxretr.models.hub.hf_files import read_json
from jaxretr.models.hub.t5_params import export_t5, import_t5, read
from jaxretr.models.hub.tensor_files import TensorFiles, write_safetensors
from jaxretr.runtime.errors import UserError

pytestmark = pytest.mark.usefixtures("float32_products")

SEED = 7
LENGTHS = np.array([11, 5, 1], np.int32)
TARGET_LENGTHS = np.array([3, 6, 6], np.int32)
SIZES: dict[str, Any] = {
    "vocab_size": 41,
    "d_model": 16,
    "d_kv": 6,  # heads * d_kv differs from d_model: a swapped reshape would show.
    "d_ff": 20,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,  # Small, so that 11 positions reach the logarithmic buckets and the last one.
    "relative_attention_max_distance": 8,
    "decoder_start_token_id": 0,
}


@dataclass
class Case:
    theirs: Any
    config: T5Config
    params: Any
    folder: Any


def _theirs(version: str) -> Any:
    if version == "v1.0":
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**SIZES))
    else:
        model = transformers.T5ForConditionalGeneration(
            transformers.T5Config(**SIZES, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
        )
        # transformers 5 ties the output whatever the configuration says; a real v1.1 checkpoint unties it on loading.
        model.lm_head.weight = torch.nn.Parameter(torch.zeros(SIZES["vocab_size"], SIZES["d_model"]))
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in model.named_parameters():
        # The embedding's scale is also the logits', where it is shared: at 0.3 all targets were about equally likely.
        centre, deviation = (1.0, 0.3) if "layer_norm" in name else (0.0, 1.0 if name == "shared.weight" else 0.3)
        parameter.data.normal_(centre, deviation, generator=generator)
    return model.eval()


@pytest.fixture(scope="module", params=["v1.0", "v1.1"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp(request.param)
    theirs = _theirs(request.param)
    theirs.save_pretrained(folder)
    config, params = read(folder)
    assert config.tie_word_embeddings == (request.param == "v1.0")
    return Case(theirs, config, params, folder)


@pytest.fixture(scope="module")
def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(SEED)
    target_real = np.arange(6) < TARGET_LENGTHS[:, None]
    return {
        "tokens": rng.integers(1, SIZES["vocab_size"], (3, 11)),
        "real": np.arange(11) < LENGTHS[:, None],
        "targets": np.where(target_real, rng.integers(1, SIZES["vocab_size"], (3, 6)), 0),
        "target_real": target_real,
        "weights": (rng.normal(size=(3, 6)) * target_real).astype(np.float32),
    }


@partial(jax.jit, static_argnums=0)
def _run(config: T5Config, params: Any, batch: Any) -> tuple[Any, Any, Any]:
    """Encoder states, target log-probs, and the gradient of sum(weights * log-probs) for every parameter."""
    graph, _ = define(lambda rngs: T5Model(config, rngs=rngs))

    def functional(params: Any) -> tuple[Any, Any]:
        model = nnx.merge(graph, params)
        read = model.read(batch["tokens"], LENGTHS)
        log_probs = model.target_log_probs(batch["targets"], read)
        return (batch["weights"] * log_probs).sum(), (read.states, log_probs)

    gradients, (memory, log_probs) = jax.grad(functional, has_aux=True)(params)
    return memory, log_probs, gradients


def _reference(model: Any, batch: dict[str, np.ndarray]) -> tuple[Any, Any]:
    """Encoder states and log-probs by transformers: labels are shifted right, log_softmax, then the targets' entries."""
    targets = torch.tensor(batch["targets"])
    out = model(
        input_ids=torch.tensor(batch["tokens"]),
        attention_mask=torch.tensor(batch["real"].astype(int)),
        labels=targets,
    )
    log_probs = torch.log_softmax(out.logits.float(), dim=-1).gather(-1, targets[..., None])[..., 0]
    return out.encoder_last_hidden_state, log_probs


def test_states_and_target_log_probs_equal_transformers(case: Case, batch: Any) -> None:
    with torch.no_grad():
        memory, log_probs = _reference(case.theirs, batch)
    our_memory, our_log_probs, _ = _run(case.config, case.params, batch)
    real, target_real = batch["real"], batch["target_real"]
    np.testing.assert_allclose(np.asarray(our_memory)[real], memory.numpy()[real], atol=1e-5, rtol=0)
    expected = log_probs.numpy()[target_real]
    assert expected.std() > 0.3  # Not trivially equal.
    np.testing.assert_allclose(np.asarray(our_log_probs)[target_real], expected, atol=1e-5, rtol=0)


def test_kept_keys_and_values_are_those_of_every_layer(case: Case, batch: Any) -> None:
    """Each passage read once, for any of the targets: as if it had been read anew for each."""
    graph, _ = define(lambda rngs: T5Model(case.config, rngs=rngs))
    of, targets = np.array([2, 0, 0, 1]), np.array([0, 1, 2, 2])

    @partial(jax.jit, static_argnums=1)
    def log_probs(params: Any, keep: bool) -> jax.Array:
        model = nnx.merge(graph, params)
        read = model.read(batch["tokens"], LENGTHS, keep=keep)
        return model.target_log_probs(batch["targets"][targets], read, of)

    found, expected = (np.asarray(log_probs(case.params, keep)) for keep in (True, False))
    np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)
    with torch.no_grad():
        chosen = {name: batch[name][of] for name in ("tokens", "real")}
        theirs = _reference(case.theirs, {**chosen, "targets": batch["targets"][targets]})[1].numpy()
    real = batch["target_real"][targets]
    np.testing.assert_allclose(found[real], theirs[real], atol=1e-5, rtol=0)


def test_every_gradient_equals_transformers(case: Case, batch: Any) -> None:
    case.theirs.zero_grad()
    _, log_probs = _reference(case.theirs, batch)
    (log_probs * torch.tensor(batch["weights"])).sum().backward()
    expected = {name: parameter.grad.numpy() for name, parameter in case.theirs.named_parameters()}
    _, ours = export_t5(case.config, _run(case.config, case.params, batch)[2])
    assert set(ours) == set(expected)
    for name, gradient in ours.items():
        assert np.abs(expected[name]).max() > 1e-6, name
        np.testing.assert_allclose(gradient, expected[name], atol=1e-4, rtol=1e-4, err_msg=name)


def test_export_loads_in_transformers_and_returns_bit_for_bit(case: Case, batch: Any, tmp_path: Any) -> None:
    content, tensors = export_t5(case.config, case.params)
    (tmp_path / "config.json").write_text(json.dumps(content))
    write_safetensors(tmp_path / "model.safetensors", tensors, {"format": "pt"})
    config, params = read(tmp_path)
    assert config == case.config
    jax.tree.map(np.testing.assert_array_equal, params, case.params)
    loaded = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(_reference(loaded, batch)[1], _reference(case.theirs, batch)[1], rtol=0, atol=0)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_buckets_equal_transformers(bidirectional: bool) -> None:
    """At T5's real sizes, beyond the longest input: a logarithm rounded the other way would shift a bucket by one."""
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = np.arange(-600, 601)
    expected = T5Attention._relative_position_bucket(torch.tensor(distance), bidirectional, 32, 128).numpy()
    ours = relative_bucket(jax.numpy.asarray(distance), 32, 128, bidirectional=bidirectional)
    np.testing.assert_array_equal(ours, expected)


def _opened(case: Case) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    files = TensorFiles.open(case.folder)
    return read_json(case.folder, "config.json"), {name: files.read(name) for name in files.names}


def test_second_names_of_the_embedding(case: Case) -> None:
    """Old .bin checkpoints store the tied matrices under all their names, and one table that no T5 ever used."""
    config, arrays = _opened(case)
    old = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    second = dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), arrays["shared.weight"])
    many = arrays | second | {old: np.zeros((8, 2), np.float32)}
    if case.config.tie_word_embeddings:
        many["lm_head.weight"] = arrays["shared.weight"]
    _, params = import_t5(config, TensorFiles.of(many, "many"))
    jax.tree.map(np.testing.assert_array_equal, params, case.params)
    del many["shared.weight"]
    _, params = import_t5(config, TensorFiles.of(many, "unshared"))
    jax.tree.map(np.testing.assert_array_equal, params, case.params)
    different = arrays | {"encoder.embed_tokens.weight": arrays["shared.weight"] + 1}
    with pytest.raises(UserError, match=r"encoder\.embed_tokens\.weight differs from shared\.weight"):
        import_t5(config, TensorFiles.of(different, "different"))


def test_output_layer_follows_the_configuration(case: Case) -> None:
    config, arrays = _opened(case)
    if case.config.tie_word_embeddings:
        own = arrays | {"lm_head.weight": arrays["shared.weight"] + 1}
        with pytest.raises(UserError, match=r"lm_head\.weight differs from shared\.weight.*tie_word_embeddings"):
            import_t5(config, TensorFiles.of(own, "own"))
        return
    # As transformers 4 writes it, the only sign of v1.1 is tie_word_embeddings false.
    older = {name: value for name, value in config.items() if name != "scale_decoder_outputs"}
    older["tie_word_embeddings"] = False
    assert import_t5(older, TensorFiles.of(arrays, "older"))[0] == case.config
    del arrays["lm_head.weight"]
    with pytest.raises(UserError, match=r"missing: lm_head\.weight"):
        import_t5(older, TensorFiles.of(arrays, "older"))
    # As transformers 5 writes a tied output that is not scaled.
    _, params = import_t5(config, TensorFiles.of(arrays, "tied"))
    np.testing.assert_array_equal(params["output"]["kernel"], arrays["shared.weight"].T)


def test_reads_straight_into_bfloat16(case: Case) -> None:
    _, params = read(case.folder, ml_dtypes.bfloat16)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"bfloat16"}
    np.testing.assert_array_equal(
        params["encoder"]["attention"]["query"]["kernel"],
        case.params["encoder"]["attention"]["query"]["kernel"].astype(ml_dtypes.bfloat16),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["T5EncoderModel"]}, "no decoder"),
        ({"architectures": ["BertModel"], "model_type": "bert"}, "not of a T5.*T5ForConditionalGeneration"),
        ({"architectures": ["MT5ForConditionalGeneration"], "model_type": "mt5"}, "not of a T5"),
        ({"feed_forward_proj": "gated-silu"}, "gated-silu.*relu, gated-gelu"),
        ({"d_ff": 21}, r"shape \[.*by config.json it must have"),
        ({"num_layers": 1}, "have no place.*encoder.block.1"),
        ({"num_layers": 0}, "has num_layers 0, but it must be at least 1"),
        ({"d_model": 0}, "has d_model 0, but it must be at least 1"),
        ({"num_layers": 10**9}, "says num_layers 1000000000, but no tensor here is nearly that large"),
        ({"num_decoder_layers": 10**9}, "says num_decoder_layers 1000000000, but no tensor"),
        ({"d_ff": 10**15}, "says d_ff 1000000000000000, but no tensor"),
        ({"num_heads": 10**15}, "says num_heads 1000000000000000, but no tensor"),
        ({"relative_attention_num_buckets": 10**15}, "says relative_attention_num_buckets 1000000000000000, but"),
        ({"architectures": 5}, "has architectures 5, which is not a list of names"),
        ({"num_layers": "2"}, "'num_layers' must be int"),
    ],
)
def test_other_architectures_are_one_line_errors(case: Case, change: dict[str, Any], message: str) -> None:
    config, arrays = _opened(case)
    with pytest.raises(UserError, match=message) as caught:
        import_t5(config | change, TensorFiles.of(arrays, "some/folder"))
    assert str(caught.value).startswith("some/folder") and "\n" not in str(caught.value)
