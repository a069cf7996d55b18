"""Encoding in int8: near float32's vectors, made once, the same for each text whoever is beside it; refused where it is not for."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from test_export import make
from tiny import DATA, DECODER

from jaxretr import cli
from jaxretr.config import AdapterShape
from jaxretr.data.readers import read_corpus
from jaxretr.data.tokens import load_tokenizer
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.onnx import int8, program
from jaxretr.models.onnx.int8 import Cosines
from jaxretr.runtime.errors import UsageError, UserError

pytest.importorskip("onnx", reason="it writes the graph")
pytest.importorskip("onnxruntime", reason="it runs the graph")

TEXTS = [passage.text for passage in read_corpus(DATA)][:40]
ROTARY = {"backbone": dataclasses.replace(DECODER, head_dim=4), "pooling": "mean", "shared": True}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRETR_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def tokenizer(tiny_models: Path) -> Any:
    return load_tokenizer(tiny_models / "encoder_tokenizer")


def in_int8(encoder: DualEncoder) -> DualEncoder:
    return DualEncoder(encoder.config, encoder.params, encoder.tokenizer, dtype="int8")


@pytest.mark.parametrize("shape", [{"shared": True}, ROTARY], ids=["bert", "rotary"])
def test_vectors_are_near_and_a_texts_own(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: dict[str, Any]
) -> None:
    encoder = make(tokenizer, **shape)
    found = in_int8(encoder).encode_passages(TEXTS)
    cosines = Cosines.of(found, encoder.encode_passages(TEXTS))
    # Weights of 7 bits and tokens of 8; the cosines of real models, with sums of more of them, are about .996.
    assert 0.999 < cosines.mean < 1 and cosines.least > 0.998
    [kept] = (tmp_path / "cache/onnx").iterdir()
    # From here on the graph is read: nothing is compared and written again.
    with monkeypatch.context() as patch:
        patch.delattr(program, "write")
        again = in_int8(encoder)
        np.testing.assert_array_equal(again.encode_passages(TEXTS), found)
        # Sums of float32 in another order, no other scale.
        np.testing.assert_allclose(again.encode_passages(TEXTS[:1]), found[:1], rtol=0, atol=1e-4)
    (kept / "model.onnx").write_bytes(b"damaged")
    np.testing.assert_array_equal(in_int8(encoder).encode_passages(TEXTS), found)


def test_too_inexact_is_refused(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "LEAST_COSINE", 0.99999)
    for _ in range(2):
        with pytest.raises(UserError, match=r"a cosine to float32's of 0.9.*where 0.99999 on average.*bfloat16"):
            in_int8(make(tokenizer)).encode_queries(TEXTS[:1])
    assert not any((tmp_path / "cache/onnx").iterdir())


def test_what_int8_is_not_for(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="a sparse encoder is not computed in int8"):
        int8.check(dataclasses.replace(make(tokenizer).config, pooling="splade", shared=True))
    with pytest.raises(UserError, match="a parallel adapter"):
        int8.check(dataclasses.replace(make(tokenizer).config, adapter=AdapterShape(lora_rank=0, bottleneck=2)))
    encoder = make(tokenizer)
    with monkeypatch.context() as patch:
        patch.setenv("JAXRETR_ENGINE", "packed")
        with pytest.raises(UsageError, match="JAXRETR_ENGINE=packed is not for int8"):
            in_int8(encoder).encode_queries(TEXTS[:1])
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(UserError, match=r"run: pip install 'jaxretr\[export\]'"):
            in_int8(encoder)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "gpu")
        with pytest.raises(UserError, match="int8 is for encoding on CPUs, and this machine encodes on its GPU"):
            in_int8(encoder)


def test_a_store_records_int8(tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tokenizer).save(tmp_path / "model")
    store = str(tmp_path / "store")
    command = ["encode", str(tmp_path / "model"), "--corpus", str(DATA), "--out", store, "--compute"]
    assert cli.main([*command, "int8"]) == 0
    assert EmbeddingStore.open(store).meta.compute == "int8"
    assert cli.main([*command, "float32"]) == 1
    assert "was begun with --compute int8, not float32" in capsys.readouterr().err
