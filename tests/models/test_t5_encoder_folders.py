"""Folders of GTR's kind that sentence-transformers wrote: a T5 encoder, the mean, a Dense layer, vectors of length 1."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from peers import sentence_transformers as peer
from peers import torch, transformers
from safetensors.numpy import load_file
from tiny import DATA, lively

from jaxretr import DualEncoder, export, verify
from jaxretr.config import AdapterShape
from jaxretr.data.readers import read_corpus
from jaxretr.models.adapter import Adapter
from jaxretr.models.backbones.adapter_layers import init_adapter
from jaxretr.models.hub.model_shapes import encoder_shape

os.environ.setdefault("HF_HUB_OFFLINE", "1")

PASSAGES = [passage.text for passage in read_corpus(DATA)][:6]
TEXTS = ["", "naïve café, 1.234,5 € 東京 😀", "Paris is the capital of France. " * 20, *PASSAGES]
LENGTH = 48
SIZES: dict[str, Any] = {"vocab_size": 420, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 2}
VERSIONS = {"v1.0": {}, "v1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}}


def _tokenizer() -> Any:
    """T5's: SentencePiece's unigrams, a hundred sentinels behind them, and </s> after a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learnt = Tokenizer(models.Unigram())
    learnt.pre_tokenizer = pre_tokenizers.Metaspace()
    pieces = ["<pad>", "</s>", "<unk>"]
    learnt.train_from_iterator(
        PASSAGES, trainers.UnigramTrainer(vocab_size=300, special_tokens=pieces, unk_token="<unk>")
    )
    return transformers.T5Tokenizer(vocab=[tuple(piece) for piece in json.loads(learnt.to_str())["model"]["vocab"]])


@pytest.fixture(scope="module", params=VERSIONS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What sentence-transformers writes; encoder/ beside it is the bare encoder."""
    from sentence_transformers import models

    path = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(7)
    encoder = transformers.T5EncoderModel(transformers.T5Config(**SIZES, **VERSIONS[request.param]))
    for parameter in encoder.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    encoder.save_pretrained(path / "encoder")
    _tokenizer().save_pretrained(path / "encoder")
    modules = [
        models.Transformer(str(path / "encoder"), max_seq_length=LENGTH),
        models.Pooling(16, pooling_mode="mean"),
        models.Dense(16, 12, bias=False, activation_function=torch.nn.Identity()),
        models.Normalize(),
    ]
    peer.SentenceTransformer(modules=modules, device="cpu").save(str(path / "model"))
    return path / "model"


def _encoded(path: Path) -> np.ndarray:
    return peer.SentenceTransformer(str(path), device="cpu").encode(TEXTS, batch_size=4)


def test_vectors_are_those_of_sentence_transformers_before_and_after_the_export(folder: Path, tmp_path: Path) -> None:
    ours = DualEncoder.from_pretrained(folder)
    vectors = ours.encode_passages(TEXTS)
    assert (ours.config.pooling, ours.config.max_passage_length, ours.config.embedding_size) == ("mean", LENGTH, 12)
    assert ours.truncated >= 1
    np.testing.assert_allclose(vectors, _encoded(folder), rtol=0, atol=1e-5)
    ours.save(tmp_path / "ours")
    export(ours, to="sentence-transformers", out=tmp_path / "theirs")
    export(ours, to="onnx", out=tmp_path / "onnx")  # Verified by onnxruntime before it appears.
    for name in ("ours", "theirs"):
        again = DualEncoder.from_pretrained(tmp_path / name)
        assert again.config == ours.config
        jax.tree.map(np.testing.assert_array_equal, again.params, ours.params)
    np.testing.assert_allclose(_encoded(tmp_path / "theirs"), vectors, rtol=0, atol=1e-5)
    assert encoder_shape(str(tmp_path / "theirs")).backbone == ours.config.backbone


def test_a_bare_encoder_is_pooled_by_the_mean_and_written_for_transformers(folder: Path, tmp_path: Path) -> None:
    ours = DualEncoder.from_pretrained(folder.parent / "encoder")
    assert (ours.config.pooling, ours.config.passage_template) == ("mean", "joined")
    assert encoder_shape(str(folder.parent / "encoder")).pooling == "mean"
    export(ours, to="huggingface", out=tmp_path / "bare")
    again = DualEncoder.from_pretrained(tmp_path / "bare")
    assert again.config == ours.config
    jax.tree.map(np.testing.assert_array_equal, again.params, ours.params)
    # As the card says it is used, by transformers alone: AutoModel would add a decoder with random weights.
    verify(tmp_path / "bare", library="transformers")
    assert "encode(T5EncoderModel, " in (tmp_path / "bare/README.md").read_text()


@pytest.mark.parametrize("folder", ["v1.0"], indirect=True)
def test_a_folder_without_a_limit_has_that_of_the_pretraining(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "sentence_bert_config.json").write_text("{}")
    content = json.loads((copy / "tokenizer_config.json").read_text())
    for stated, expected in ((int(1e30), 512), (300, 300)):
        (copy / "tokenizer_config.json").write_text(json.dumps(content | {"model_max_length": stated}))
        assert DualEncoder.from_pretrained(copy).config.max_passage_length == expected


@pytest.mark.parametrize("folder", ["v1.1"], indirect=True)
def test_longer_texts_than_those_of_the_pretraining(folder: Path, tmp_path: Path) -> None:
    """Positions are relative: no table of them ends, and the exported program has no limit below any text."""
    pytest.importorskip("flatbuffers", reason="jax.export writes and reads its files with it")
    ours = DualEncoder.from_pretrained(folder, max_passage_length=700)
    text = "Paris is the capital of France. " * 200
    vector = ours.encode_passages([text])
    theirs = peer.SentenceTransformer(str(folder), device="cpu")
    theirs.max_seq_length = 700
    np.testing.assert_allclose(vector, theirs.encode([text]), rtol=0, atol=1e-5)
    export(ours, to="stablehlo", out=tmp_path / "out", side="passage")
    program = jax.export.deserialize(bytearray((tmp_path / "out/passage/encoder.stablehlo").read_bytes()))
    params = load_file(tmp_path / "out/passage/parameters.safetensors")
    ids = np.array([ours.tokenizer(text, truncation=True, max_length=700)["input_ids"]], np.int32)
    assert ids.shape == (1, 700)
    np.testing.assert_allclose(program.call(params, ids, np.ones_like(ids)), vector, rtol=0, atol=1e-5)
    runtime = pytest.importorskip("onnxruntime", reason="runs the graph")
    export(ours, to="onnx", out=tmp_path / "onnx", side="passage")
    session = runtime.InferenceSession(str(tmp_path / "onnx/passage/model.onnx"), providers=["CPUExecutionProvider"])
    inputs = {name: values.astype(np.int64) for name, values in (("input_ids", ids), ("attention_mask", ids >= 0))}
    np.testing.assert_allclose(session.run(None, inputs)[0], vector, rtol=0, atol=1e-5)


@pytest.mark.parametrize("folder", ["v1.0"], indirect=True)
def test_lora_beside_a_t5_is_merged_for_others(folder: Path, tmp_path: Path) -> None:
    plain = DualEncoder.from_pretrained(folder)
    shape = AdapterShape(lora_rank=2, lora_targets=("query", "ffn_out"), bottleneck=0)
    modules = lively(init_adapter(shape, plain.config.backbone, seed=0), seed=1)
    ours = Adapter(shape, {"shared": modules}, plain.config, None).put_into(plain)
    vectors = ours.encode_passages(TEXTS)
    assert np.abs(vectors - plain.encode_passages(TEXTS)).max() > 0.01
    ours.save(tmp_path / "ours")
    np.testing.assert_array_equal(DualEncoder.from_pretrained(tmp_path / "ours").encode_passages(TEXTS), vectors)
    export(ours, to="sentence-transformers", out=tmp_path / "theirs")
    np.testing.assert_allclose(_encoded(tmp_path / "theirs"), vectors, rtol=0, atol=1e-5)
