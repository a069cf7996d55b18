"""Our BERT, and its kin, against PyTorch transformers: hidden states to 1e-5 and every parameter's gradient to 1e-4, in float32.

The tolerances are those of float32 sums in another order; a wrong formula is off by 1e-2 and more (see the traps below).
"""

import copy
import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from peers import torch, transformers

from jaxretr.models.backbones.bert import BertEncoder
from jaxretr.models.backbones.bert_config import COUNTED_FROM_PADDING, BertConfig
from jaxretr.models.backbones.layers import define
from jaxretr.models.embed import pool
from jaxretr.models.hub.architecture import EncoderCheckpoint
from jaxretr.models.hub.bert_family import skipped
from jaxretr.models.hub.encoder_params import export_encoder, import_checkpoint, names_of, read_checkpoint
from jaxretr.models.hub.tensor_files import TensorFiles, write_safetensors

pytestmark = pytest.mark.usefixtures("float32_products")

SEED = 11
LENGTHS = np.array([9, 4, 1], np.int32)  # Padded rows, down to a single token.
SIZES: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
}


@dataclass
class Case:
    """A model of transformers with random weights, and what our import of its folder made of it."""

    theirs: Any
    ours: EncoderCheckpoint
    prefix: str
    projection_dim: int = 0


def _randomise(model: Any) -> Any:
    """Draws every parameter, biases and norms too: at their initial 0 and 1 a swapped one would not show."""
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in model.named_parameters():
        norm = any(part in name for part in ("LayerNorm", "layer_norm", ".ln."))
        centre = 1.0 if "weight" in name and norm else 0.0
        parameter.data.normal_(centre, 0.25, generator=generator)
        if "position_embeddings" in name and model.config.model_type in COUNTED_FROM_PADDING:
            parameter.data[model.config.pad_token_id] = 0  # As in trained models: it gets no gradient.
    return model.eval()


MODELS = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**SIZES)),
    "dpr-question": lambda: transformers.DPRQuestionEncoder(transformers.DPRConfig(**SIZES, projection_dim=6)),
    "dpr-context": lambda: transformers.DPRContextEncoder(transformers.DPRConfig(**SIZES)),
    "megatron": lambda: transformers.MegatronBertModel(
        transformers.MegatronBertConfig(**SIZES, layer_norm_eps=1e-5), add_pooling_layer=False
    ),
}
# RoBERTa's table of positions has pad_token_id + 1 rows more than there are positions.
COUNTED = SIZES | {"max_position_embeddings": SIZES["max_position_embeddings"] + 2, "pad_token_id": 1}
DISTILBERT = {
    "vocab_size": 37,
    "dim": 16,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 24,
    "max_position_embeddings": 12,
    "sinusoidal_pos_embds": False,
}
# The class of the encoder, of the one with a head, and the config.
OTHERS: dict[str, tuple[str, str, Any]] = {
    "roberta": ("RobertaModel", "RobertaForMaskedLM", lambda: transformers.RobertaConfig(**COUNTED)),
    "xlm-roberta": (
        *("XLMRobertaModel", "XLMRobertaForMaskedLM"),
        lambda: transformers.XLMRobertaConfig(**COUNTED, type_vocab_size=1, layer_norm_eps=1e-5),
    ),
    "camembert": (
        *("CamembertModel", "CamembertForMaskedLM"),
        lambda: transformers.CamembertConfig(**COUNTED, type_vocab_size=1),
    ),
    "distilbert": ("DistilBertModel", "DistilBertForMaskedLM", lambda: transformers.DistilBertConfig(**DISTILBERT)),
    "mpnet": ("MPNetModel", "MPNetForMaskedLM", lambda: transformers.MPNetConfig(**COUNTED)),
}
for _kind, (_name, _, _config) in OTHERS.items():
    MODELS[_kind] = lambda name=_name, config=_config: getattr(transformers, name)(config())
PREFIXES = {"dpr-question": "question_encoder.bert_model.", "dpr-context": "ctx_encoder.bert_model."}


@pytest.fixture(scope="module", params=list(MODELS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp(request.param)
    theirs = _randomise(MODELS[request.param]())
    theirs.save_pretrained(folder)
    ours = read_checkpoint(folder)
    assert ours.kind == request.param
    return Case(theirs, ours, PREFIXES.get(request.param, ""), getattr(theirs.config, "projection_dim", 0))


@pytest.fixture(scope="module")
def batch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids [B, L], which positions are real [B, L], and the weights [B, L, D] of a random linear functional."""
    rng = np.random.default_rng(SEED)
    # Not 0 and 1, with which these models pad.
    tokens = rng.integers(2, SIZES["vocab_size"], (3, 9))
    real = np.arange(9) < LENGTHS[:, None]
    weights = rng.normal(size=(3, 9, SIZES["hidden_size"])).astype(np.float32) / 8
    return tokens, real, weights * real[..., None]


@partial(jax.jit, static_argnums=0)
def _run(config: BertConfig, params: Any, tokens: Any, weights: Any) -> tuple[Any, Any]:
    """Hidden states, and the gradient of sum(weights * states) with respect to every parameter."""
    graph, _ = define(lambda rngs: BertEncoder(config, rngs=rngs))

    def functional(params: Any) -> tuple[Any, Any]:
        states = nnx.merge(graph, params)(tokens, LENGTHS)
        return (states * weights).sum(), states

    gradients, states = jax.grad(functional, has_aux=True)(params)
    return states, gradients


def _encoder(model: Any) -> Any:
    """The BERT inside a DPR model, or the model itself."""
    for name in ("question_encoder", "ctx_encoder"):
        if hasattr(model, name):
            return getattr(model, name).bert_model
    return model


def test_hidden_states_equal_transformers(case: Case, batch: Any) -> None:
    tokens, real, weights = batch
    with torch.no_grad():
        expected = _encoder(case.theirs)(
            input_ids=torch.tensor(tokens), attention_mask=torch.tensor(real.astype(int))
        ).last_hidden_state.numpy()
    states, _ = _run(case.ours.config, case.ours.params, tokens, weights)
    assert np.abs(expected[real]).max() > 0.5  # Not trivially equal.
    np.testing.assert_allclose(np.asarray(states)[real], expected[real], atol=1e-5, rtol=0)


@pytest.mark.parametrize("case", ["bert"], indirect=True)
def test_large_query_biases_are_scaled_as_queries_are(case: Case, batch: Any, tmp_path: Any) -> None:
    """Compilers for GPUs have moved the factor of the scores in front of the bias, which small biases hardly show."""
    tokens, real, weights = batch
    theirs = copy.deepcopy(case.theirs)
    for name, parameter in theirs.named_parameters():
        if name.endswith("query.bias"):
            parameter.data *= 10
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        given = {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(real.astype(int))}
        expected, before = (model(**given).last_hidden_state.numpy() for model in (theirs, case.theirs))
    assert np.abs(expected - before)[real].max() > 0.1
    states, _ = _run(case.ours.config, read_checkpoint(tmp_path).params, tokens, weights)
    np.testing.assert_allclose(np.asarray(states)[real], expected[real], atol=1e-5, rtol=0)


def test_every_gradient_equals_transformers(case: Case, batch: Any) -> None:
    tokens, real, weights = batch
    case.theirs.zero_grad()
    states = _encoder(case.theirs)(
        input_ids=torch.tensor(tokens), attention_mask=torch.tensor(real.astype(int))
    ).last_hidden_state
    (states * torch.tensor(weights)).sum().backward()
    expected = {name: parameter.grad for name, parameter in case.theirs.named_parameters()}
    _, gradients = _run(case.ours.config, case.ours.params, tokens, weights)
    _, ours = export_encoder(case.ours.config, gradients, prefix=case.prefix)
    no_types = case.ours.kind in ("distilbert", "mpnet")
    assert len(ours) == 2 * 16 + 5 - no_types + (case.ours.kind == "mpnet")
    for name, gradient in ours.items():
        assert expected[name] is not None and float(expected[name].abs().max()) > 1e-9, name
        np.testing.assert_allclose(gradient, expected[name].numpy(), atol=1e-4, rtol=1e-4, err_msg=name)
    unused = {name for name in expected if name not in ours}
    assert all("pooler" in name or "encode_proj" in name for name in unused), unused


@pytest.mark.parametrize("case", ["dpr-question", "dpr-context"], indirect=True)
def test_dpr_embedding_equals_pooler_output_of_transformers(case: Case, batch: Any) -> None:
    """transformers' DPR calls the [CLS] state (projected, if so configured) its pooler_output."""
    tokens, real, weights = batch
    with torch.no_grad():
        expected = case.theirs(
            input_ids=torch.tensor(tokens), attention_mask=torch.tensor(real.astype(int))
        ).pooler_output.numpy()
    states, _ = _run(case.ours.config, case.ours.params, tokens, weights)
    embeddings = np.asarray(pool(jnp.asarray(states), jnp.asarray(real.sum(axis=1)), "cls"))
    assert (case.ours.projection is not None) == (case.projection_dim > 0)
    if case.ours.projection is not None:
        embeddings = embeddings @ case.ours.projection["kernel"] + case.ours.projection["bias"]
    assert embeddings.shape == expected.shape
    np.testing.assert_allclose(embeddings, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("case", ["bert"], indirect=True)
def test_the_parity_traps_are_visible(case: Case, batch: Any) -> None:
    """Segment ids 0/1 and the pooler give something else: the equalities above would not hold with them."""
    tokens, real, weights = batch
    segments = (np.arange(9) >= 3).astype(int) * np.ones((3, 1), int)
    with torch.no_grad():
        theirs = case.theirs(
            input_ids=torch.tensor(tokens),
            attention_mask=torch.tensor(real.astype(int)),
            token_type_ids=torch.tensor(segments),
        )
        plain = case.theirs(input_ids=torch.tensor(tokens), attention_mask=torch.tensor(real.astype(int)))
    ours = np.asarray(_run(case.ours.config, case.ours.params, tokens, weights)[0])
    assert np.abs(ours[:2, 0] - theirs.last_hidden_state[:2, 0].numpy()).max() > 1e-2
    assert np.abs(ours[:, 0] - plain.pooler_output.numpy()).max() > 1e-2


def test_padding_does_not_reach_real_positions(case: Case, batch: Any) -> None:
    tokens, real, weights = batch
    before = np.asarray(_run(case.ours.config, case.ours.params, tokens, weights)[0])
    other = np.where(real, tokens, (tokens + 5) % SIZES["vocab_size"])
    after = np.asarray(_run(case.ours.config, case.ours.params, other, weights)[0])
    np.testing.assert_array_equal(before[real], after[real])


def test_export_loads_in_transformers_and_returns_bit_for_bit(case: Case, tmp_path: Any, batch: Any) -> None:
    config, tensors = export_encoder(
        case.ours.config, case.ours.params, prefix=case.prefix, projection=case.ours.projection
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_safetensors(tmp_path / "model.safetensors", tensors, {"format": "pt"})
    state = case.theirs.state_dict()
    for name, tensor in tensors.items():
        # Rows of no position are not kept.
        unused = skipped(case.ours.config) if "position_embeddings" in name else 0
        assert not tensor[:unused].any()
        np.testing.assert_array_equal(tensor[unused:], state[name].numpy()[unused:], err_msg=name)
    again = read_checkpoint(tmp_path)
    assert again.config == case.ours.config and again.kind == case.ours.kind
    jax.tree.map(np.testing.assert_array_equal, again.params, case.ours.params)
    assert (again.projection is None) == (case.ours.projection is None)
    loaded = type(case.theirs).from_pretrained(tmp_path).eval()
    tokens, real, _ = batch
    inputs = {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(real.astype(int))}
    with torch.no_grad():
        torch.testing.assert_close(_encoder(loaded)(**inputs)[0], _encoder(case.theirs)(**inputs)[0], rtol=0, atol=0)


@pytest.mark.parametrize("case", COUNTED_FROM_PADDING, indirect=True)
def test_padding_on_the_left_gives_the_same_states(case: Case, batch: Any) -> None:
    """They count positions from the first real token, wherever the padding is; ours is on the right."""
    tokens, real, weights = batch
    left = np.full_like(tokens, case.ours.config.pad_token_id)
    for row, length in enumerate(LENGTHS):
        left[row, -length:] = tokens[row, :length]
    with torch.no_grad():
        mask = torch.tensor(real[:, ::-1].astype(int))
        expected = case.theirs(input_ids=torch.tensor(left), attention_mask=mask).last_hidden_state.numpy()
    states = np.asarray(_run(case.ours.config, case.ours.params, tokens, weights)[0])
    np.testing.assert_allclose(states[real], expected[real[:, ::-1]], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["bert", *OTHERS])
def test_mlm_head_gives_the_logits_of_transformers(kind: str, tmp_path: Any, batch: Any) -> None:
    """The head is returned, not dropped; its decoder is the word embedding."""
    tokens, real, weights = batch
    others = {"bert": ("BertModel", "BertForMaskedLM", lambda: transformers.BertConfig(**SIZES)), **OTHERS}
    _, name, make_config = others[kind]
    theirs = _randomise(getattr(transformers, name)(make_config()))
    theirs.save_pretrained(tmp_path)
    ours = read_checkpoint(tmp_path)
    assert ours.mlm_head is not None
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(tokens), attention_mask=torch.tensor(real.astype(int))).logits.numpy()
    states = _run(ours.config, ours.params, tokens, weights)[0]
    head = ours.mlm_head
    hidden = jax.nn.gelu(states @ head["dense"]["kernel"] + head["dense"]["bias"], approximate=False)
    hidden = (hidden - hidden.mean(-1, keepdims=True)) / jnp.sqrt(
        hidden.var(-1, keepdims=True) + ours.config.layer_norm_eps
    )
    hidden = hidden * head["norm"]["scale"] + head["norm"]["bias"]
    logits = np.asarray(hidden @ ours.params["word_embedding"]["table"].T + head["bias"])
    np.testing.assert_allclose(logits[real], expected[real], atol=1e-5, rtol=1e-5)
    config, tensors = export_encoder(ours.config, ours.params, mlm_head=head)
    assert config["architectures"] == [name]
    assert set(tensors) == theirs.state_dict().keys() - names_of(ours.config).decoder.keys()
    jax.tree.map(
        np.testing.assert_array_equal, import_checkpoint(config, TensorFiles.of(tensors, "x")).mlm_head, ours.mlm_head
    )
