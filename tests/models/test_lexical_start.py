"""An encoder that compares words before its first step."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tiny import DATA, contrastive_config, few_padding_rows, write_models

from jaxretr.config import BertShape, ContrastiveConfig
from jaxretr.data.corpus import Corpus
from jaxretr.data.readers import read_corpus
from jaxretr.data.token_store import TokenStore, document_frequencies
from jaxretr.data.tokens import Template, load_tokenizer
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig
from jaxretr.models.starts import lexical_start
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.runs.contrastive import ContrastiveRun

PIECES = ["[PAD]", "[CLS]", "[SEP]", "running", "runs", "run", "the", "zebra", "##ing", "tiger"]
FREQUENCIES = np.array([0, 100, 100, 5, 5, 10, 99, 1, 30, 1])


def vectors_of(texts: list[list[int]], layers: int, *, size: int = 1536, normalise: bool = True) -> np.ndarray:
    """What an encoder that starts lexically makes of texts of word ids, between [CLS] and [SEP]."""
    from jaxretr.models.embed import embed

    bert = BertConfig(
        vocab_size=12, hidden_size=size, num_hidden_layers=layers, num_attention_heads=8, intermediate_size=8,
        max_position_embeddings=16,
    )  # fmt: skip
    params = {"bert": lexical_start(bert, PIECES, FREQUENCIES, 100, [0, 1, 2], 1, seed=3)}
    config = DualEncoderConfig(bert, pooling="mean", normalise=normalise)
    rows = np.zeros((len(texts), 2 + max(map(len, texts))), np.int32)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text) + 2] = [1, *text, 2]
    return np.asarray(embed(config, params, rows, np.array([len(text) + 2 for text in texts]), dtype="float32"))


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_cosines_estimate_those_of_weighted_bags_of_stems(layers: int) -> None:
    texts = [[3, 7], [4, 9], [7, 9], [6, 6, 6], [6, 7, 9], [7, 6, 9], [7, 7, 7, 9]]
    vectors = vectors_of(texts, layers)
    found = vectors @ vectors.T

    stems = np.array([0, 1, 2, 3, 3, 3, 4, 5, 6, 7])
    frequency = np.array([0, 100, 100, 20, 20, 20, 99, 1, 30, 1])
    weight = np.log(1 + (100 - frequency + 0.5) / (frequency + 0.5))
    weight[:3] = 0
    bags = np.zeros((len(texts), 8))
    for bag, text in zip(bags, texts, strict=True):
        for token in text:
            copies = sum(stems[other] == stems[token] for other in text)
            bag[stems[token]] += np.sqrt(weight[token]) * (0.9 / (copies + 0.9) if layers else 1)
    bags /= np.linalg.norm(bags, axis=1, keepdims=True)
    tolerance = 0.12 if layers == 0 else 0.2  # 4 / sqrt(1536); random layers add their noise
    np.testing.assert_allclose(found, bags @ bags.T, atol=tolerance)
    if layers == 0:
        np.testing.assert_allclose(vectors[4], vectors[5], atol=1e-6, err_msg="the order of the words says nothing")


def test_a_layer_makes_repeated_words_count_as_bm25_does() -> None:
    """tf / (tf + k1), up to what other words' codes look alike."""
    counts = np.array([1, 2, 5, 12])
    texts = [[7] * count for count in counts] + [[9, 7, 8] + [7] * (count - 1) for count in counts]
    lengths = np.array([len(text) + 2 for text in texts])
    # Without the mean's division by the length, along one zebra.
    vectors = vectors_of(texts, 1, normalise=False) * lengths[:, None]
    zebras = vectors @ vectors[0] / (vectors[0] @ vectors[0])
    expected = 1.9 * counts / (counts + 0.9)
    np.testing.assert_allclose(zebras[:4], expected, rtol=0.02)
    np.testing.assert_allclose(zebras[4:] - zebras[4] + 1, expected, rtol=0.05)


def test_heads_too_small_to_tell_words_apart_leave_the_layers_as_they_are() -> None:
    vectors = vectors_of([[7], [7] * 5, [9, 7]], 1, size=128, normalise=False) * np.array([3, 7, 4])[:, None]
    zebras = vectors @ vectors[0] / (vectors[0] @ vectors[0])
    assert zebras[1] > 3.5  # five count nearly five times as much: no saturation
    assert np.isfinite(vectors).all()


def test_document_frequencies_count_each_row_once(tmp_path: Path) -> None:
    write_models(tmp_path)
    tokenizer = load_tokenizer(tmp_path / "encoder")
    texts = ["a b a", "", "b the the the", "zebra"]
    corpus = Corpus(list("wxyz"), [""] * 4, texts)
    store = TokenStore.build(tmp_path / "tokens", corpus, tokenizer, Template.PASSAGE_PAIR, 16)
    rows = [set(store.row(i).tolist()) for i in range(4)]
    expected = [sum(token in row for row in rows) for token in range(len(tokenizer))]
    assert document_frequencies(store, len(tokenizer)).tolist() == expected


def config(folder: Path, **encoder: object) -> ContrastiveConfig:
    plain = contrastive_config(folder, data={"dev_questions": str(DATA), "dev_qrels": str(DATA / "qrels/train.tsv")})
    encoder = {"fresh": BertShape(128, 0, 2, 8), "pooling": "mean", "normalise": True, "shared": True, **encoder}
    return dataclasses.replace(plain, encoder=dataclasses.replace(plain.encoder, **encoder))


def test_a_run_that_starts_lexically_finds_passages_at_once(tmp_path: Path) -> None:
    write_models(tmp_path)
    found = {}
    with few_padding_rows():
        for start in ("random", "lexical"):
            run = ContrastiveRun(config(tmp_path, fresh_start=start), make_mesh(), tmp_path / start)
            state = run.init()
            found[start] = run.evaluate(state)["mrr@10"]
    assert found["lexical"] > found["random"] + 0.2, found
    run.save_model(state, tmp_path / "model")
    encoder = DualEncoder.from_pretrained(tmp_path / "model")
    passages = encoder.encode_passages(list(read_corpus(DATA)))
    assert encoder.config.backbone.num_hidden_layers == 0 and passages.shape == (20, 128)
    assert np.isfinite(passages).all() and len(np.unique(passages.round(5), axis=0)) == 20


@pytest.mark.parametrize(
    ("encoder", "words"),
    [
        ({"fresh": None, "fresh_start": "lexical"}, "set encoder.fresh"),
        ({"fresh": BertShape(15, 1, 2, 8)}, "do not divide"),
        ({"passage_path": "elsewhere"}, "leave one of them out"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, encoder: dict[str, object], words: str) -> None:
    write_models(tmp_path)
    with pytest.raises(UsageError, match=words):
        ContrastiveRun(config(tmp_path, **encoder), make_mesh(), tmp_path / "run")
