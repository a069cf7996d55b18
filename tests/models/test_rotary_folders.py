"""Folders of decoders, ModernBERT and their kin that sentence-transformers wrote, with the special tokens of their tokenizers."""

import os
from pathlib import Path

import jax
import numpy as np
import pytest
from peers import sentence_transformers as peer
from small_encoders import MAKES, PASSAGES, make_tokenizer, write_encoder, write_modules

from jaxretr import DualEncoder, export, verify
from jaxretr.data.tokens import frame_of, question_rows
from jaxretr.models.hub.model_shapes import encoder_shape
from jaxretr.runtime.errors import UserError

os.environ.setdefault("HF_HUB_OFFLINE", "1")

# What byte-level tokenizers read around a text, and the names of special tokens in it.
SPECIAL = [" a blank before", "a line break behind\n", "<pad>", "one <pad> two </s> three <mask> [PAD] <pad>"]
TEXTS = ["naïve café, 1.234,5 € 東京 😀", "x", "Paris is the capital of France. " * 20, *SPECIAL, *PASSAGES]


@pytest.fixture(scope="module", params=[kind for kind in MAKES if kind != "roberta"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    write_modules(request.param, path)
    return path / "model"


def _encoded(path: Path) -> tuple[np.ndarray, np.ndarray]:
    model = peer.SentenceTransformer(str(path), device="cpu")
    return model.encode_query(TEXTS, batch_size=4), model.encode_document(TEXTS, batch_size=4)


def test_vectors_are_those_of_sentence_transformers_before_and_after_the_export(folder: Path, tmp_path: Path) -> None:
    ours = DualEncoder.from_pretrained(folder)
    questions, passages = ours.encode_queries(TEXTS), ours.encode_passages(TEXTS)
    assert ours.truncated >= 1 and ours.config.backbone.architecture == folder.parent.name[:-1]
    for found, expected in zip((questions, passages), _encoded(folder), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    ours.save(tmp_path / "ours")
    export(ours, to="sentence-transformers", out=tmp_path / "theirs")
    for name in ("ours", "theirs"):
        again = DualEncoder.from_pretrained(tmp_path / name)
        assert again.config == ours.config
        jax.tree.map(np.testing.assert_array_equal, again.params, ours.params)
    for found, expected in zip(_encoded(tmp_path / "theirs"), (questions, passages), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert encoder_shape(str(tmp_path / "theirs")).backbone == ours.config.backbone
    if ours.config.inner_dense:
        export(ours, to="onnx", out=tmp_path / "onnx")  # Verified by onnxruntime before it appears.
    if "STS" in (prompts := dict(ours.config.prompts)):
        for place in (folder, tmp_path / "ours", tmp_path / "theirs"):
            similar = DualEncoder.from_pretrained(place, query_prompt="STS", passage_prompt="STS").config
            assert (similar.query_prompt, similar.passage_prompt) == (prompts["STS"],) * 2 == ("as similar: ",) * 2
    if not ours.config.projection_size:  # As the bare folder's card says it is used, by transformers alone.
        export(ours, to="huggingface", out=tmp_path / "bare")
        assert DualEncoder.from_pretrained(tmp_path / "bare").config == ours.config
        verify(tmp_path / "bare", library="transformers")


@pytest.mark.parametrize("cls", [False, True])
def test_what_a_tokenizer_puts_around_a_text(cls: bool) -> None:
    """Also one that has [CLS] and [SEP] and adds something else."""
    for around, before, after in (
        (["$A"], [], []),
        (["$A", "<|endoftext|>"], [], [4]),
        (["<bos>", "$A", "<eos>"], [1], [2]),
        (["<bos>", "$A", "<eos>", "<|endoftext|>"], [1], [2, 4]),
    ):
        tokenizer = make_tokenizer(around, "left", cls=cls)
        assert frame_of(tokenizer) == (before, after)
        expected = [tokenizer(text, truncation=True, max_length=9)["input_ids"] for text in TEXTS]
        rows = question_rows(tokenizer, TEXTS, 9)
        assert rows.ids == expected and rows.truncated == sum(len(tokenizer(text)["input_ids"]) > 9 for text in TEXTS)


def test_a_bare_decoder_reads_its_last_token_and_joins_titles(tmp_path: Path) -> None:
    write_encoder("qwen3", tmp_path)
    ours = DualEncoder.from_pretrained(tmp_path)
    assert (ours.config.pooling, ours.config.passage_template) == ("lasttoken", "joined")
    assert encoder_shape(str(tmp_path)).pooling == "lasttoken"
    with pytest.raises(UserError, match=r"pooling 'cls' .*first token"):
        DualEncoder.from_pretrained(tmp_path, pooling="cls")
    with pytest.raises(UserError, match=r"no cls_token; .*passage_template 'joined'"):
        DualEncoder.from_pretrained(tmp_path, passage_template="pair").encode_passages(["x"])
