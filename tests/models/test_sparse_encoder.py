"""Learned sparse encoders: their vectors and losses against sentence-transformers', their stores, their search, training."""

import dataclasses
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_runs
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from peers import sentence_transformers, torch
from safetensors.numpy import load_file
from tiny import (
    BERT,
    DATA,
    art_config,
    compiled_quickly,
    contrastive_config,
    few_padding_rows,
    lively,
    write_supervised,
)

import jaxretr
from jaxretr.config import SPLADE, Contrastive
from jaxretr.data.corpus import Corpus
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.data.tokens import load_tokenizer
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.embeddings.vector_files import SparseRows
from jaxretr.indexes.checks import check_model
from jaxretr.indexes.exact import sparse
from jaxretr.indexes.exact.sparse import SparseIndex, SparseIndexes
from jaxretr.indexes.index import SearchOptions
from jaxretr.indexes.interchange import pyserini
from jaxretr.indexes.opening import open_index
from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.models.backbones.masked_lm import fresh_head, word_weights
from jaxretr.models.hub.dual_encoder_folder import use_note
from jaxretr.models.hub.encoder_params import export_encoder
from jaxretr.models.hub.hf_folder import write_folder
from jaxretr.models.hub.model_shapes import encoder_shape
from jaxretr.models.sparse_encoder import SparseEncoder
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.mesh import DATA as DEVICES
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.serve.loading import Parts
from jaxretr.training.loop import train
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.runs import whole_corpus
from jaxretr.training.runs.art import ArtRun
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.steps.batch_loss import sparsity

TEXTS = ["what is it", "", "how are glacier caves formed and who found the first of them in the ice", "a"]


def write_masked_lm(folder: Path, tiny_models: Path) -> Path:
    """Write a BertForMaskedLM with the tokenizer of the tiny models, half of whose scores are below 0."""
    encoder = jaxretr.DualEncoder.from_pretrained(tiny_models / "encoder")
    params = lively(encoder.params["shared"]["bert"], 3, 0.3)
    tensors = export_encoder(BERT, params, mlm_head=lively(fresh_head(BERT, 1), 4, 0.3))
    write_folder(folder, *tensors, load_tokenizer(tiny_models / "encoder"))
    return folder


@pytest.fixture(scope="module")
def masked(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_masked_lm(tmp_path_factory.mktemp("masked"), tiny_models)


def load(masked: Path, **settings: Any) -> SparseEncoder:
    lengths = {"max_question_length": 16, "max_passage_length": 48}
    return jaxretr.SparseEncoder.from_pretrained(masked, passage_template="joined", **lengths, **settings)


@pytest.fixture(scope="module")
def encoder(masked: Path) -> SparseEncoder:
    return load(masked)


@pytest.fixture(scope="module")
def store(encoder: SparseEncoder, tmp_path_factory: pytest.TempPathFactory) -> EmbeddingStore:
    return jaxretr.encode(encoder, corpus=DATA, out=tmp_path_factory.mktemp("store"), shard_rows=7)


# ---- the encoder -----------------------------------------------------------------------------------------------------


def test_a_head_takes_the_place_of_a_stated_pooling(
    encoder: SparseEncoder, masked: Path, tiny_models: Path, tmp_path: Path
) -> None:
    settings: Any = {"pooling": "mean", "normalise": True, "max_question_length": 16, "max_passage_length": 48}
    dense = jaxretr.DualEncoder.from_pretrained(masked, passage_template="joined", **settings)
    dense.save(tmp_path / "ours")
    # As a run of masked language modelling that began from this encoder leaves its model.
    shutil.copytree(masked, tmp_path / "noted")
    use_note(dense.config).write(tmp_path / "noted")
    for folder in (tmp_path / "ours", tmp_path / "noted"):
        found = SparseEncoder.from_pretrained(folder, pooling="splade")
        assert found.config == encoder.config == encoder_shape(str(folder), pooling="splade")
        np.testing.assert_array_equal(found.encode_passages(TEXTS), encoder.encode_passages(TEXTS))
        with pytest.raises(UserError, match="has pooling 'mean' and is no sparse encoder"):
            SparseEncoder.from_pretrained(folder)
    jaxretr.DualEncoder.from_pretrained(tiny_models / "encoder", pooling="mean").save(tmp_path / "headless")
    with pytest.raises(UserError, match="train a head of masked language modelling"):
        SparseEncoder.from_pretrained(tmp_path / "headless", pooling="splade")


@pytest.mark.parametrize("engine", ["padded", "packed"])
def test_vectors_are_those_of_sentence_transformers(
    engine: str, masked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("sentence_transformers", reason="it is compared with")
    monkeypatch.setenv("JAXRETR_ENGINE", engine)
    encoder = load(masked)
    exported = jaxretr.export(encoder, to="sentence-transformers", out=tmp_path / "exported")
    assert "golden vectors recomputed" in str(exported)
    theirs = library.SparseEncoder(str(tmp_path / "exported"), device="cpu")
    expected = theirs.encode_document(TEXTS, convert_to_sparse_tensor=False).numpy()
    theirs.save_pretrained(str(tmp_path / "theirs"))
    assert 0.2 < (expected > 0).mean() < 0.8
    ours = encoder.encode_passages(TEXTS)
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    for folder in ("exported", "theirs"):
        again = SparseEncoder.from_pretrained(tmp_path / folder)
        np.testing.assert_array_equal(again.encode_passages(TEXTS), ours)
    if engine == "packed":  # the slow part is the same for both
        return
    assert "sentence-transformers" in str(jaxretr.verify(tmp_path / "exported", library="sentence-transformers"))
    jaxretr.export(encoder, to="huggingface", out=tmp_path / "hf")
    jaxretr.verify(tmp_path / "hf", library="transformers")
    np.testing.assert_array_equal(SparseEncoder.from_pretrained(tmp_path / "hf").encode_passages(TEXTS), ours)
    two = encoder.replaced(
        dataclasses.replace(encoder.config, shared=False),
        {"question": encoder.params["shared"], "passage": jax.tree.map(lambda x: 1.01 * x, encoder.params["shared"])},
    )
    for to in ("huggingface", "sentence-transformers"):
        jaxretr.export(two, to=to, out=tmp_path / f"two-{to}")
        again = SparseEncoder.from_pretrained(tmp_path / f"two-{to}")
        assert not again.config.shared
        np.testing.assert_array_equal(again.encode_passages(TEXTS), two.encode_passages(TEXTS))
    encoder.save(tmp_path / "saved")
    np.testing.assert_array_equal(SparseEncoder.from_pretrained(tmp_path / "saved").encode_passages(TEXTS), ours)
    sparse = encoder.sparse("passage", TEXTS)
    np.testing.assert_array_equal(sparse.toarray(), ours)
    np.testing.assert_array_equal(encoder.sparse("passage", iter(TEXTS)).toarray(), ours)
    assert encoder.words(sparse[[0]], 3) == encoder.words(ours[:1], 3)
    for wrong in (lambda: encoder.words(ours, "10"), lambda: encoder.words([1, 2]), lambda: encoder.words("text")):
        with pytest.raises(UsageError, match=r"most='10': give a whole number|vectors: expected numbers"):
            wrong()
    [words] = encoder.words(ours[:1])
    best = encoder.tokenizer.convert_ids_to_tokens(int(ours[0].argmax()))
    assert next(iter(words)) == best and len(words) == (ours[0] > 0).sum()


@pytest.mark.parametrize("engine", ["padded", "packed"])
@pytest.mark.parametrize("pooling", ["splade_sum", "splade_log1p", "splade_sum_log1p"])
def test_other_strategies_and_activations_are_sentence_transformers(
    pooling: Any, engine: str, masked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = pytest.importorskip("sentence_transformers.sparse_encoder.modules", reason="it is compared with")
    monkeypatch.setenv("JAXRETR_ENGINE", engine)
    encoder = load(masked, pooling=pooling)
    ours, parts = (
        encoder.encode_passages(TEXTS),
        [modules.MLMTransformer(str(masked)), modules.SpladePooling(*SPLADE[pooling])],
    )
    theirs = sentence_transformers.SparseEncoder(modules=parts, device="cpu")
    expected = theirs.encode_document(TEXTS, convert_to_sparse_tensor=False).numpy()
    np.testing.assert_allclose(ours, expected, atol=1e-5, rtol=1e-5)
    theirs.save_pretrained(str(tmp_path / "theirs"))
    for to in ("jaxretr", "sentence-transformers", "huggingface"):
        jaxretr.export(encoder, to=to, out=tmp_path / to)
    for name in ("theirs", "jaxretr", "sentence-transformers", "huggingface"):
        again = SparseEncoder.from_pretrained(tmp_path / name)
        assert again.config.pooling == pooling
        np.testing.assert_allclose(again.encode_passages(TEXTS), ours, atol=1e-5, rtol=1e-5)  # rows of other lengths
    if engine == "padded":
        jaxretr.verify(tmp_path / "sentence-transformers", library="sentence-transformers")
        jaxretr.verify(tmp_path / "huggingface", library="transformers")


@pytest.mark.parametrize(("strategy", "activation"), SPLADE.values())
def test_gradients_of_the_strategies(strategy: Any, activation: Any, encoder: SparseEncoder) -> None:
    modules = pytest.importorskip("sentence_transformers.sparse_encoder.modules", reason="it is compared with")
    rng = np.random.default_rng(2)
    states, head = rng.normal(size=(3, 7, BERT.hidden_size)).astype(np.float32), encoder.params["shared"]["words_head"]
    table, lengths = encoder.params["shared"]["bert"]["word_embedding"]["table"], np.array([7, 2, 5])
    factors = rng.normal(size=(3, BERT.vocab_size)).astype(np.float32)

    def weights(bias: Any) -> Any:
        how = {"strategy": strategy, "activation": activation, "dtype": jnp.float32}
        return word_weights(BERT, {**head, "bias": bias}, table, states, lengths, **how)

    # The scores of single tokens: what makes them weights is undone, and none is negative with this bias.
    shifted, one = {**head, "bias": head["bias"] + 30}, np.ones(21, int)
    raw = np.expm1(word_weights(BERT, shifted, table, states.reshape(21, 1, -1), one, dtype=jnp.float32))
    assert raw.min() > 0
    scores = torch.tensor(raw.reshape(3, 7, -1) - 30, requires_grad=True)
    mask = torch.tensor(np.arange(7) < lengths[:, None])
    found = modules.SpladePooling(strategy, activation).train()({"token_embeddings": scores, "attention_mask": mask})
    (torch.tensor(factors) * found["sentence_embedding"]).sum().backward()
    gradient = jax.grad(lambda bias: (factors * weights(bias)).sum())(jnp.asarray(head["bias"]))
    np.testing.assert_allclose(gradient, scores.grad.sum((0, 1)), atol=1e-4)


def test_bad_folders_and_uses(
    encoder: SparseEncoder, masked: Path, tiny_models: Path, store: EmbeddingStore, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"encoder: pooling 'splade' needs a head of masked language modelling"):
        SparseEncoder.from_pretrained(tiny_models / "encoder")
    with pytest.raises(UserError, match="leave projections, truncate_dim and normalise out"):
        SparseEncoder.from_pretrained(masked, normalise=True)
    with pytest.raises(UserError, match=r"fuse the runs \(jaxretr fuse\)"):
        jaxretr.CombinedEncoder([encoder, encoder], [1, 1])
    with pytest.raises(UserError, match="is not written as ONNX"):
        jaxretr.export(encoder, to="onnx", out=tmp_path / "onnx")
    with pytest.raises(UserError, match="holds sparse vectors, which --to lance has no place for"):
        jaxretr.export(encoder, index=store, to="lance", out=tmp_path / "lance", corpus=DATA)
    with pytest.raises(UserError, match="a live index has dense vectors"):
        open_index(str(tmp_path / "live"), encoder)
    with pytest.raises(UserError, match=r"data=.*a live index has dense vectors"):
        Parts(lambda: encoder, data=tmp_path / "data").load()
    with pytest.raises(UserError, match="dtype=float16: sparse vectors are stored as float32 or int8"):
        jaxretr.encode(encoder, corpus=DATA, out=tmp_path / "half", dtype="float16")
    twice = Corpus(["a", "a", "b"], ["", "", ""], ["what", "is", "it"])
    with pytest.raises(UserError, match="'a'"):
        open_index(str(jaxretr.encode(encoder, corpus=twice, out=tmp_path / "twice").folder), encoder)
    with pytest.raises(UsageError, match="side='query': give 'question' or 'passage'"):
        encoder.sparse("query", TEXTS)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="ART trains dense encoders"):
        path, art = str(masked), art_config(tiny_models)
        own = dataclasses.replace(art.encoder, path=path, pooling="splade", normalise=False)
        ArtRun(dataclasses.replace(art, encoder=own), make_mesh(jax.devices()[:1]), tmp_path / "art")
    with pytest.raises(UserError, match="no negative numbers"):
        SparseIndex([SparseRows.of(np.array([[0.0, -1.0]], np.float32))], 2)
    with pytest.raises(UserError, match=r"questions have the shape \[1, 3\]; give \[B, 2\]"):
        SparseIndex([SparseRows.of(np.eye(2, dtype=np.float32))], 2).search_rows(np.ones((1, 3)), 1)
    with pytest.raises(UserError, match="finite numbers that are not negative"):
        SparseIndex([SparseRows.of(np.eye(2, dtype=np.float32))], 2).search_rows(np.array([[-1.0, 1.0]]), 1)


def test_an_index_of_fewer_dimensions_is_refused_without_advice_to_truncate(encoder: SparseEncoder) -> None:
    """A sparse encoder cannot be truncated."""
    with pytest.raises(UserError, match=r"16 dimensions.*; search with its own model, or"):
        check_model("store", 16, None, None, encoder)


def test_impacts_for_pyserini_are_the_rounded_weights(
    encoder: SparseEncoder, store: EmbeddingStore, tmp_path: Path
) -> None:
    exported = jaxretr.export(encoder, index=store, to="pyserini", out=tmp_path / "impacts", corpus=DATA)
    lines = (tmp_path / "impacts/embeddings/embeddings.jsonl").read_text().splitlines()
    rows, corpus = [json.loads(line) for line in lines], read_corpus(DATA)
    assert [row["id"] for row in rows] == corpus.ids and rows[0]["contents"].endswith(corpus.texts[0])
    weights = store.rows(0, len(corpus))
    for row, vector in zip(rows, weights, strict=True):
        expected = {word: round(100 * weight) for word, weight in encoder.words(vector)[0].items()}
        assert row["vector"] == {word: impact for word, impact in expected.items() if impact}
    impacts = sum(len(row["vector"]) for row in rows)
    assert f"20 rows for Pyserini; {impacts} impacts" in str(exported)
    lines[3] = lines[3].replace('"vector": {', '"vector": {"a b": 1.5, ')
    (tmp_path / "impacts/embeddings/embeddings.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=r"embeddings\.jsonl was changed"):
        jaxretr.verify(tmp_path / "impacts")
    with pytest.raises(UserError, match=r"embeddings.jsonl:4: its vector is not an object of whole numbers above 0"):
        list(pyserini._read(tmp_path / "impacts", [], None))


# ---- stores and search -----------------------------------------------------------------------------------------------


def test_a_store_has_the_vectors_and_goes_on_after_a_kill(
    encoder: SparseEncoder, store: EmbeddingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = encoder.encode_passages(list(read_corpus(DATA)))
    # Batches of other sizes may add up in another order on some processors.
    stored = np.concatenate(list(store.blocks()))
    np.testing.assert_allclose(stored, expected, atol=1e-5)
    expected = stored
    np.testing.assert_array_equal(store.rows(4, 16), expected[4:16])
    sizes = [file.stat().st_size for file in store.folder.glob("*.npy")]
    assert store.bytes == sum(sizes)
    sizes = [size - 128 for size in sizes]  # numpy's headers
    assert sum(sizes) == 6 * np.count_nonzero(expected) + 4 * len(expected), "float32 and uint16 a number, int32 a row"
    # int8: no weight is off by more than half a step of its row, and those near 0 are left out.
    small = jaxretr.encode(encoder, corpus=DATA, out=tmp_path / "int8", dtype="int8", shard_rows=7)
    found = small.rows(0, len(expected))
    assert (np.abs(found - expected).max(axis=1) <= 0.501 * expected.max(axis=1) / 127).all()
    # Killed after the first shard, and begun again: the same bytes.
    write, done = EmbeddingStore.write, []

    def killed(self: EmbeddingStore, shard: int, *arguments: Any) -> None:
        if done:
            raise KeyboardInterrupt
        done.append(shard)
        write(self, shard, *arguments)

    monkeypatch.setattr(EmbeddingStore, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        jaxretr.encode(encoder, corpus=DATA, out=tmp_path / "killed", shard_rows=7)
    monkeypatch.undo()
    jaxretr.encode(encoder, corpus=DATA, out=tmp_path / "killed", shard_rows=7)
    for file in store.folder.iterdir():
        assert (tmp_path / "killed" / file.name).read_bytes() == file.read_bytes(), file.name
    # A damaged file is named.
    path = sorted((tmp_path / "killed").glob("entries-*"))[1]
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(UserError, match=path.name):
        jaxretr.verify(tmp_path / "killed")


def test_search_finds_the_best_inner_products(encoder: SparseEncoder, store: EmbeddingStore) -> None:
    questions = read_questions(DATA)[:40]
    vectors = encoder.encode_queries([each.text for each in questions])
    passages, index = store.rows(0, store.meta.rows), open_index(str(store.folder), encoder)
    exact = vectors.astype(np.float64) @ passages.T.astype(np.float64)
    ids = store.read_ids()
    for allow in (None, ids[::3]):
        hits = index.search(vectors, 6, SearchOptions(allow=allow))
        scores = exact if allow is None else np.where(np.isin(ids, allow), exact, -1.0)
        best = -np.sort(-scores, axis=1)[:, :6]
        found = np.array([[hit.score for hit in each] for each in hits])
        np.testing.assert_allclose(found, best, rtol=1e-5)
        for each, of_question in zip(hits, scores, strict=True):
            np.testing.assert_allclose(
                [of_question[ids.index(hit.id)] for hit in each], [h.score for h in each], rtol=1e-5
            )
    facts = index.facts()
    assert facts["engine"] == "sparse" and facts["postings"] == np.count_nonzero(passages)
    np.testing.assert_array_equal(index.vectors(ids[3:7]), passages[3:7])
    # In one search, from the files, with the model that made them; and measured without a store.
    found = jaxretr.search(encoder, store.folder, queries=questions, k=6)
    assert [each.ids for each in found.hits] == [
        [hit.id for hit in each] for each in index.search(vectors, 6, SearchOptions())
    ]
    kept, direct = (jaxretr.evaluate_model(encoder, beir=DATA, split="train", **how) for how in ({"index": store}, {}))
    assert kept.metrics == direct.metrics


@pytest.mark.parametrize("kind", [SparseIndex, SparseIndexes])
@pytest.mark.parametrize("seed", range(3))
def test_random_vectors_with_ties_and_empty_rows(seed: int, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    rows, dim = 400, 60
    dense = rng.integers(1, 4, (rows, dim)) * (rng.random((rows, dim)) < rng.random(dim) ** 3)
    dense[rng.integers(0, rows, 30)] = 0
    questions = rng.integers(1, 4, (20, dim)) * (rng.random((20, dim)) < 0.2)
    questions[7] = 0
    monkeypatch.setattr(sparse, "_POSTINGS", 900)
    blocks = [SparseRows.of(part.astype(np.float32)) for part in np.array_split(dense, 7)]
    index = kind(blocks, dim)
    assert len(index) == rows
    allowed = rng.random(rows) < 0.5
    for mask in (None, allowed, np.zeros(rows, bool)):
        exact = questions @ dense.T  # whole numbers: ties are ties
        exact = exact if mask is None else np.where(mask, exact, 0)
        scores, found = index.search_rows(questions.astype(np.float32), 15, mask)
        for of_question, own_scores, own_rows in zip(exact, scores, found, strict=True):
            order = np.argsort(-of_question, kind="stable")[:15]
            order = order[of_question[order] > 0]
            assert own_rows.tolist() == [*order.tolist(), *[-1] * (15 - len(order))]
            assert own_scores[: len(order)].tolist() == of_question[order].tolist()
            assert (own_scores[len(order) :] == -np.inf).all()


def test_products_that_are_too_small_for_float32_are_no_hits() -> None:
    rng = np.random.default_rng(3)
    dense = (rng.random((20, 50)) * 0.3 * (rng.random((20, 50)) < 0.5)).astype(np.float32)
    index = SparseIndex([SparseRows.of(dense)], 50)
    tiny, some = np.full((1, 50), 1e-45, np.float32), np.zeros((1, 50), np.float32)
    some[0, :3], some[0, 10] = 1e-45, 1.0
    _, rows = index.search_rows(tiny, 20)
    assert len({row for row in rows[0] if row >= 0}) == (rows[0] >= 0).sum()
    scores, rows = index.search_rows(some, 20)
    found = rows[0][rows[0] >= 0]
    assert len(set(found.tolist())) == len(found) and set(np.flatnonzero(dense[:, 10])) <= set(found.tolist())
    np.testing.assert_allclose(scores[0][: len(found)], dense[found, 10], rtol=1e-6)


def test_hard_negatives_are_those_of_its_search(encoder: SparseEncoder, store: EmbeddingStore) -> None:
    questions = read_questions(DATA)
    hits = jaxretr.search(encoder, store.folder, queries=questions, k=20).hits
    run = {
        question.id: dict(zip(each.ids, each.scores, strict=True))
        for question, each in zip(questions, hits, strict=True)
    }
    how = {"split": "train", "corpus": DATA, "ranks": (1, 10), "margin": 0.05}
    by_run, by_model = jaxretr.mine(DATA, run=run, **how), jaxretr.mine(DATA, model=encoder, **how)
    assert len(by_model.negatives.values) > len(by_model)
    for one, other in zip(by_model.records(), by_run.records(), strict=True):
        assert one["negative_document_ids"] == other["negative_document_ids"]
        np.testing.assert_allclose(one["negative_scores"], other["negative_scores"], rtol=1e-5)
        np.testing.assert_allclose(one["positive_scores"], other["positive_scores"], rtol=1e-5)


def test_a_sparse_teacher_of_spar(encoder: SparseEncoder, store: EmbeddingStore, tmp_path: Path) -> None:
    encoder.save(tmp_path / "model")
    found = jaxretr.mine_lexical(
        corpus=DATA, queries=DATA, out=tmp_path / "set", teachers=[f"model:{tmp_path / 'model'}"],
        positives=2, negative_ranks=(5, 6),
    )  # fmt: skip
    vectors = encoder.encode_queries([found.queries[number] for number in range(5)])
    scores = vectors.astype(np.float64) @ store.rows(0, store.meta.rows).T.astype(np.float64)
    best = np.sort(np.argsort(-scores, axis=1)[:, :2], axis=1)
    np.testing.assert_array_equal(np.sort(found.teachers[0].positives[:5], axis=1), best)


# ---- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [1, 4])
def test_flops_is_sentence_transformers(devices: int) -> None:
    pytest.importorskip("sentence_transformers", reason="it is compared with")
    from sentence_transformers.sparse_encoder.losses import FlopsLoss

    rng = np.random.default_rng(0)
    q, p = (np.maximum(rng.normal(size=size), 0).astype(np.float32) for size in ((8, 30), (8, 3, 30)))
    text_ids = np.arange(24, dtype=np.int32).reshape(8, 3)
    text_ids[2, 1:] = NO_PASSAGE
    settings = Contrastive(flops_questions=0.3, flops_passages=0.7, flops_warmup=10)

    @partial(
        jax.shard_map, mesh=make_mesh(jax.devices()[:devices]), in_specs=P(DEVICES), out_specs=(P(), P(), P(DEVICES))
    )
    def parts(q: jax.Array, p: jax.Array, text_ids: jax.Array) -> Any:
        of_both = jax.value_and_grad(
            lambda q, p: sparsity(settings, jnp.int32(4), q, p, text_ids), (0, 1), has_aux=True
        )
        (loss, metrics), gradients = of_both(q, p)
        return lax.psum(loss, DEVICES), lax.psum(metrics, DEVICES), gradients

    loss, metrics, (of_q, of_p) = jax.jit(parts)(q, p, text_ids)
    tensors = [torch.tensor(q, requires_grad=True), torch.tensor(p[text_ids != NO_PASSAGE], requires_grad=True)]
    of_model: Any = None
    terms = [FlopsLoss(of_model).compute_loss_from_embeddings(each) for each in tensors]
    theirs = 0.16 * (0.3 * terms[0] + 0.7 * terms[1])  # (4 / 10)^2 of a quadratic rise
    theirs.backward()
    np.testing.assert_allclose(loss, theirs.item(), rtol=1e-5)
    np.testing.assert_allclose(of_q, tensors[0].grad, atol=1e-6)
    np.testing.assert_allclose(np.asarray(of_p)[text_ids != NO_PASSAGE], tensors[1].grad, atol=1e-6)
    np.testing.assert_allclose(metrics["question_entries"], (q > 0).sum(1).mean(), rtol=1e-6)


def sparse_config(masked: Path, tmp_path: Path, **changes: Any) -> Any:
    data = write_supervised(tmp_path / "data")
    changes = {"contrastive": {"flops_questions": 0.02, "flops_passages": 0.02, "flops_warmup": 2}, **changes}
    own = {"path": str(masked), "pooling": "splade", "shared": True, **changes.pop("encoder", {})}
    config = contrastive_config(
        tmp_path,
        data={**data, "dev": data["train"], "dev_questions": None, **changes.pop("data", {})},
        negatives={"static": 1},
        train={"steps": 4, "save_every": 1, "eval_every": 4, "best_metric": "average_rank", **changes.pop("train", {})},
        **changes,
    )
    return dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, **own))


def test_dev_questions_are_searched_in_an_inverted_index(
    masked: Path, tmp_path: Path, mesh1: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = {"dev_questions": str(DATA / "queries.jsonl"), "dev_qrels": str(DATA / "qrels/train.tsv")}
    config = sparse_config(masked, tmp_path, data=judged)
    run = ContrastiveRun(config, mesh1, tmp_path / "run")
    train_state, whole = run.init().train, run.whole
    monkeypatch.setattr(whole_corpus, "SPARSE_ROWS", 8)
    dense = run.dev.metrics(train_state, whole, whole.encode(train_state))
    with monkeypatch.context() as patch:
        patch.setattr(whole, "encode", None)  # nothing has the vectors of all passages
        assert run.dev.metrics(train_state, whole) == pytest.approx(dense)
    assert 0 < dense["ndcg@10"] < 1
    encode, search = run.programs.outline(_arguments(run), {}, evaluates=True).programs[1:]
    assert (encode.name, search.name) == ("encode", "search")
    assert encode.trace().jaxpr.out_avals[0].shape == (8, BERT.vocab_size)


def _arguments(run: ContrastiveRun) -> Any:
    return run.arguments(run.abstract_state(), run.batch(0))


def test_training_makes_vectors_sparser(masked: Path, tmp_path: Path, mesh1: Mesh) -> None:
    train(sparse_config(masked, tmp_path), tmp_path / "run")
    trained, start = load_file(tmp_path / "run/model/model.safetensors"), load_file(masked / "model.safetensors")
    head = trained["shared.words_head.dense.kernel"].T
    assert not np.array_equal(head, start["cls.predictions.transform.dense.weight"]), "the head learns, too"
    lines = read_metrics(tmp_path / "run")
    entries = {line["step"]: line["passage_entries"] for line in lines if "passage_entries" in line}
    assert entries[4] < entries[1]
    assert SparseEncoder.from_pretrained(tmp_path / "run").config.sparse
    with pytest.raises(UsageError, match=r"for sparse encoders; set encoder\.pooling=splade"):
        ContrastiveRun(sparse_config(masked, tmp_path, encoder={"pooling": "mean"}), mesh1, tmp_path / "dense")
    with pytest.raises(UsageError, match="are for dense encoders"):
        ContrastiveRun(sparse_config(masked, tmp_path, contrastive={"matryoshka": (8,)}), mesh1, tmp_path / "prefixes")


def test_a_split_vocabulary_and_kept_activations_change_no_gradient(
    masked: Path, tmp_path: Path, mesh1: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One device that keeps its activations, and two that compute them again from a table of which each has a half."""
    monkeypatch.setattr(sharding, "SPLIT_FROM", 128)
    config, found = sparse_config(masked, tmp_path), []
    for mesh, activations in ((mesh1, "keep"), (make_mesh(jax.devices()[:2]), "recompute")):
        split = dataclasses.replace(config.mesh, shard_parameters=mesh is not mesh1)
        encoder = dataclasses.replace(config.encoder, activations=activations)
        with few_padding_rows():
            run = ContrastiveRun(dataclasses.replace(config, mesh=split, encoder=encoder), mesh, tmp_path / activations)
        run.programs.step = compiled_quickly(run.programs.step)
        state, values = run.step(run.init(), 0, run.batch(0))
        found.append((small_runs.first_gradients(state), {name: float(value) for name, value in values.items()}))
    small_runs.assert_gradients_equal(found[1][0], found[0][0])
    for name in ("loss", "gradient_norm", "passage_entries", "question_entries"):
        np.testing.assert_allclose(found[1][1][name], found[0][1][name], rtol=1e-5, err_msg=name)
