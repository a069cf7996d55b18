"""Folders of decoders, ModernBERT and their kin that sentence-transformers wrote, with the special tokens of their tokenizers."""

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from peers import sentence_transformers as peer
from peers import torch, transformers
from tiny import DATA

from jaxretr import DualEncoder, export, verify
from jaxretr.data.readers import read_corpus
from jaxretr.data.tokens import frame_of, question_rows
from jaxretr.errors import UserError
from jaxretr.models.formats.model_shapes import encoder_shape

os.environ.setdefault("HF_HUB_OFFLINE", "1")

PASSAGES = [passage.text for passage in read_corpus(DATA)][:6]
TEXTS = ["naïve café, 1.234,5 € 東京 😀", "x", "Paris is the capital of France. " * 20, *PASSAGES]
VOCABULARY, LENGTH = 400, 48
PIECES = ["<pad>", "<bos>", "<eos>", "<unk>", "<|endoftext|>"]
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
HEADS = SIZES | {"num_key_value_heads": 2, "head_dim": 8}
PROMPTS = {"query": "Instruct: find it\nQuery: ", "document": "", "STS": "as similar: "}

# Class, settings, special ids around a text, padding side, pooling, sizes and activations of Dense, prompts.
FOLDERS: dict[str, tuple[str, dict[str, Any], list[str], str, str, list[tuple[int, str]], dict[str, str]]] = {
    # As Qwen3-Embedding: an appended end token, padding on the left, the last token.
    "qwen3": ("Qwen3", HEADS, ["$A", "<|endoftext|>"], "left", "lasttoken", [], PROMPTS),
    # As e5-mistral: both ends.
    "mistral": ("Mistral", HEADS | {"sliding_window": 6}, ["<bos>", "$A", "<eos>"], "right", "lasttoken", [], PROMPTS),
    # No special tokens at all.
    "qwen2": ("Qwen2", HEADS | {"head_dim": 4}, ["$A"], "left", "mean", [], {}),
    "llama": ("Llama", HEADS, ["<bos>", "$A"], "left", "weightedmean", [(6, "Tanh")], {}),
    # As EmbeddingGemma: both directions, the mean, two Dense layers.
    "gemma3_text": (
        *("Gemma3Text", HEADS | {"use_bidirectional_attention": True, "sliding_window": 8}),
        *(["<bos>", "$A", "<eos>"], "right", "mean", [(24, "Identity"), (12, "Identity")], PROMPTS),
    ),
    "modernbert": (
        *("ModernBert", SIZES | {"local_attention": 8, "bos_token_id": 1, "eos_token_id": 2}),
        *(["<bos>", "$A", "<eos>"], "right", "cls", [], {"query": "search_query: ", "document": "search_document: "}),
    ),
    "nomic_bert": ("NomicBert", SIZES, ["<bos>", "$A", "<eos>"], "right", "mean", [], PROMPTS),
    "gte": ("Gte", SIZES, ["<bos>", "$A", "<eos>"], "right", "cls", [], {}),
}


def make_tokenizer(around: list[str], side: str, *, cls: bool) -> Any:
    """Pairs of bytes, and special tokens put around a text by the tokenizer itself."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learnt.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learnt.train_from_iterator(
        PASSAGES, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=PIECES, initial_alphabet=alphabet)
    )
    special = [(piece, PIECES.index(piece)) for piece in around if piece != "$A"]
    if special:
        learnt.post_processor = processors.TemplateProcessing(single=around, special_tokens=special)
    names = {"cls_token": "<bos>", "sep_token": "<eos>"} if cls else {}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=learnt, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side=side, **names
    )


@pytest.fixture(scope="module", params=FOLDERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What sentence-transformers writes."""
    from sentence_transformers import models

    name, settings, around, side, pooling, dense, prompts = FOLDERS[request.param]
    path = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(7)
    encoder = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**settings))
    for parameter in encoder.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    encoder.save_pretrained(path / "encoder")
    # ModernBERT and its kin have [CLS] and [SEP]; decoders have not.
    make_tokenizer(around, side, cls=request.param in ("modernbert", "nomic_bert", "gte")).save_pretrained(
        path / "encoder"
    )
    modules = [
        models.Transformer(str(path / "encoder"), max_seq_length=LENGTH),
        models.Pooling(16, pooling_mode=pooling),
    ]
    inputs = 16
    for size, activation in dense:
        modules.append(models.Dense(inputs, size, bias=size != 12, activation_function=getattr(torch.nn, activation)()))
        inputs = size
    modules.append(models.Normalize())
    peer.SentenceTransformer(modules=modules, device="cpu", prompts=prompts).save(str(path / "model"))
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
    if "STS" in (prompts := dict(ours.config.prompts)):
        for place in (folder, tmp_path / "ours", tmp_path / "theirs"):
            similar = DualEncoder.from_pretrained(place, query_prompt="STS", passage_prompt="STS").config
            assert (similar.query_prompt, similar.passage_prompt) == (prompts["STS"],) * 2 == ("as similar: ",) * 2
    if not ours.config.projection_size:  # As the bare folder's card says it is used, by transformers alone.
        export(ours, to="huggingface", out=tmp_path / "bare")
        assert DualEncoder.from_pretrained(tmp_path / "bare").config == ours.config
        verify(tmp_path / "bare", library="transformers")


def test_what_a_tokenizer_puts_around_a_text() -> None:
    for around, before, after in (
        (["$A"], [], []),
        (["$A", "<|endoftext|>"], [], [4]),
        (["<bos>", "$A", "<eos>"], [1], [2]),
        (["<bos>", "$A", "<eos>", "<|endoftext|>"], [1], [2, 4]),
    ):
        tokenizer = make_tokenizer(around, "left", cls=False)
        assert frame_of(tokenizer) == (before, after)
        expected = [tokenizer(text, truncation=True, max_length=9)["input_ids"] for text in TEXTS]
        rows = question_rows(tokenizer, TEXTS, 9)
        assert rows.ids == expected and rows.truncated == sum(len(tokenizer(text)["input_ids"]) > 9 for text in TEXTS)


def test_a_bare_decoder_reads_its_last_token_and_joins_titles(tmp_path: Path) -> None:
    transformers.Qwen3Model(transformers.Qwen3Config(**HEADS)).save_pretrained(tmp_path)
    make_tokenizer(["$A", "<|endoftext|>"], "left", cls=False).save_pretrained(tmp_path)
    ours = DualEncoder.from_pretrained(tmp_path)
    assert (ours.config.pooling, ours.config.passage_template) == ("lasttoken", "joined")
    assert encoder_shape(str(tmp_path)).pooling == "lasttoken"
    with pytest.raises(UserError, match="pooling 'cls' reads the first token, which sees no other"):
        DualEncoder.from_pretrained(tmp_path, pooling="cls")
    with pytest.raises(UserError, match=r"no cls_token; .* or give passage_template 'joined'"):
        DualEncoder.from_pretrained(tmp_path, passage_template="pair").encode_passages(["x"])
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["model_type"] == "qwen3"
