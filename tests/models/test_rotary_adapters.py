"""PEFT's LoRA of encoders with rotary positions: read, written and merged as PEFT itself does it.

Outputs are compared to 1e-5 in float32: sums in another order differ by less, a wrong factor or a swapped matrix by 0.1
and more (each comparison first sees that the adapters move the output that far).
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoder_parity import LENGTHS, REAL, SEED, TOKENS
from peers import torch
from rotary_models import SIZES, random_model
from safetensors.numpy import load_file, save_file

from jaxretr.config import AdapterShape
from jaxretr.models.backbones.adapter_layers import abstract_adapter, merge_lora
from jaxretr.models.backbones.backbone_config import BACKBONE, Backbone
from jaxretr.models.backbones.layers import Params
from jaxretr.models.embed import DualEncoderConfig, embed
from jaxretr.models.hub.adapter_formats import read_peft, write_peft
from jaxretr.models.hub.adapter_transformers import read_adapter_transformers
from jaxretr.models.hub.encoder_params import ARCHITECTURES, read_checkpoint
from jaxretr.runtime.errors import UserError

SEPARATE = ("query", "key", "value", "attention_out", "ffn_gate", "ffn_in", "ffn_out")
FUSED = ("qkv", "attention_out", "ffn_in", "ffn_out")

# PEFT's target_modules of each model, and ours.
CASES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "modernbert": ("all-linear", FUSED),
    "modernbert with biases": (["Wqkv", "mlp.Wo"], ("qkv", "ffn_out")),
    "nomic_bert": ("all-linear", SEPARATE),
    "gte": (["q_proj", "o_proj", "gate_proj"], ("query", "attention_out", "ffn_gate")),
    "qwen3": ("all-linear", SEPARATE),
    "gemma3_text": (r".*\.(k_proj|v_proj|up_proj|down_proj)", ("key", "value", "ffn_in", "ffn_out")),
}


@pytest.fixture(scope="module")
def peft() -> Any:
    pytest.importorskip("transformers", reason="PEFT needs transformers")
    return pytest.importorskip("peft", reason="LoRA is compared with real PEFT: pip install peft")


@partial(jax.jit, static_argnums=(0, 1))
def _ours(backbone: Backbone, shape: AdapterShape, params: Params, adapter: Params) -> jax.Array:
    config = DualEncoderConfig(backbone, pooling="mean", adapter=shape)
    tower = {BACKBONE: params, "adapter": adapter}
    return embed(config, tower, jnp.asarray(TOKENS), jnp.asarray(LENGTHS), dtype=jnp.float32)


def _theirs(model: Any) -> np.ndarray:
    """The mean over the real tokens of the encoder's last layer, by torch."""
    with torch.no_grad():
        states = model(input_ids=torch.tensor(TOKENS), attention_mask=torch.tensor(REAL.astype(int)))[0].numpy()
    return (states * REAL[..., None]).sum(1) / LENGTHS[:, None]


def _write_theirs(peft: Any, case: str, folder: Path, targets: Any) -> Any:
    """Saves the base model in folder/base and LoRA on it, drawn at random, in folder/lora; returns PEFT's model."""
    model = random_model(case)
    model.save_pretrained(folder / "base")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=3, lora_alpha=6, target_modules=targets)).eval()
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0.0, 0.2, generator=generator)
    wrapped.save_pretrained(folder / "lora", save_embedding_layers=False)
    return wrapped


@pytest.mark.parametrize("case", CASES)
def test_lora_of_peft_is_read_written_and_merged(peft: Any, case: str, tmp_path: Path) -> None:
    targets, ours = CASES[case]
    model = _write_theirs(peft, case, tmp_path, targets)
    base = read_checkpoint(tmp_path / "base")
    shape, adapter = read_peft(tmp_path / "lora", base.config)
    assert (shape.lora_targets, shape.lora_factor, shape.bottleneck) == (ours, 2.0, 0)
    expected = _theirs(model)
    with model.disable_adapter():
        assert np.abs(expected - _theirs(model)).max() > 0.1
    np.testing.assert_allclose(_ours(base.config, shape, base.params, adapter), expected, atol=1e-5, rtol=1e-5)

    write_peft(tmp_path / "again", shape, adapter, base.config, str(tmp_path / "base"))
    before, after = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("lora", "again"))
    assert before.keys() == after.keys()
    for name, tensor in after.items():
        np.testing.assert_array_equal(tensor, before[name])
    loaded = peft.AutoPeftModelForFeatureExtraction.from_pretrained(tmp_path / "again").eval()
    np.testing.assert_allclose(_theirs(loaded), expected, atol=1e-6, rtol=1e-6)

    model.merge_and_unload().save_pretrained(tmp_path / "merged")
    merged = merge_lora(base.params, adapter, shape)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6),
        *(merged, read_checkpoint(tmp_path / "merged").params),
    )


def test_lora_of_a_decoder_with_its_head(peft: Any, tmp_path: Path) -> None:
    """Trained on the class that also predicts tokens, whose encoder's modules have a prefix."""
    _write_theirs(peft, "qwen3", tmp_path, ["q_proj", "down_proj"])
    config = read_checkpoint(tmp_path / "base").config
    shape, adapter = read_peft(tmp_path / "lora", config)
    path = tmp_path / "lora/adapter_model.safetensors"
    save_file({name.replace(".layers.", ".model.layers."): one for name, one in load_file(path).items()}, path)
    again, back = read_peft(tmp_path / "lora", config)
    assert again == shape
    jax.tree.map(np.testing.assert_array_equal, back, adapter)
    with pytest.raises(UserError, match="is for 3 layers, but the encoder has 2"):
        read_peft(tmp_path / "lora", replace(config, num_hidden_layers=2))


def test_modules_that_hold_several_layers(tmp_path: Path) -> None:
    """The code of "new" models has one module for queries, keys and values, and one for both halves of the gate."""
    sizes = {name: size for name, size in SIZES.items() if name != "pad_token_id"}
    backbone = replace(ARCHITECTURES["new"].defaults, **sizes, num_key_value_heads=4, head_dim=4)
    folder = tmp_path / "lora"

    def drawn(*targets: str) -> tuple[AdapterShape, Params]:
        shape = AdapterShape(lora_rank=3, lora_targets=targets, bottleneck=0)
        rng = np.random.default_rng(SEED)
        return shape, jax.tree.map(
            lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), abstract_adapter(shape, backbone)
        )

    shape, adapter = drawn("attention_out", "ffn_out")
    write_peft(folder, shape, adapter, backbone, "base")
    again, back = read_peft(folder, backbone)
    assert again == replace(shape, lora_alpha=3.0)
    jax.tree.map(np.testing.assert_array_equal, back, adapter)
    note = folder / "adapter_config.json"
    text = note.read_text()
    for targets in ('["qkv_proj"]', '["o_proj", "up_gate_proj"]', '"all-linear"'):
        before, after = text.split('"target_modules": ')
        note.write_text(f'{before}"target_modules": {targets}{after[after.index("]") + 1 :]}')
        with pytest.raises(
            UserError, match=r"names (attention.qkv|mlp.up_gate)_proj, one module for .* merge"
        ) as caught:
            read_peft(folder, backbone)
        assert "\n" not in str(caught.value) and str(note) in str(caught.value)
    settings = json.loads(text) | {"target_modules": "all-linear", "exclude_modules": ["qkv_proj", "up_gate_proj"]}
    note.write_text(json.dumps(settings))
    assert read_peft(folder, backbone)[0] == again
    shape, adapter = drawn("query", "ffn_out")
    message = r"NewModel has no modules for query, only attention\.qkv_proj for query, key, value"
    with pytest.raises(UserError, match=message):
        write_peft(tmp_path / "ours", shape, adapter, backbone, "base")
    assert not (tmp_path / "ours").exists()


def test_adapters_of_bert_are_not_for_others(tmp_path: Path) -> None:
    theirs = Path(__file__).parents[1] / "data/adapter_transformers"
    folder = next(path.parent for path in sorted(theirs.rglob("adapter_config.json")))
    backbone = ARCHITECTURES["new"].defaults
    with pytest.raises(UserError, match="the adapters are for BERT, not New"):
        read_adapter_transformers(folder, backbone)
