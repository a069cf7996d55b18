"""BERT checkpoints of every kind and age are read whole, or refused in one line; their outputs: test_bert_parity.py."""

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxretr.models.backbones.bert import BertEncoder
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.backbones.layers import define
from jaxretr.models.hub.architecture import EncoderCheckpoint
from jaxretr.models.hub.dpr import read_dpr_cp
from jaxretr.models.hub.encoder_params import export_encoder, import_checkpoint, read_checkpoint
from jaxretr.models.hub.hf_files import read_json
from jaxretr.models.hub.tensor_files import TensorFiles, write_safetensors
from jaxretr.runtime.errors import UserError

SEED = 3
CONFIG = BertConfig(
    vocab_size=13,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=6,
    max_position_embeddings=5,
    layer_norm_eps=1e-12,
)


def _draw(shapes: Any) -> Any:
    rng = np.random.default_rng(SEED)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)


PARAMS = _draw(define(lambda rngs: BertEncoder(CONFIG, rngs=rngs))[1])
MLM_HEAD = {
    "dense": {"kernel": np.arange(64, dtype=np.float32).reshape(8, 8), "bias": np.full(8, 0.25, np.float32)},
    "norm": {"scale": np.full(8, 2, np.float32), "bias": np.arange(8, dtype=np.float32)},
    "bias": np.arange(13, dtype=np.float32),
}
PROJECTION = {"kernel": np.full((8, 3), 0.5, np.float32), "bias": np.arange(3, dtype=np.float32)}


def _raises(message: str) -> Any:
    return pytest.raises(UserError, match=message)


def _save(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    return folder


def _same(checkpoint: EncoderCheckpoint) -> None:
    jax.tree.map(np.testing.assert_array_equal, checkpoint.params, PARAMS)


@pytest.mark.parametrize("prefix", ["", "bert.", "question_encoder.bert_model.", "ctx_encoder.bert_model."])
def test_old_names_and_unneeded_tensors(tmp_path: Path, prefix: str) -> None:
    """bert-base-uncased has gamma and beta, a pooler, position ids, and the decoder under its own name."""
    head = MLM_HEAD if prefix == "bert." else None
    config, tensors = export_encoder(CONFIG, PARAMS, mlm_head=head, prefix=prefix)
    if head is not None:
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
        tensors["cls.seq_relationship.weight"] = np.zeros((2, 8), np.float32)
        tensors["cls.seq_relationship.bias"] = np.zeros(2, np.float32)
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    tensors[prefix + "embeddings.position_ids"] = np.arange(5)[None]
    tensors[prefix + "pooler.dense.weight"] = np.zeros((8, 8), np.float32)
    tensors[prefix + "pooler.dense.bias"] = np.zeros(8, np.float32)
    checkpoint = read_checkpoint(_save(tmp_path, config, tensors))
    _same(checkpoint)
    assert checkpoint.config == CONFIG
    if head is not None:
        jax.tree.map(np.testing.assert_array_equal, checkpoint.mlm_head, head)
        tensors["cls.predictions.decoder.weight"] = tensors["cls.predictions.decoder.weight"] + 1
        with _raises(r"cls\.predictions\.decoder\.weight differs from bert\.embeddings\.word_embeddings\.weight"):
            import_checkpoint(config, TensorFiles.of(tensors, "x"))


def test_tower_swap_is_an_error(tmp_path: Path) -> None:
    folder = _save(tmp_path, *export_encoder(CONFIG, PARAMS, prefix="ctx_encoder.bert_model.", projection=PROJECTION))
    checkpoint = read_checkpoint(folder, expect="dpr-context")
    assert checkpoint.kind == "dpr-context" and checkpoint.projection is not None
    np.testing.assert_array_equal(checkpoint.projection["kernel"], PROJECTION["kernel"])
    with _raises(r"towers are swapped: this is the dpr-context encoder, where the dpr-question encoder is expected"):
        read_checkpoint(folder, expect="dpr-question")
    config = read_json(folder, "config.json") | {"architectures": ["DPRQuestionEncoder"]}
    with _raises(r"says DPRQuestionEncoder, but the tensors are a dpr-context encoder's"):
        import_checkpoint(config, TensorFiles.open(folder))


def _changed(**change: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    config, tensors = export_encoder(CONFIG, PARAMS)
    return config | change, tensors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["ElectraModel"], "model_type": "electra"}, "ElectraModel.*supported: BertModel, .*DPRQ"),
        ({"architectures": ["MT5EncoderModel"], "model_type": "mt5"}, "MT5EncoderModel.*not a supported encoder"),
        ({"architectures": ["BertForSequenceClassification"]}, "BertForSequenceClassification.*supported"),
        ({"architectures": None, "model_type": None}, "no stated architecture"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'; only 'absolute'"),
        ({"is_decoder": True}, "is_decoder True; only False"),
        ({"hidden_act": "mish"}, "hidden_act 'mish'; supported: gelu,"),
        ({"num_attention_heads": 3}, "3 heads do not fit a hidden size of 8"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, but must be at least 1"),
        ({"hidden_size": 0}, "hidden_size is 0, but must be at least 1"),
        ({"num_hidden_layers": 10**9}, "says num_hidden_layers 1000000000, but no tensor here is nearly that large"),
        ({"hidden_size": 10**12, "num_attention_heads": 1}, "says hidden_size 1000000000000, but no tensor"),
        ({"vocab_size": 10**18}, "says vocab_size 1000000000000000000, but no tensor"),
        ({"max_position_embeddings": 10**15}, "says max_position_embeddings 1000000000000000, but no tensor"),
        ({"vocab_size": 10**30}, "'vocab_size' is 1000000000000000000000000000000, which no model has"),
        ({"initializer_range": 10**400}, "'initializer_range' is 10000.*, which no model has"),
        ({"layer_norm_eps": float("nan")}, "'layer_norm_eps' is nan, which no model has"),
        ({"architectures": 5}, "has architectures 5, which is not a list of names"),
        ({"architectures": [5]}, r"has architectures \[5\], which is not a list of names"),
        ({"vocab_size": "13"}, r"config\.json: 'vocab_size' must be int, not '13'"),
        ({"vocab_size": -1}, "'vocab_size' must not be negative"),
        ({"vocab_size": 14}, r"word_embeddings\.weight has shape \[13, 8\], but by config\.json .* \[14, 8\]"),
        ({"num_hidden_layers": 3}, "16 of 53 tensors are missing: .* and 11 more"),
        ({"num_hidden_layers": 1}, "16 tensors have no place in this architecture: .* and 11 more"),
        ({"architectures": ["DPRContextEncoder"], "model_type": "dpr", "projection_dim": 3}, r"missing: encode_proj"),
        ({"architectures": ["MegatronBertModel"], "model_type": "megatron-bert"}, r"missing: encoder\.layer\.0\.atten"),
    ],
)
def test_other_architectures_are_one_line_errors(change: dict[str, Any], message: str) -> None:
    config, tensors = _changed(**change)
    with _raises(message) as caught:
        import_checkpoint(config, TensorFiles.of(tensors, "some/folder"))
    assert str(caught.value).startswith("some/folder") and "\n" not in str(caught.value)


def test_left_over_tensors_are_named() -> None:
    config, tensors = _changed()
    extra = {f"adapter.{i}": np.zeros(1, np.float32) for i in range(6)}
    with _raises(r"6 tensors have no place in this architecture: adapter\.0, .*adapter\.4 and 1 more"):
        import_checkpoint(config, TensorFiles.of(tensors | extra, "x"))
    both = {f"bert.{name}": tensor for name, tensor in tensors.items()} | tensors
    with _raises("two BERT encoders"):
        import_checkpoint(config, TensorFiles.of(both, "x"))
    with _raises("no BERT encoder"):
        import_checkpoint(config, TensorFiles.of(extra, "x"))


def test_silent_configuration_means_the_defaults_of_transformers() -> None:
    """A config.json may omit what is at its default; Megatron's defaults are those of its 345M model."""
    for kind, size in (("bert", 768), ("megatron-bert", 1024)):
        with _raises(rf"word_embeddings\.weight has shape \[13, 8\], .* {size}\]|vocab_size \d+, but no tensor"):
            import_checkpoint({"model_type": kind}, TensorFiles.of(_changed()[1], "x"))
    dropped = {"layer_norm_eps", "hidden_act", "type_vocab_size", "initializer_range"}
    config, tensors = _changed()
    checkpoint = import_checkpoint({k: v for k, v in config.items() if k not in dropped}, TensorFiles.of(tensors, "x"))
    assert asdict(checkpoint.config) == asdict(CONFIG)


# --- DPR's own checkpoints


def _cp(path: Path, zipped: bool = True, **change: Any) -> dict[str, Any]:
    torch = pytest.importorskip("torch", reason="a .cp is written with PyTorch: pip install torch")
    model = {}
    for tower, sign in (("question_model.", 1.0), ("ctx_model.", -1.0)):
        _, tensors = export_encoder(CONFIG, PARAMS)
        model |= {tower + name: torch.tensor(sign * tensor) for name, tensor in tensors.items()}
        model[tower + "embeddings.position_ids"] = torch.arange(5)[None]
        model[tower + "pooler.dense.weight"] = torch.zeros(8, 8)
        model[tower + "pooler.dense.bias"] = torch.zeros(8)
        model[tower + "encode_proj.weight"] = torch.tensor(np.ascontiguousarray(PROJECTION["kernel"].T))
        model[tower + "encode_proj.bias"] = torch.tensor(PROJECTION["bias"])
    state = {
        "model_dict": model,
        "optimizer_dict": {"state": {}},
        "scheduler_dict": {"last_epoch": 3},
        "offset": 0,
        "epoch": 4,
        "encoder_params": {"pretrained_model_cfg": "bert-base-uncased"},
    } | change
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    return state


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_dpr_cp(tmp_path: Path, zipped: bool) -> None:
    _cp(tmp_path / "dpr.cp", zipped)
    question, context = read_dpr_cp(tmp_path / "dpr.cp", num_attention_heads=2)
    assert (question.kind, context.kind) == ("dpr-question", "dpr-context")
    assert question.config == context.config == CONFIG
    _same(question)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, -y), context.params, PARAMS)
    assert question.projection is not None
    jax.tree.map(np.testing.assert_array_equal, question.projection, PROJECTION)


class _Evil:
    """Runs code when an ordinary unpickler builds it."""

    ran = False

    def __reduce__(self) -> Any:
        return (_boom, ())


def _boom() -> None:
    _Evil.ran = True


def test_dpr_cp_with_objects_of_its_training_program(tmp_path: Path) -> None:
    """Newer .cp files hold the options of the run as objects: they are skipped, not built."""
    _cp(tmp_path / "dpr.cp", encoder_params={"encoder": argparse.Namespace(dropout=0.1), "evil": _Evil()})
    question, _ = read_dpr_cp(tmp_path / "dpr.cp", num_attention_heads=2)
    _same(question)
    assert not _Evil.ran


class _Shell:
    def __reduce__(self) -> Any:
        return (os.system, ("touch ran",))


def test_dpr_cp_that_tries_to_run_a_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Of files of torch < 1.6 every object is refused.
    for zipped, message in ((True, r"would call (posix|nt)\.system if it were unpickled"), (False, "of tensors only")):
        _cp(tmp_path / "dpr.cp", zipped, encoder_params={"evil": _Shell()})
        with _raises(rf"dpr\.cp: .*{message}"):
            read_dpr_cp(tmp_path / "dpr.cp", num_attention_heads=2)
    assert not (tmp_path / "ran").exists()


def test_dpr_cp_errors(tmp_path: Path) -> None:
    path = tmp_path / "dpr.cp"
    state = _cp(path)
    import torch

    with _raises(r"none\.cp: cannot be read"):
        read_dpr_cp(tmp_path / "none.cp")
    path.write_bytes(path.read_bytes()[:-100])
    with _raises(r"dpr\.cp: truncated"):
        read_dpr_cp(path)
    torch.save({"state_dict": {}}, path)
    with _raises("holds no 'model_dict'"):
        read_dpr_cp(path)
    model = state["model_dict"]
    torch.save({"model_dict": model | {"qa_classifier.weight": torch.zeros(1)}}, path)
    with _raises(r"1 tensors belong to neither .* qa_classifier\.weight"):
        read_dpr_cp(path)
    torch.save({"model_dict": {name: t for name, t in model.items() if not name.startswith("ctx_")}}, path)
    with _raises(r"ctx_model\.embeddings\.word_embeddings\.weight is missing"):
        read_dpr_cp(path)
    lost = "question_model.encoder.layer.1.output.dense.bias"
    torch.save({"model_dict": {name: tensor for name, tensor in model.items() if name != lost}}, path)
    with _raises(rf"1 of 39 tensors are missing: {lost}"):
        read_dpr_cp(path, num_attention_heads=2)


def test_a_layer_number_of_a_tensor_s_name_is_bounded(tmp_path: Path) -> None:
    """A .cp file has no config.json: its number of layers is that of the names."""
    torch = pytest.importorskip("torch")
    _, tensors = export_encoder(CONFIG, PARAMS)
    model = {
        f"{tower}.{name}": torch.from_numpy(array)
        for tower in ("question_model", "ctx_model")
        for name, array in tensors.items()
    }
    name = "question_model.encoder.layer.1000000000.attention.self.query.weight"
    model[name] = model["question_model.encoder.layer.0.attention.self.query.weight"]
    torch.save({"model_dict": model}, tmp_path / "dpr.cp")
    with _raises("says num_hidden_layers 1000000001, but no tensor here is nearly that large"):
        read_dpr_cp(tmp_path / "dpr.cp", num_attention_heads=CONFIG.num_attention_heads)
