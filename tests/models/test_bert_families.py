"""Folders of RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT and MPNet that sentence-transformers wrote, with their own tokenizers."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from peers import sentence_transformers as peer
from peers import torch, transformers
from tiny import DATA, lively

from jaxretr import DualEncoder, export, verify
from jaxretr.config import AdapterShape
from jaxretr.data.readers import read_corpus
from jaxretr.data.tokenizer_training import train_tokenizer
from jaxretr.models.adapter import Adapter
from jaxretr.models.backbones.adapter_layers import init_adapter
from jaxretr.models.hub.encoder_params import read_checkpoint
from jaxretr.models.hub.model_shapes import encoder_shape
from jaxretr.runtime.errors import UserError

os.environ.setdefault("HF_HUB_OFFLINE", "1")

PASSAGES = [passage.text for passage in read_corpus(DATA)][:6]
# What byte-level tokenizers read around a text, and the names of special tokens in it.
SPECIAL = [" a blank before", "a line break behind\n", "<pad>", "one <pad> two </s> three <mask> [PAD] <pad>"]
TEXTS = ["", "naïve café, 1.234,5 € 東京 😀", "Paris is the capital of France. " * 20, *SPECIAL, *PASSAGES]
VOCABULARY, LENGTH = 400, 48
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": LENGTH + 2,
}
DISTILBERT = {"vocab_size": VOCABULARY, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def _byte_pairs(folder: Path) -> Any:
    """RoBERTa's: pairs of bytes."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=PIECES, initial_alphabet=alphabet)
    learnt.train_from_iterator(PASSAGES, trainer)
    learnt.model.save(str(folder))
    return transformers.RobertaTokenizer(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))


def _unigrams(kind: str) -> Callable[[Path], Any]:
    """XLM-RoBERTa's and CamemBERT's: SentencePiece's unigrams."""

    def make(_: Path) -> Any:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        learnt = Tokenizer(models.Unigram())
        learnt.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=VOCABULARY - 1, special_tokens=PIECES[:4], unk_token="<unk>")
        learnt.train_from_iterator(PASSAGES, trainer)
        pieces = [tuple(piece) for piece in json.loads(learnt.to_str())["model"]["vocab"]]
        return getattr(transformers, kind)(vocab=pieces)

    return make


def _word_pieces(kind: str, names: dict[str, str]) -> Callable[[Path], Any]:
    """DistilBERT's, and MPNet's with other names of the special tokens."""

    def make(folder: Path) -> Any:
        train_tokenizer("bert", PASSAGES, VOCABULARY, folder)
        vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        renamed = {names.get(piece, piece): id for piece, id in vocabulary.items()}
        if "<pad>" in renamed:  # Its id is 1, by which MPNet's code tells what is no position.
            (other,) = (piece for piece, id in renamed.items() if id == 1)
            renamed |= {"<pad>": 1, other: renamed["<pad>"]}
        return getattr(transformers, kind)(vocab=renamed)

    return make


MPNET = {"[CLS]": "<s>", "[PAD]": "<pad>", "[SEP]": "</s>", "[MASK]": "<mask>"}
# The classes of config and encoder, more settings, and the tokenizer.
FAMILIES: dict[str, tuple[str, dict[str, Any], Callable[[Path], Any]]] = {
    "roberta": ("Roberta", SIZES | {"pad_token_id": 1}, _byte_pairs),
    "xlm-roberta": ("XLMRoberta", SIZES | {"pad_token_id": 1, "type_vocab_size": 1}, _unigrams("XLMRobertaTokenizer")),
    "camembert": ("Camembert", SIZES | {"pad_token_id": 1, "type_vocab_size": 1}, _unigrams("CamembertTokenizer")),
    "distilbert": (
        *("DistilBert", DISTILBERT | {"max_position_embeddings": LENGTH}),
        _word_pieces("DistilBertTokenizer", {}),
    ),
    "mpnet": ("MPNet", SIZES, _word_pieces("MPNetTokenizer", MPNET)),
}


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What sentence-transformers writes: the encoder, mean pooling, vectors of length 1."""
    from sentence_transformers import models

    name, settings, make_tokenizer = FAMILIES[request.param]
    path = tmp_path_factory.mktemp(request.param)
    (path / "encoder").mkdir()
    tokenizer = make_tokenizer(path / "encoder")
    torch.manual_seed(7)
    encoder = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**settings))
    for parameter in encoder.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    encoder.save_pretrained(path / "encoder")
    tokenizer.save_pretrained(path / "encoder")
    transformer = models.Transformer(str(path / "encoder"), max_seq_length=LENGTH)
    modules = [transformer, models.Pooling(16, pooling_mode="mean"), models.Normalize()]
    peer.SentenceTransformer(modules=modules, device="cpu").save(str(path / "model"))
    return path / "model"


def _encoded(path: Path, texts: list[str] = TEXTS) -> np.ndarray:
    return peer.SentenceTransformer(str(path), device="cpu").encode(texts)


def test_vectors_are_those_of_sentence_transformers_before_and_after_the_export(folder: Path, tmp_path: Path) -> None:
    ours = DualEncoder.from_pretrained(folder)
    expected = _encoded(folder)
    vectors = ours.encode_passages(TEXTS)
    assert ours.config.backbone.architecture == folder.parent.name[:-1]
    assert ours.config.max_passage_length == LENGTH and ours.truncated >= 1
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    # Our own folder, and those of others: the same parameters, bit for bit.
    ours.save(tmp_path / "ours")
    export(ours, to="sentence-transformers", out=tmp_path / "theirs")
    export(ours, to="huggingface", out=tmp_path / "bare")
    for name in ("ours", "theirs", "bare"):
        again = DualEncoder.from_pretrained(tmp_path / name)
        assert again.config == ours.config
        jax.tree.map(np.testing.assert_array_equal, again.params, ours.params)
    np.testing.assert_allclose(_encoded(tmp_path / "theirs"), vectors, rtol=0, atol=1e-5)
    # As the bare folder's card says it is used, by transformers alone.
    assert transformers.AutoConfig.from_pretrained(tmp_path / "bare").model_type == ours.config.backbone.architecture
    verify(tmp_path / "bare", library="transformers")
    assert encoder_shape(str(tmp_path / "theirs")).backbone == ours.config.backbone


def test_onnx_gives_our_vectors(folder: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="runs the graph")
    ours = DualEncoder.from_pretrained(folder)
    export(ours, to="onnx", out=tmp_path / "onnx")
    session = runtime.InferenceSession(next((tmp_path / "onnx").rglob("*.onnx")))
    for text in (TEXTS[1], PASSAGES[0], TEXTS[2], SPECIAL[-1]):
        ids = np.array([ours.tokenizer(text, truncation=True, max_length=LENGTH)["input_ids"]])
        (found,) = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        np.testing.assert_allclose(found, ours.encode_passages([text]), rtol=0, atol=1e-5)


def test_lora_comes_and_goes_by_peft(folder: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="LoRA is compared with real PEFT: pip install peft")
    plain = DualEncoder.from_pretrained(folder)
    shape = AdapterShape(lora_rank=2, lora_targets=("query", "value", "ffn_in"), bottleneck=0)
    modules = lively(init_adapter(shape, plain.config.backbone, seed=0), seed=1)
    with_lora = Adapter(shape, {"shared": modules}, plain.config, None).put_into(plain)
    Adapter.of(with_lora).save_peft(tmp_path / "lora", str(folder))
    model = transformers.AutoModel.from_pretrained(folder)
    merged = peft.PeftModel.from_pretrained(model, tmp_path / "lora").merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    ours = with_lora.merge_lora().params["shared"]["bert"]
    theirs = read_checkpoint(tmp_path / "merged").params
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), ours, theirs)
    again = Adapter.from_pretrained(tmp_path / "lora", backbone=plain.config.backbone)
    assert again.shape.lora_targets == shape.lora_targets
    jax.tree.map(np.testing.assert_array_equal, again.params["shared"], modules)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pad_token_id": 60}, r"max_position_embeddings is 0, but must be at least 1"),
        ({"max_position_embeddings": 40}, r"position_embeddings\.weight has shape \[50, 16\], .* \[40, 16\]"),
        ({"num_attention_heads": 3}, "3 heads do not fit a hidden size of 16"),
        ({"hidden_act": "mish"}, "hidden_act 'mish'; supported: gelu"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'; only 'absolute'"),
        ({"architectures": ["MPNetModel"], "model_type": "mpnet"}, r"tensors are missing: .*attention\.attn"),
    ],
)
@pytest.mark.parametrize("folder", ["roberta"], indirect=True)
def test_config_that_does_not_fit_is_one_line(folder: Path, tmp_path: Path, change: Any, message: str) -> None:
    config = json.loads((folder / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    with pytest.raises(UserError, match=message) as caught:
        read_checkpoint(tmp_path)
    assert "\n" not in str(caught.value)
