"""Sparse encoders whose questions no encoder reads, against sentence-transformers: their folders, programs, training."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_runs
from jax.sharding import Mesh
from peers import sentence_transformers, torch
from safetensors.numpy import load_file
from test_sparse_encoder import TEXTS, sparse_config, write_masked_lm
from tiny import DATA, compiled_quickly, few_padding_rows

import jaxretr
from jaxretr.data.readers import read_questions
from jaxretr.data.token_store import document_frequencies
from jaxretr.data.tokens import load_tokenizer
from jaxretr.models.backbones.term_weights import QUERY_WEIGHTS
from jaxretr.models.embed import embed
from jaxretr.models.sparse_encoder import SparseEncoder
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.loop import train
from jaxretr.training.runs.contrastive import ContrastiveRun

QUESTIONS = [*TEXTS, "the ice, the ice and the first of the ice", "[SEP] is it [UNK]"]


@pytest.fixture(scope="module")
def masked(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_masked_lm(tmp_path_factory.mktemp("masked"), tiny_models)


@pytest.fixture(scope="module")
def theirs(masked: Path) -> Any:
    """sentence-transformers' encoder with a weight for each word of a question, a few of which are 0."""
    models = pytest.importorskip("sentence_transformers.sparse_encoder.modules", reason="it is compared with")
    tokenizer = load_tokenizer(masked)
    weights = np.maximum(np.random.default_rng(5).normal(1, 0.7, len(tokenizer.get_vocab())), 0).astype(np.float32)
    query = models.SparseStaticEmbedding(tokenizer=tokenizer, weight=torch.tensor(weights), frozen=True)
    document = [models.MLMTransformer(str(masked)), models.SpladePooling("max")]
    router = models.Router.for_query_document(query_modules=[query], document_modules=document)
    return sentence_transformers.SparseEncoder(modules=[router], similarity_fn_name="dot", device="cpu")


def _vectors(model: Any) -> tuple[np.ndarray, np.ndarray]:
    how = {"convert_to_sparse_tensor": False, "show_progress_bar": False}
    return model.encode_query(QUESTIONS, **how).numpy(), model.encode_document(TEXTS, **how).numpy()


def test_a_router_is_read_saved_and_exported(theirs: Any, tmp_path: Path) -> None:
    theirs.save_pretrained(str(tmp_path / "theirs"))
    ours = SparseEncoder.from_pretrained(tmp_path / "theirs")
    assert ours.config.query_weights == "frozen" and not ours.config.shared
    expected = _vectors(theirs)
    assert (expected[0] > 0).any(axis=1).sum() == len(QUESTIONS) - 1, "one is empty"
    found = ours.encode_queries(QUESTIONS), ours.encode_passages(TEXTS)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    ours.save(tmp_path / "saved")
    jaxretr.export(ours, to="sentence-transformers", out=tmp_path / "exported")
    for name in ("saved", "exported"):
        again = SparseEncoder.from_pretrained(tmp_path / name)
        assert again.config == ours.config
        np.testing.assert_array_equal(again.encode_queries(QUESTIONS), found[0])
        np.testing.assert_array_equal(again.encode_passages(TEXTS), found[1])
    exported = sentence_transformers.SparseEncoder(str(tmp_path / "exported"), device="cpu")
    for one, other in zip(found, _vectors(exported), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert exported[0].sub_modules["query"][0].frozen
    jaxretr.verify(tmp_path / "exported", library="sentence-transformers")
    # The program of a training step gives what the host looks up, in padded rows and in packed ones.
    rows, _ = ours.tokenise("question", QUESTIONS)
    padded = np.array([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])
    lengths = np.array([len(row) for row in rows])
    tower = jax.tree.map(jnp.asarray, ours.params["question"])
    np.testing.assert_array_equal(embed(ours.config, tower, padded, lengths, dtype=jnp.float32), found[0])
    packed = np.array([[id for row in rows for id in row] + [7] * 5])
    np.testing.assert_array_equal(embed(ours.config, tower, packed, lengths[None], dtype=jnp.float32), found[0])
    # Words by their names, as OpenSearch's idf.json has them.
    weights = load_file(tmp_path / "exported/question/model.safetensors")["weight"]
    words = ours.tokenizer.convert_ids_to_tokens(list(range(len(weights))))
    place = tmp_path / "exported/question"
    (place / "idf.json").write_text(json.dumps(dict(zip(words, weights.tolist(), strict=True))))
    (place / "config.json").write_text(json.dumps({"frozen": False, "path": "idf.json"}))
    named = SparseEncoder.from_pretrained(tmp_path / "exported")
    assert named.config.query_weights == "learnt"
    np.testing.assert_array_equal(named.encode_queries(QUESTIONS), found[0])
    # Searching is as with any other sparse encoder.
    store = jaxretr.encode(ours, corpus=DATA, out=tmp_path / "store")
    asked = read_questions(DATA)[:5]
    hits = jaxretr.search(ours, store.folder, queries=asked, k=3).hits
    scores = ours.encode_queries([each.text for each in asked]) @ store.rows(0, store.meta.rows).T
    np.testing.assert_allclose([each.scores[0] for each in hits], scores.max(axis=1), rtol=1e-5)


def test_what_a_router_cannot_be(theirs: Any, masked: Path, tmp_path: Path) -> None:
    theirs.save_pretrained(str(tmp_path / "theirs"))
    ours, path = SparseEncoder.from_pretrained(tmp_path / "theirs"), tmp_path / "theirs/router_config.json"
    config = json.loads(path.read_text())
    path.write_text(
        json.dumps({**config, "structure": {**config["structure"], "query": config["structure"]["document"]}})
    )
    with pytest.raises(
        UserError, match=r"router_config.json: a Router with the routes query: MLMTransformer|Transformer"
    ):
        SparseEncoder.from_pretrained(tmp_path / "theirs")
    path.write_text(json.dumps({**config, "types": {}}))
    with pytest.raises(UserError, match=r"router_config.json: no routes with the types"):
        SparseEncoder.from_pretrained(tmp_path / "theirs")
    with pytest.raises(UserError, match="transformers has no place for query weights"):
        jaxretr.export(ours, to="huggingface", out=tmp_path / "hf")
    for wrong in ({"shared": True}, {"pooling": "mean"}):
        with pytest.raises(UserError, match="query_weights take the place of a sparse encoder's question tower"):
            ContrastiveRun(_config(masked, tmp_path, encoder=wrong), None, tmp_path / "run")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match=r"contrastive.flops_questions: query weights add no words"):
        run = _config(masked, tmp_path, contrastive={"flops_questions": 0.1})
        ContrastiveRun(run, make_mesh(jax.devices()[:1]), tmp_path / "run")


# ---- training --------------------------------------------------------------------------------------------------------


def _config(masked: Path, tmp_path: Path, **changes: Any) -> Any:
    encoder = {"shared": False, "query_weights": "learnt", **changes.pop("encoder", {})}
    objective = {"flops_passages": 0.02, "flops_warmup": 2, **changes.pop("contrastive", {})}
    return sparse_config(masked, tmp_path, encoder=encoder, contrastive=objective, **changes)


def test_weights_begin_at_the_idf_and_learn_or_stay(masked: Path, tmp_path: Path, mesh1: Mesh) -> None:
    trained = {}
    for kind in ("learnt", "frozen"):
        config = _config(masked, tmp_path / kind, encoder={"query_weights": kind})
        run = ContrastiveRun(config, mesh1, tmp_path / kind / "first")
        first: Any = run.first_model().params["question"][QUERY_WEIGHTS]
        holders = document_frequencies(run.store, len(first))
        np.testing.assert_allclose(first, np.log1p((run.store.num_rows - holders + 0.5) / (holders + 0.5)), rtol=1e-6)
        run.programs.step = compiled_quickly(run.programs.step)
        state, _ = run.step(run.init(), 0, run.batch(0))
        run.save_model(state, tmp_path / kind / "model")
        found = load_file(tmp_path / kind / "model/model.safetensors")
        weights = trained[kind] = found[f"question.{QUERY_WEIGHTS}"]
        assert (weights == first).all() == (kind == "frozen") and found["passage.words_head.bias"].any()
        assert SparseEncoder.from_pretrained(tmp_path / kind / "model").config.query_weights == kind
    # A run that starts from such a model goes on with its weights.
    config = _config(tmp_path / "learnt/model", tmp_path / "again", encoder={"query_weights": None})
    again: Any = ContrastiveRun(config, mesh1, tmp_path / "again/run").first_model()
    np.testing.assert_array_equal(again.params["question"][QUERY_WEIGHTS], trained["learnt"])


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_weights(masked: Path, tmp_path: Path) -> None:
    config = _config(masked, tmp_path, train={"save_every": 2})
    whole = train(config, tmp_path / "whole")
    assert small_runs.train_killed_once(ContrastiveRun, config, tmp_path / "resumed", at=2) == whole
    first, second = (load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "resumed"))
    assert first.keys() == second.keys() and all(np.array_equal(each, second[name]) for name, each in first.items())


def test_gradients_of_query_weights(theirs: Any, tmp_path: Path) -> None:
    theirs.save_pretrained(str(tmp_path / "theirs"))
    ours = SparseEncoder.from_pretrained(tmp_path / "theirs")
    rows, _ = ours.tokenise("question", QUESTIONS)
    padded = np.array([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])
    lengths, factors = np.array([len(row) for row in rows]), np.random.default_rng(3).normal(size=(len(rows), 1))

    def score(weights: jax.Array) -> jax.Array:
        vectors = embed(ours.config, {QUERY_WEIGHTS: weights}, padded, lengths, dtype=jnp.float32)
        return (factors * vectors**2).sum()

    module = theirs[0].sub_modules["query"][0]
    module.weight.requires_grad_(True)
    vectors = module(module.preprocess(QUESTIONS))["sentence_embedding"]
    (torch.tensor(factors) * vectors**2).sum().backward()
    found = jax.grad(score)(jnp.asarray(ours.params["question"][QUERY_WEIGHTS]))
    np.testing.assert_allclose(found, module.weight.grad, atol=1e-5)
    module.weight.requires_grad_(False)


def test_two_devices_and_packed_rows_give_the_same_gradients(
    masked: Path,
    tmp_path: Path,
    mesh1: Mesh,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for mesh, engine in ((mesh1, "padded"), (make_mesh(jax.devices()[:2]), "packed")):
        monkeypatch.setenv("JAXRETR_ENGINE", engine)
        with few_padding_rows():
            run = ContrastiveRun(_config(masked, tmp_path), mesh, tmp_path / engine)
        run.programs.step = compiled_quickly(run.programs.step)
        state, _ = run.step(run.init(), 0, run.batch(0))
        found.append(small_runs.first_gradients(state))
    assert next(leaf for name, leaf in found[0].items() if QUERY_WEIGHTS in name).any()
    small_runs.assert_gradients_equal(found[1], found[0])
