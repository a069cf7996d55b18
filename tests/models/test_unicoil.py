"""UniCOIL: any encoder as a sparse one that weighs a text's own words, against its definition in torch."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from peers import torch, transformers
from test_sparse_encoder import sparse_config
from tiny import DATA, compiled_quickly, lively

import jaxretr
from jaxretr.models.backbones.term_weights import TERM_HEAD, unicoil_weights
from jaxretr.models.embed import abstract_params
from jaxretr.models.sparse_encoder import SparseEncoder
from jaxretr.runtime.errors import UserError
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.runs.encoder_start import encoder_config

TEXTS = ["the ice of the cave and the ice", "", "how are glacier caves formed, and who found the first of them", "a"]


def _encoder(tiny_models: Path) -> SparseEncoder:
    """A BERT without a head of masked language modelling, with a head that gives half of the tokens no weight."""
    made = SparseEncoder.from_pretrained(tiny_models / "encoder", pooling="unicoil", passage_template="pair")
    tower = lively(made.params["shared"], 3, 0.3)
    kernel = np.random.default_rng(2).normal(size=tower[TERM_HEAD]["kernel"].shape).astype(np.float32)

    def of_bias(bias: float) -> Any:
        head = {"kernel": kernel, "bias": np.full(1, bias, np.float32)}
        return made.replaced(made.config, {"shared": {**tower, TERM_HEAD: head}})

    positive = of_bias(100.0).encode_passages(TEXTS)
    return of_bias(100.0 - float(np.median(positive[positive > 0])))


@pytest.mark.parametrize("engine", ["padded", "packed"])
def test_weights_and_gradients_are_the_definition_in_torch(
    engine: str, tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXRETR_ENGINE", engine)
    encoder = _encoder(tiny_models)
    found = encoder.encode_passages(TEXTS)
    # Its layers in transformers, and its head here.
    encoder_alone = jaxretr.DualEncoder.bare(tiny_models / "encoder")
    bert = {"shared": {"bert": encoder.params["shared"]["bert"]}}
    jaxretr.export(encoder_alone.replaced(encoder_alone.config, bert), to="huggingface", out=tmp_path / "bert")
    model = transformers.BertModel.from_pretrained(tmp_path / "bert", add_pooling_layer=False).eval()
    rows, _ = encoder.tokenise("passage", TEXTS)
    head = encoder.params["shared"][TERM_HEAD]
    kernel, bias = torch.tensor(head["kernel"], requires_grad=True), float(head["bias"][0])
    factors = np.random.default_rng(4).normal(size=found.shape).astype(np.float32)
    expected, special, loss, states = np.zeros_like(found), encoder.tokenizer.all_special_ids, 0, []
    for number, row in enumerate(rows):
        with torch.no_grad():
            states.append(model(torch.tensor([row])).last_hidden_state[0])
        weights = (states[-1] @ kernel + bias)[:, 0].relu()
        for word in set(row) - set(special):
            best = torch.stack([weight for weight, id in zip(weights, row, strict=True) if id == word]).amax()
            loss += float(factors[number, word]) * best
            expected[number, word] = best.item()
    assert 0.1 < (expected > 0).sum() / sum(len(set(row)) for row in rows) < 0.9
    np.testing.assert_allclose(found, expected, atol=1e-5)
    loss.backward()
    width, lengths = max(map(len, rows)), np.array([len(row) for row in rows])
    tokens = np.array([row + [0] * (width - len(row)) for row in rows])
    padded = np.stack([np.pad(each, ((0, width - len(each)), (0, 0)), constant_values=9) for each in states])

    def product(kernel: jax.Array) -> jax.Array:
        own = {"kernel": kernel, "bias": head["bias"]}
        ignored = encoder.config.ignored_tokens
        return (factors * unicoil_weights(own, padded, tokens, lengths, ignored, found.shape[1])).sum()

    np.testing.assert_allclose(jax.grad(product)(jnp.asarray(head["kernel"])), kernel.grad, atol=1e-4)


def test_folders_stores_and_exports(tiny_models: Path, tmp_path: Path) -> None:
    encoder = _encoder(tiny_models)
    found = encoder.encode_passages(TEXTS)
    encoder.save(tmp_path / "saved")
    np.testing.assert_array_equal(SparseEncoder.from_pretrained(tmp_path / "saved").encode_passages(TEXTS), found)
    store = jaxretr.encode(encoder, corpus=DATA, out=tmp_path / "store")
    jaxretr.export(encoder, index=store, to="pyserini", out=tmp_path / "impacts", corpus=DATA)
    for to, message in (("sentence-transformers", "no module for UniCOIL"), ("huggingface", "no place for UniCOIL")):
        with pytest.raises(UserError, match=message):
            jaxretr.export(encoder, to=to, out=tmp_path / to)
    # Before any training every word weighs 1, whatever pooling the folder states, and special tokens nothing.
    dense = jaxretr.DualEncoder.from_pretrained(tiny_models / "encoder", pooling="mean", normalise=True)
    dense.save(tmp_path / "dense")
    new = SparseEncoder.from_pretrained(tmp_path / "dense", pooling="unicoil")
    assert set(np.unique(new.encode_queries(TEXTS))) == {0.0, 1.0}
    pieces = new.tokenizer.tokenize("the ice, the ice")
    assert len(pieces) > len(set(pieces))
    assert new.words(new.encode_queries(["the ice, the ice"])) == [
        dict.fromkeys(sorted(pieces, key=new.tokenizer.get_vocab().get), 1.0)
    ]


def test_a_dense_encoder_is_trained_to_weigh_words(tiny_models: Path, tmp_path: Path, mesh1: Mesh) -> None:
    dense = jaxretr.DualEncoder.from_pretrained(tiny_models / "encoder", pooling="mean", normalise=True)
    dense.save(tmp_path / "dense")
    config = sparse_config(tmp_path / "dense", tmp_path, encoder={"pooling": "unicoil"})
    run = ContrastiveRun(config, mesh1, tmp_path / "run")
    run.programs.step = compiled_quickly(run.programs.step)
    state, _ = run.step(run.init(), 0, run.batch(0))
    run.save_model(state, tmp_path / "model")
    trained = SparseEncoder.from_pretrained(tmp_path / "model")
    assert np.asarray(trained.params["shared"][TERM_HEAD]["kernel"]).any() and trained.config.ignored_tokens
    assert trained.config == encoder_config(config.encoder, trained.config)
    shapes = jax.tree.map(lambda x: x.shape, trained.params)
    assert shapes == jax.tree.map(lambda x: x.shape, abstract_params(encoder_config(config.encoder)))
