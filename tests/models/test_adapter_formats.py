"""Adapters of others: PEFT's LoRA read and written, and what adapter-transformers wrote and computed.

Outputs are compared to 1e-5 in float32: sums in another order differ by less, a wrong factor or a swapped matrix by 0.1
and more (each comparison first sees that the adapters move the output that far).
"""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from peers import torch
from safetensors.numpy import load_file, save_file
from tiny import BERT, lively

from jaxretr.config import AdapterShape
from jaxretr.models.backbones.adapter_layers import init_adapter
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import Params
from jaxretr.models.embed import DualEncoderConfig, embed
from jaxretr.models.hub import encoder_params
from jaxretr.models.hub.adapter_formats import kind_of, read_peft, write_peft
from jaxretr.models.hub.adapter_transformers import read_adapter_transformers
from jaxretr.runtime.errors import UserError

THEIRS = Path(__file__).parents[1] / "data/adapter_transformers"
ALL = ("query", "key", "value", "attention_out", "ffn_in", "ffn_out")
SEED = 3
LENGTHS = np.array([9, 4, 1], np.int32)
TOKENS = np.random.default_rng(SEED).integers(1, BERT.vocab_size, (3, 9))


@pytest.fixture(scope="module")
def peft() -> Any:
    pytest.importorskip("transformers", reason="PEFT needs transformers")
    return pytest.importorskip("peft", reason="LoRA is compared with real PEFT: pip install peft")


@partial(jax.jit, static_argnums=(0, 1))
def _embed(bert: BertConfig, shape: AdapterShape | None, tower: Params, tokens: Any, lengths: Any) -> Any:
    return embed(
        DualEncoderConfig(bert, pooling="mean", adapter=shape), tower, tokens, lengths, dtype=jnp.dtype("float32")
    )


def _ours(bert: BertConfig, params: Params, adapter: tuple[AdapterShape, Params] | None) -> np.ndarray:
    shape, modules = adapter or (None, {})
    return np.asarray(_embed(bert, shape, {"bert": params, "adapter": modules}, TOKENS, LENGTHS))


# ---- PEFT ------------------------------------------------------------------------------------------------------------


def _random_(parameters: Any, std: float) -> None:
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in parameters:
        parameter.data.normal_(1.0 if "LayerNorm.weight" in name else 0.0, std, generator=generator)


def _base(name: str = "BertModel") -> Any:
    import transformers

    sizes = {key: getattr(BERT, key) for key in ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size")}
    sizes |= {"num_attention_heads": BERT.num_attention_heads, "max_position_embeddings": BERT.max_position_embeddings}
    config = transformers.DPRConfig(**sizes) if name.startswith("DPR") else transformers.BertConfig(**sizes)
    model = getattr(transformers, name)(config)
    _random_(model.named_parameters(), 0.25)
    return model.eval()


def _their_states(model: Any) -> np.ndarray:
    """The mean over the real tokens of the encoder's last layer, by torch."""
    for name in ("base_model", "model", "bert", "question_encoder", "bert_model"):
        # `base_model` of a plain BertModel is itself.
        model = getattr(model, name, model)
    real = np.arange(9) < LENGTHS[:, None]
    with torch.no_grad():
        states = model(input_ids=torch.tensor(TOKENS), attention_mask=torch.tensor(real.astype(int)))[0].numpy()
    return (states * real[..., None]).sum(1) / LENGTHS[:, None]


def _write_theirs(peft: Any, folder: Path, base: str = "BertModel", *, safe: bool = True, **settings: Any) -> Any:
    """Saves the base model in folder/base and LoRA on it, drawn at random, in folder/lora; returns PEFT's model."""
    model = _base(base)
    model.save_pretrained(folder / "base")
    settings = {"r": 3, "lora_alpha": 6, "target_modules": ["query", "value"], **settings}
    wrapped = peft.get_peft_model(model, peft.LoraConfig(**settings)).eval()
    _random_(((name, value) for name, value in wrapped.named_parameters() if "lora_" in name), 0.4)
    # By default PEFT asks the hub whether the vocabulary has grown.
    wrapped.save_pretrained(folder / "lora", safe_serialization=safe, save_embedding_layers=False)
    return wrapped


@pytest.fixture(scope="module")
def lora(peft: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain LoRA folder of PEFT's, to be copied and broken."""
    folder = tmp_path_factory.mktemp("plain")
    _write_theirs(peft, folder)
    return folder / "lora"


LAYER = r"encoder\.layer\.\d+\."
CASES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "plain": (("query", "value"), {}),
    "rslora": (("query", "value"), {"use_rslora": True}),
    "keys": (("key",), {"target_modules": ["attention.self.key"], "lora_alpha": 1, "lora_dropout": 0.1}),
    # PEFT's endings also mean the pooler's dense layer and, by "output.dense", that of the attention.
    "dense": (("attention_out", "ffn_in", "ffn_out"), {"target_modules": ["dense"]}),
    "ending": (("attention_out", "ffn_out"), {"target_modules": ["output.dense"]}),
    "excluded": (("ffn_out",), {"target_modules": ["output.dense"], "exclude_modules": ["attention.output.dense"]}),
    "pattern": (("key", "ffn_out"), {"target_modules": rf"{LAYER}(attention\.self\.key|output\.dense)"}),
    "all-linear": (ALL, {"target_modules": "all-linear"}),
    "every layer": (("query",), {"target_modules": ["query"], "layers_to_transform": [0, 1]}),
    "same everywhere": (("query", "value"), {"rank_pattern": {"query": 3}, "alpha_pattern": {"value": 6}}),
    "orthogonal": (("query", "value"), {"r": 4, "init_lora_weights": "orthogonal"}),
    "bin": (("query", "value"), {"safe": False}),
    "masked lm": (("query", "value"), {"base": "BertForMaskedLM"}),
    "dpr": (("query", "ffn_in"), {"base": "DPRQuestionEncoder", "target_modules": ["query", "intermediate.dense"]}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_of_peft_gives_its_outputs(peft: Any, case: str, tmp_path: Path) -> None:
    targets, settings = CASES[case]
    model = _write_theirs(peft, tmp_path, **settings)
    checkpoint = encoder_params.read_checkpoint(tmp_path / "base")
    assert kind_of(tmp_path / "lora") == "peft"
    shape, params = read_peft(tmp_path / "lora", checkpoint.config)
    assert (shape.lora_targets, shape.bottleneck) == (targets, 0)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(params))
    ours = _ours(checkpoint.config, checkpoint.params, (shape, params))
    assert np.abs(ours - _ours(checkpoint.config, checkpoint.params, None)).max() > 0.1
    np.testing.assert_allclose(ours, _their_states(model), atol=1e-5, rtol=0)


def test_half_precision_is_widened(lora: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(lora, tmp_path / "half")
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file({name: value.astype(np.float16) for name, value in tensors.items()}, folder / "adapter_model.safetensors")
    wide, half = (jax.tree.leaves(read_peft(path, BERT)[1]) for path in (lora, folder))
    for one, other in zip(wide, half, strict=True):
        assert other.dtype == np.float32
        np.testing.assert_array_equal(one.astype(np.float16), other)


def _drawn(**settings: Any) -> tuple[AdapterShape, Params]:
    shape = AdapterShape(**{"lora_rank": 4, "lora_alpha": 6.0, "bottleneck": 0, **settings})
    return shape, lively(init_adapter(shape, BERT, SEED), SEED, 0.4)


@pytest.mark.parametrize(
    "targets", [("query", "value"), ("ffn_out",), ("key", "attention_out", "ffn_in"), ALL], ids="-".join
)
def test_peft_loads_what_we_write_and_we_read_it_again(peft: Any, targets: tuple[str, ...], tmp_path: Path) -> None:
    shape, params = _drawn(lora_targets=targets)
    model = _base()
    model.save_pretrained(tmp_path / "base")
    folder = tmp_path / "ours"
    write_peft(folder, shape, params, BERT, str(tmp_path / "base"))
    again, back = read_peft(folder, BERT)
    assert again == shape
    jax.tree.map(np.testing.assert_array_equal, back, params)
    ours = _ours(BERT, encoder_params.read_checkpoint(tmp_path / "base").params, (shape, params))
    loaded = peft.PeftModel.from_pretrained(model, folder).eval()
    adapted = {name.split(".lora_A")[0] for name, _ in loaded.named_parameters() if "lora_A" in name}
    assert len(adapted) == 2 * len(targets)
    np.testing.assert_allclose(_their_states(loaded), ours, atol=1e-5, rtol=0)
    # By the name that the file notes, too.
    named = peft.AutoPeftModelForFeatureExtraction.from_pretrained(folder).eval()
    np.testing.assert_allclose(_their_states(named), ours, atol=1e-5, rtol=0)


def test_we_write_the_tensors_that_peft_writes(peft: Any, tmp_path: Path) -> None:
    """Read and written again, PEFT's file has the same names and the same bits."""
    _write_theirs(peft, tmp_path, target_modules="all-linear")
    shape, params = read_peft(tmp_path / "lora", BERT)
    write_peft(tmp_path / "again", shape, params, BERT, "base")
    before, after = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("lora", "again"))
    pooler = {name for name in before if "pooler" in name}
    assert len(pooler) == 2 and before.keys() - pooler == after.keys()
    for name, tensor in after.items():
        np.testing.assert_array_equal(tensor, before[name])


def test_alpha_is_written_as_the_factor_says(tmp_path: Path) -> None:
    for alpha, written in ((None, 4), (6.0, 6), (2.5, 2.5)):
        shape, params = _drawn(lora_alpha=alpha)
        write_peft(tmp_path / "ours", shape, params, BERT, "base")  # Replaces the one before.
        assert json.loads((tmp_path / "ours/adapter_config.json").read_text())["lora_alpha"] == written
        assert read_peft(tmp_path / "ours", BERT)[0].lora_factor == shape.lora_factor


def test_refuses_to_write_what_peft_does_not_have(tmp_path: Path) -> None:
    for settings, message in (({"bottleneck": 2}, "PEFT has no parallel adapter.*bottleneck 0"), ({}, "no LoRA")):
        shape, params = _drawn(**settings) if settings else (AdapterShape(lora_rank=0, bottleneck=0), {})
        with pytest.raises(UserError, match=message):
            write_peft(tmp_path / "ours", shape, params, BERT, "base")
    shape, params = _drawn()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").touch()
    with pytest.raises(UserError, match=r"thesis\.txt"):
        write_peft(tmp_path / "mine", shape, params, BERT, "base")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"):
        write_peft(tmp_path / "file", shape, params, BERT, "base")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "mine"]
    with pytest.raises(ValueError, match="not of this shape"):
        write_peft(tmp_path / "ours", AdapterShape(lora_rank=5, bottleneck=0), params, BERT, "base")


def _one_line(error: pytest.ExceptionInfo[UserError], *parts: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def _edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "adapter_config.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "IA3"}, "'IA3'"),
        ({"use_dora": True}, "'use_dora' is True"),
        ({"bias": "lora_only"}, "'bias' is 'lora_only'"),
        ({"lora_bias": True}, "'lora_bias'"),
        ({"modules_to_save": ["classifier"]}, "'modules_to_save' is ['classifier']"),
        ({"fan_in_fan_out": True}, "'fan_in_fan_out'"),
        ({"layer_replication": [[0, 1], [0, 1]]}, "'layer_replication'"),
        ({"trainable_token_indices": [1]}, "'trainable_token_indices'"),
        ({"of_next_year": {"x": 1}}, "'of_next_year'"),
        ({"init_lora_weights": "pissa"}, "'init_lora_weights' is 'pissa'"),
        ({"rank_pattern": {"query": 2}}, "'rank_pattern'"),
        ({"alpha_pattern": {r"layer\.0\.attention\.self\.query": 2}}, "'alpha_pattern'"),
        ({"layers_to_transform": [1]}, "'layers_to_transform' is [1]"),
        ({"layers_to_transform": 0}, "'layers_to_transform' is 0"),
        ({"target_modules": ["layer.0.attention.self.query", "value"]}, "attention.self.query in 1 of 2 layers"),
        ({"target_modules": ["q_proj"]}, "['q_proj'] names no dense layer"),
        ({"target_modules": None}, "not a list of modules' names"),
        ({"target_modules": "(query"}, "not a regular expression"),
        ({"target_modules": ["query"]}, "layer.0.attention.self.value.lora_A.weight"),
        (
            {"target_modules": ["query", "value", "key"]},
            "tensors are missing: base_model.model.encoder.layer.0.attention.self.key",
        ),
        ({"r": 4}, "has shape [3, 16], but by adapter_config.json and the encoder it must have [4, 16]"),
        ({"r": 0}, "'r' is 0"),
        ({"r": True}, "'r' is True"),
        ({"r": 10**15}, "says r 1000000000000000, but no tensor here is nearly that large"),
        ({"lora_alpha": 10**400}, "'lora_alpha' is 1000"),
        ({"lora_alpha": None}, "'lora_alpha' is None"),
        ({"lora_alpha": float("nan")}, "'lora_alpha' is nan"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_refuses_settings_of_peft(lora: Path, tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    folder = shutil.copytree(lora, tmp_path / "broken")
    _edit(folder, lambda content: content.update(settings))
    with pytest.raises(UserError) as error:
        read_peft(folder, BERT)
    _one_line(error, str(folder), message, "; ")


def test_refuses_real_checkpoints_that_cannot_be_represented(peft: Any, tmp_path: Path) -> None:
    """As PEFT itself writes them, not only by our idea of its settings."""
    cases = {
        "use_dora": {"use_dora": True},
        "bias": {"bias": "all"},
        "modules_to_save": {"modules_to_save": ["pooler"]},
        "rank_pattern": {"rank_pattern": {"value": 2}},
        "layers_to_transform": {"layers_to_transform": [1]},
        "pissa": {"init_lora_weights": "pissa"},
        "word_embeddings": {"target_modules": ["query", "word_embeddings"]},
    }
    for message, settings in cases.items():
        _write_theirs(peft, tmp_path / message, **settings)
        with pytest.raises(UserError, match=message):
            read_peft(tmp_path / message / "lora", BERT)


def _with_tensors(lora: Path, folder: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> Path:
    shutil.copytree(lora, folder)
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def test_refuses_tensors_that_do_not_fit(lora: Path, tmp_path: Path) -> None:
    one = "base_model.model.encoder.layer.0.attention.self.query.lora_B.weight"
    changes: dict[str, tuple[Callable[[dict[str, np.ndarray]], Any], str]] = {
        "missing": (lambda tensors: tensors.pop(one), f"1 of 8 tensors are missing: {one}"),
        "extra": (
            lambda tensors: tensors.update({one + "s": np.zeros(2)}),
            f"1 tensors have no place in this architecture: {one}s",
        ),
        "shape": (lambda tensors: tensors.update({one: tensors[one].T}), f"{one} has shape [3, 16]"),
        "layers": (lambda tensors: [tensors.pop(name) for name in list(tensors) if ".1." in name], "for 1 layers"),
        "other": (
            lambda tensors: (tensors.clear(), tensors.update(x=np.zeros(1))),
            "no adapters of a BERT encoder (x)",
        ),
    }
    for name, (change, message) in changes.items():
        with pytest.raises(UserError) as error:
            read_peft(_with_tensors(lora, tmp_path / name, change), BERT)
        _one_line(error, str(tmp_path / name), message)
    (tmp_path / "missing/adapter_model.safetensors").unlink()
    with pytest.raises(UserError, match=r"no adapter_model\.safetensors or adapter_model\.bin"):
        read_peft(tmp_path / "missing", BERT)


@pytest.mark.parametrize(("change", "message"), [({"hidden_size": 32}, "[3, 32]"), ({"num_hidden_layers": 3}, "has 3")])
def test_refuses_another_encoder(lora: Path, change: dict[str, int], message: str) -> None:
    with pytest.raises(UserError) as error:
        read_peft(lora, BertConfig(**{**BERT.__dict__, **change}))
    _one_line(error, str(lora), message, "give the encoder that these adapters were trained in")


# ---- adapter-transformers --------------------------------------------------------------------------------------------

EXPECTED = {
    "union": AdapterShape(4, 4.0, ("query", "value"), 8, 4.0),
    "lora": AdapterShape(2, 6.0, ("query", "key", "value", "ffn_in", "ffn_out"), 0),
    "parallel": AdapterShape(0, bottleneck=3, scale=0.5),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_adapters_of_adapter_transformers_give_its_outputs(name: str) -> None:
    assert kind_of(THEIRS / name) == "adapter-transformers"
    checkpoint = encoder_params.read_checkpoint(THEIRS / "backbone")
    bert, params = checkpoint.config, checkpoint.params
    shape, modules = read_adapter_transformers(THEIRS / name, bert)
    assert shape == EXPECTED[name]
    with np.load(THEIRS / "outputs.npz") as outputs:
        tokens, lengths, expected = outputs["tokens"], outputs["lengths"].astype(np.int32), outputs[name]
    ours = _embed(bert, shape, {"bert": params, "adapter": modules}, tokens, lengths)
    assert np.abs(ours - _embed(bert, None, {"bert": params}, tokens, lengths)).max() > 0.1
    np.testing.assert_allclose(ours, expected, atol=1e-5, rtol=0)


def test_settings_of_older_versions_mean_query_and_value(tmp_path: Path) -> None:
    """Before version 3.1 LoRA had no choice of projections, of composition and of gating."""
    folder = shutil.copytree(THEIRS / "union", tmp_path / "old")
    _edit(
        folder,
        lambda content: [
            content["config"]["configs"][0].pop(key) for key in ("attn_matrices", "composition_mode", "use_gating")
        ],
    )
    bert = encoder_params.read_checkpoint(THEIRS / "backbone").config
    old, new = (read_adapter_transformers(path, bert) for path in (folder, THEIRS / "union"))
    assert old[0] == new[0]
    jax.tree.map(np.testing.assert_array_equal, old[1], new[1])


def test_the_names_of_the_adapter_and_of_the_model_class_do_not_matter(tmp_path: Path) -> None:
    """BertModel saves without "bert."; a name may be any key of a torch module."""
    folder = shutil.copytree(THEIRS / "union", tmp_path / "named")
    _edit(folder, lambda content: content.update(name="ms{}marco"))
    state = torch.load(folder / "pytorch_adapter.bin", weights_only=True)
    renamed = {name.replace("bert.", "").replace(".union.", ".ms{}marco."): value for name, value in state.items()}
    torch.save(renamed, folder / "pytorch_adapter.bin")
    bert = encoder_params.read_checkpoint(THEIRS / "backbone").config
    one, other = (read_adapter_transformers(path, bert)[1] for path in (folder, THEIRS / "union"))
    assert len(flatten_dict(one)) == 8
    jax.tree.map(np.testing.assert_array_equal, one, other)


LORA, PARALLEL = 0, 1


@pytest.mark.parametrize(
    ("part", "settings", "message"),
    [
        (LORA, {"composition_mode": "scale"}, "'composition_mode' is 'scale'"),
        (LORA, {"use_gating": True}, "'use_gating'"),
        (LORA, {"attn_matrices": ["q", "o"]}, "'attn_matrices' is ['q', 'o']"),
        (LORA, {"selfattn_lora": False}, "belongs to no dense layer"),
        (LORA, {"attn_matrices": ["q"]}, "self.value.loras.union.lora_A"),
        (LORA, {"r": 5}, "has shape [4, 32], but"),
        (LORA, {"alpha": "four"}, "'alpha' is 'four'"),
        (LORA, {"architecture": "prefix_tuning"}, "architecture 'prefix_tuning'"),
        (PARALLEL, {"is_parallel": False}, "'is_parallel' is False"),
        (PARALLEL, {"is_parallel": None}, "'is_parallel' is None"),
        (PARALLEL, {"output_adapter": False}, "'output_adapter' is False"),
        (PARALLEL, {"mh_adapter": True}, "'mh_adapter' is True"),
        (PARALLEL, {"non_linearity": "swish"}, "'non_linearity' is 'swish'"),
        (PARALLEL, {"ln_before": True}, "'ln_before'"),
        (PARALLEL, {"ln_after": True}, "'ln_after'"),
        (PARALLEL, {"original_ln_after": False}, "'original_ln_after' is False"),
        (PARALLEL, {"inv_adapter": "nice"}, "'inv_adapter'"),
        (PARALLEL, {"phm_layer": True}, "'phm_layer'"),
        (PARALLEL, {"leave_out": [0]}, "'leave_out' is [0]"),
        (PARALLEL, {"scaling": "learned"}, "'scaling' is 'learned'"),
        (PARALLEL, {"reduction_factor": {"default": 4}}, "'reduction_factor'"),
        (PARALLEL, {"reduction_factor": 2}, "has shape [8, 32], but"),
        (None, {"config": "pfeiffer"}, "does not spell out"),
        (None, {"model_type": "roberta"}, "'roberta'"),
        (None, {"hidden_size": 768}, "hidden_size of 768"),
        (None, {"name": "other"}, "loras.other.lora_A"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_refuses_settings_of_adapter_transformers(
    tmp_path: Path, part: int | None, settings: dict[str, Any], message: str
) -> None:
    folder = shutil.copytree(THEIRS / "union", tmp_path / "broken")
    _edit(folder, lambda content: (content if part is None else content["config"]["configs"][part]).update(settings))
    bert = encoder_params.read_checkpoint(THEIRS / "backbone").config
    with pytest.raises(UserError) as error:
        read_adapter_transformers(folder, bert)
    _one_line(error, str(folder), message, "; ")


def test_refuses_two_of_a_kind_and_missing_weights(tmp_path: Path) -> None:
    folder = shutil.copytree(THEIRS / "union", tmp_path / "twice")
    _edit(folder, lambda content: content["config"]["configs"].append(content["config"]["configs"][PARALLEL]))
    bert = encoder_params.read_checkpoint(THEIRS / "backbone").config
    with pytest.raises(UserError, match="two adapters of one kind"):
        read_adapter_transformers(folder, bert)
    folder = shutil.copytree(THEIRS / "union", tmp_path / "empty")
    (folder / "pytorch_adapter.bin").unlink()
    with pytest.raises(UserError, match=r"no pytorch_adapter\.bin"):
        read_adapter_transformers(folder, bert)
    with pytest.raises(UserError, match="for 2 layers, but the encoder has 3"):
        read_adapter_transformers(THEIRS / "union", BertConfig(**{**bert.__dict__, "num_hidden_layers": 3}))


def test_kind_of_other_folders(tmp_path: Path) -> None:
    assert kind_of(tmp_path) is None
    assert kind_of(tmp_path / "nowhere") is None
    (tmp_path / "adapter_config.json").write_text('{"r": 4}')
    assert kind_of(tmp_path) is None
    (tmp_path / "adapter_config.json").write_text('{"r": ')
    with pytest.raises(UserError, match=r"adapter_config\.json:1"):
        kind_of(tmp_path)
