"""The dual encoder: what users put in and get out, the folders it reads and writes, and the batches in between."""

import copy
import dataclasses
import json
import logging
import pickle
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from small_encoders import write_encoder
from tiny import BERT, DATA

from jaxretr import cli
from jaxretr.config import AdapterShape
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_corpus
from jaxretr.data.stored_tokenizer import StoredTokenizer, statement
from jaxretr.data.tokenizer_training import train_tokenizer
from jaxretr.data.tokens import load_tokenizer, passage_pair, question_rows, tokenizer_fingerprint
from jaxretr.embeddings.encoding import encode
from jaxretr.indexes.exact import ExactIndex
from jaxretr.models.adapter import Adapter
from jaxretr.models.any_scorer import load_scorer
from jaxretr.models.backbones.adapter_layers import init_adapter
from jaxretr.models.batches import ACCELERATOR_COSTS, CPU_COSTS, Costs, PackedShapes, Shapes
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, abstract_params, embed, init_params, tower
from jaxretr.models.encode import Engine
from jaxretr.models.engine_choice import jitted_embed
from jaxretr.models.hub.encoder_params import export_encoder
from jaxretr.models.hub.model_shapes import encoder_shape
from jaxretr.models.hub.tensor_files import write_safetensors
from jaxretr.models.pair_scorer import CrossEncoder
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel import machine
from jaxretr.runtime.parallel.programs import programs
from jaxretr.training.runs.encoder_start import with_new_adapters

CONFIG = DualEncoderConfig(BERT, max_question_length=16, max_passage_length=48)
RNG = np.random.default_rng(5)

# float32 sums in another order, of vectors whose coordinates are about 1.
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 2e-5}


@pytest.fixture(scope="module")
def passages() -> list[dict[str, str]]:
    """Real passages, the number of whose words is 0, 2, 4, ... 38, then all over again, in no order of length."""
    words = RNG.permutation(np.arange(20) * 2)
    return [
        {"title": passage.title, "text": " ".join(passage.text.split()[: words[number % 20]])}
        for number, passage in enumerate(read_corpus(DATA))
    ]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, passages: Any) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer("bert", [f"{p['title']} {p['text']}" for p in passages], BERT.vocab_size, folder)
    return load_tokenizer(folder)


def draw(config: DualEncoderConfig, seed: int) -> Any:
    """Random parameters, biases and scales too; by numpy, because `init_params` compiles a program each time."""
    rng = np.random.default_rng(seed)

    def leaf(path: Any, leaf: Any) -> np.ndarray:
        return rng.normal(path[-1].key == "scale", 0.2, leaf.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(leaf, abstract_params(config))


def make(tokenizer: Any, seed: int = 1, **changes: Any) -> DualEncoder:
    config = dataclasses.replace(CONFIG, **changes)
    return DualEncoder(config, draw(config, seed), tokenizer)


@pytest.fixture(scope="module")
def encoder(tokenizer: Any) -> DualEncoder:
    return make(tokenizer)


@partial(jax.jit, static_argnums=0)
def _embed(config: DualEncoderConfig, params: Any, tokens: Any, lengths: Any) -> jax.Array:
    return embed(config, params, tokens, lengths, dtype="float32")


def reference(encoder: DualEncoder, side: Any, rows: list[list[int]], width: int = 48) -> np.ndarray:
    """Embeddings by the function of the training step: stacked layers, all rows in one batch of one width."""
    tokens = np.zeros((len(rows), width), np.int32)
    for place, ids in zip(tokens, rows, strict=True):
        place[: len(ids)] = ids
    lengths = np.array([len(ids) for ids in rows], np.int32)
    return np.asarray(_embed(encoder.config, tower(encoder.params, side), tokens, lengths))


# ---- the mathematics -------------------------------------------------------------------------------------------------


def test_pooling_reads_real_tokens_only() -> None:
    config = dataclasses.replace(CONFIG, pooling="mean", projection_size=6, normalise=True)
    weights = tower(draw(config, 3), "question")
    tokens = RNG.integers(1, BERT.vocab_size, (3, 12))
    lengths = np.array([12, 5, 0], np.int32)
    other = np.where(np.arange(12) < lengths[:, None], tokens, RNG.integers(1, BERT.vocab_size, (3, 12)))
    plain = dataclasses.replace(config, pooling="cls", projection_size=None, normalise=False)
    found = np.asarray(_embed(config, weights, tokens, lengths))
    np.testing.assert_array_equal(found, _embed(config, weights, other, lengths))
    # By hand from the states, which cls pooling shows one position at a time.
    from flax import nnx

    from jaxretr.models.backbones.bert import BertEncoder
    from jaxretr.models.backbones.layers import define

    graph, _ = define(lambda rngs: BertEncoder(BERT, rngs=rngs))
    states = np.asarray(jax.jit(lambda p: nnx.merge(graph, p)(tokens, lengths))(weights["bert"]))
    np.testing.assert_allclose(_embed(plain, weights, tokens, lengths), states[:, 0], **CLOSE)
    for row, length in ((0, 12), (1, 5)):
        vector = states[row, :length].mean(axis=0) @ weights["projection"]["kernel"] + weights["projection"]["bias"]
        np.testing.assert_allclose(found[row], vector / np.linalg.norm(vector), **CLOSE)


def test_a_row_of_length_zero_spoils_neither_value_nor_gradient() -> None:
    config = dataclasses.replace(CONFIG, pooling="mean", normalise=True)
    weights = tower(draw(config, 0), "passage")
    tokens, lengths = np.ones((2, 12), np.int32), np.array([3, 0], np.int32)

    @jax.jit
    def run(weights: Any) -> Any:
        vectors = embed(config, weights, tokens, lengths, dtype="float32")
        return (vectors[:, 0]).sum(), vectors

    gradient, vectors = jax.grad(run, has_aux=True)(weights)
    assert np.isfinite(vectors).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    np.testing.assert_array_equal(vectors[1], 0.0)


def test_parameters_are_as_announced() -> None:
    for changes in ({}, {"shared": True, "projection_size": 6}):
        config = dataclasses.replace(CONFIG, **changes)
        params, announced = init_params(config, 0), abstract_params(config)
        jax.tree.map(lambda a, b: np.testing.assert_equal((a.shape, a.dtype), (b.shape, b.dtype)), params, announced)
    two = init_params(CONFIG, 0)
    jax.tree.map(np.testing.assert_array_equal, two["question"], two["passage"])
    assert tower(two, "passage") is two["passage"] and tower(params, "question") is params["shared"]


# ---- encoding --------------------------------------------------------------------------------------------------------


def test_passages_come_back_in_order_on_all_devices(encoder: DualEncoder, passages: Any) -> None:
    rows = passage_pair(encoder.tokenizer, *zip(*((p["title"], p["text"]) for p in passages), strict=True), 48).ids
    assert len({len(row) for row in rows}) > 1, "rows of one length would hide a wrong order"
    found = encoder.encode_passages(passages)
    assert found.dtype == np.float32 and found.shape == (len(passages), 16)
    np.testing.assert_allclose(found, reference(encoder, "passage", rows), **CLOSE)
    objects = [SimpleNamespace(**p) for p in passages]
    np.testing.assert_array_equal(encoder.encode_passages(objects), found)
    np.testing.assert_allclose(encoder.encode_passages(passages, batch_size=8), found, **CLOSE)


def test_queries_use_the_other_tower(tokenizer: Any, encoder: DualEncoder) -> None:
    texts = ["who founded it ?", "", "where", " \n"]
    rows = question_rows(tokenizer, texts, 16).ids
    found = encoder.encode_queries(texts)
    np.testing.assert_allclose(found, reference(encoder, "question", rows, 16), **CLOSE)
    assert np.abs(found - reference(encoder, "passage", rows, 16)).max() > 0.1


def test_bfloat16_rounds_operands_only(tokenizer: Any, encoder: DualEncoder) -> None:
    texts = ["who founded it ?"]
    rounded = DualEncoder(encoder.config, encoder.params, tokenizer, dtype="bfloat16").encode_queries(texts)
    difference = np.abs(rounded - encoder.encode_queries(texts)).max()
    assert rounded.dtype == np.float32 and 1e-5 < difference < 0.1  # 8 bits of operands of about 1, some 30 products


def test_auto_is_settled_when_the_model_is_loaded_and_stands_in_the_store(
    encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def made(flags: set[str], dtype: Any = "auto") -> DualEncoder:
        monkeypatch.setattr(machine, "cpu_flags", lambda: flags)
        return DualEncoder(encoder.config, encoder.params, encoder.tokenizer, dtype=dtype)

    assert made({"avx2", "avx512f", "amx_bf16"}).dtype == "bfloat16"
    assert made({"avx2", "avx512f", "amx_bf16"}, "float32").dtype == "float32"
    assert made({"avx2"}, "bfloat16").dtype == "bfloat16"
    with pytest.raises(UserError, match=r"dtype 'float16' .*'auto', 'float32', 'bfloat16' or 'int8'"):
        made({"avx2"}, "float16")
    for words in ("encode m --corpus c --out o", "search m --index i --queries q --out o", "evaluate m --beir d"):
        assert cli.parse(words.split()).compute == "auto"
    store = encode(made({"avx2"}), queries=[Question("q", "who founded it ?")], out=tmp_path / "store", model="m")
    assert store.meta.compute == "float32", "a store begun with auto could not be resumed with what auto meant"


def test_a_job_of_several_chunks(encoder: DualEncoder) -> None:
    texts = ["who", "when was it founded ?", "word " * 100, "where is the city"]
    many = [texts[number % 4] for number in range(4103)]  # More than one chunk, and an incomplete last batch.
    found = encoder.encode_queries(many)
    assert encoder.truncated == 1026  # Numbers 2, 6, ... 4102.
    np.testing.assert_allclose(found, encoder.encode_queries(texts)[np.arange(4103) % 4], **CLOSE)


def test_no_texts_give_no_rows(encoder: DualEncoder) -> None:
    assert encoder.encode_queries([]).shape == (0, 16)
    assert encoder.encode_passages([]).shape == (0, 16)


def test_cut_texts_are_counted(encoder: DualEncoder, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        encoder.encode_queries(["short", "word " * 100, "long " * 50])
    assert encoder.truncated == 2
    assert [record.getMessage() for record in caplog.records] == ["2 of 3 questions (67%) were cut at 16 tokens"]
    encoder.encode_queries(["short"])
    assert encoder.truncated == 0
    caplog.clear()
    encoder.encode_passages([{"text": "word " * 900}])
    longest = encoder.config.max_passage_length
    assert f"'files:CORPUS[words={longest * 150 // 256}]' makes passages of them" in caplog.text


class Table(list):
    """A DataFrame, as far as it counts here: iterating over it gives the names of its columns."""

    columns, shape = ("title", "text"), (5, 2)

    def __init__(self) -> None:
        super().__init__(self.columns)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: e.encode_queries("who?"), "queries: a list is expected, not str"),
        (lambda e: e.encode_queries(["a", None]), r"queries\[1\]: a text is expected, not NoneType"),
        (lambda e: e.encode_queries(["a", "b", "\ud800"]), r"queries\[2\]: half of a surrogate pair at character 0"),
        (lambda e: e.encode_passages({"text": "a"}), "passages: a list is expected, not dict"),
        (lambda e: e.encode_passages(["a", 3]), r"passages\[1\]: a passage is expected, not int"),
        (
            lambda e: e.encode_passages([{"title": "a", "txt": "b"}]),
            r"passages\[0\]: has no 'text'; did you mean 'txt'",
        ),
        (lambda e: e.encode_passages([{"title": 3, "text": "b"}]), r"passages\[0\].title: a text is expected"),
        # Their elements are the names of columns, or come in any order.
        (
            lambda e: e.encode_passages(Table()),
            "passages: a Table would be read as the names of its columns; give its rows",
        ),
        (lambda e: e.encode_queries(Table()), "queries: a Table would be read as the names of its columns"),
        (lambda e: e.encode_queries({"a", "b"}), "queries: a set has no order; give a list"),
        (lambda e: e.encode_queries(["a"], batch_size=0), "batch_size=0: must be at least 1"),
    ],
)
def test_wrong_input_is_named(encoder: DualEncoder, call: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call(encoder)


def test_a_title_of_none_is_an_empty_one(encoder: DualEncoder) -> None:
    found = encoder.encode_passages([{"title": None, "text": "b"}, {"title": "", "text": "b"}, {"text": "b"}])
    np.testing.assert_array_equal(found, found[[0, 0, 0]])


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 100), max_size=200),
    devices=st.sampled_from([1, 3, 8]),
    batch_rows=st.sampled_from([None, 1, 7]),
    steps=st.sampled_from([(None, 2), (1, 2), (4, 4)]),
    start=st.integers(0, 9),
)
def test_batches_hold_every_row_once(
    lengths: list[int], devices: int, batch_rows: int | None, steps: tuple[int | None, int], start: int
) -> None:
    shapes = Shapes(100, devices, 512, batch_rows, *steps)
    ids = [[number + 1] * length for number, length in enumerate(lengths)]
    seen = []
    for batch in shapes.batches(ids, start):
        rows, width = batch.tokens.shape
        assert rows % devices == 0 and width <= 100
        assert steps[0] is None or (rows, width) in shapes.every()
        assert batch_rows is None or rows < batch_rows + devices
        assert rows * width <= max(512 * devices, devices * width) or batch_rows is not None
        for position, tokens, length in zip(batch.positions, batch.tokens, batch.lengths, strict=False):
            assert [*tokens[:length]] == ids[position - start] and not tokens[length:].any()
        assert not batch.lengths[len(batch.positions) :].any()
        seen.extend(batch.positions - start)
    assert sorted(seen) == list(range(len(lengths)))


@pytest.mark.parametrize(
    ("lengths", "max_length", "rows"),
    [
        ([], 48, (2,)),
        ([0, 48, 1, 0], 48, (2,)),
        (RNG.integers(1, 257, 3000).tolist(), 256, (16, 128)),
        (RNG.integers(1, 9, 3000).tolist(), 16, (4,)),
        ([700] * 5 + [3] * 200, 700, (2, 8)),
    ],
)
def test_packed_batches_hold_every_text_once(lengths: list[int], max_length: int, rows: tuple[int, ...]) -> None:
    shapes = PackedShapes.of(max_length, 1, *(512 * count for count in rows))
    ids = [[number + 1] * length for number, length in enumerate(lengths)]
    seen, filled, size = [], 0, 0
    for batch in shapes.batches(ids, 7):
        assert batch.tokens.shape in shapes.every() and batch.lengths.sum(axis=1).max() <= shapes.width
        starts = np.cumsum(batch.lengths, axis=1) - batch.lengths
        for position, slot in zip(batch.positions, batch.slots, strict=True):
            row, number = divmod(slot, shapes.texts)
            own = batch.tokens[row, starts[row, number] :][: batch.lengths[row, number]].tolist()
            assert own == (ids[position - 7] or [0])
            seen.append(position - 7)
        used = batch.lengths.any(axis=1)
        filled, size = filled + batch.lengths.sum(), size + used.sum() * shapes.width
    assert sorted(seen) == list(range(len(lengths)))
    assert len(lengths) < 1000 or filled > (0.97 if max_length > 16 else 0.27) * size


def test_short_texts_do_not_pay_for_long_ones() -> None:
    ids = [[1] * length for length in RNG.integers(20, 251, 256)]
    fine, some, few = (
        Shapes(256, 1, 1024, None, steps, ratio).batches(ids, 0) for steps, ratio in ((None, 2), (4, 4), (1, 2))
    )
    real = sum(map(len, ids))
    # 16 tokens a bucket waste 8 a row, 6% here; sorting by length and 1,000 tokens a batch add little to it.
    assert sum(batch.tokens.size for batch in fine) < 1.12 * real
    # 32 tokens a bucket from 128 on.
    assert sum(batch.tokens.size for batch in some) < 1.16 * real
    assert len({batch.tokens.shape for batch in few}) <= 6 < len({batch.tokens.shape for batch in fine})
    assert len(Shapes(256, 1, 1024, None, 4, 4).every()) < 40


def test_a_job_on_an_accelerator_has_few_programs_and_the_same_vectors() -> None:
    # Its costs, with batches that a CPU can compute.
    costs = dataclasses.replace(ACCELERATOR_COSTS, batch_tokens=2048, small_batch_tokens=512)
    params = tower(init_params(CONFIG, seed=1), "passage")
    ids = [RNG.integers(1, 400, length).tolist() for length in RNG.integers(1, 49, 500)]

    def encoded(costs: Costs, count: int) -> np.ndarray:
        engine = Engine(jitted_embed(CONFIG, "float32"), params, "float32", costs)
        return engine.encode(lambda start, stop: (ids[start:stop], 0), count, 16, max_length=48)[0]

    before = programs()
    found = encoded(costs, 500)
    news = programs() - before
    assert news.compiled + news.cached <= 3  # of 16, 32 and 48 tokens
    np.testing.assert_allclose(found, encoded(CPU_COSTS, 500), **CLOSE)
    np.testing.assert_allclose(encoded(costs, 3), found[:3], **CLOSE)


def test_programs_are_worth_their_padding_only_in_large_jobs() -> None:
    lengths = RNG.integers(20, 251, 4096).tolist()

    def chosen(costs: Costs, tower: tuple[int, int], texts: int) -> tuple[int | None, bool]:
        shapes = Shapes(256, 1, costs.batch_tokens, ratio=None if costs.fills else 2)
        part = lengths[: min(texts, 4096)]
        found = costs.for_tower(*tower).soonest(shapes, part, len(part) / texts)
        return found.steps, found.loops

    minilm, bert, gemma = (6, 10_600_000), (12, 85_000_000), (18, 100_300_000)
    # Of BERT's sizes layers are always unrolled; of a decoder's 18 only where the copies of a loop cost more time.
    assert [chosen(CPU_COSTS, minilm, texts)[0] for texts in (100, 550, 10**5)] == [1, 2, None]
    assert [chosen(CPU_COSTS, bert, texts)[0] for texts in (20, 100, 10**4)] == [1, 2, None]
    assert not any(chosen(CPU_COSTS, tower, texts)[1] for tower in (minilm, bert) for texts in (1, 100, 10**5))
    assert [chosen(CPU_COSTS, gemma, texts) for texts in (20, 100, 10**5)] == [(1, True), (2, True), (None, False)]
    assert [chosen(ACCELERATOR_COSTS, bert, texts) for texts in (10**5, 10**7)] == [(1, False), (None, False)]


def test_a_loop_of_layers_gives_the_same_vectors() -> None:
    engine = Engine(jitted_embed(CONFIG, "float32"), tower(init_params(CONFIG, seed=1), "passage"), "float32")
    ids = [RNG.integers(1, 400, length).tolist() for length in RNG.integers(1, 49, 64)]
    shapes = Shapes(48, engine.devices, 512, 16)
    found = engine.embed_rows(ids, 16, dataclasses.replace(shapes, loops=True))
    np.testing.assert_allclose(found, engine.embed_rows(ids, 16, shapes), **CLOSE)


# ---- our own folder --------------------------------------------------------------------------------------------------


def test_saved_and_loaded_bit_for_bit(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRETR_ENGINE", "padded")  # also where numpy is faster
    saved = make(tokenizer, projection_size=6, pooling="mean", normalise=True, passage_template="joined")
    (tmp_path / "run").mkdir()
    saved.save(tmp_path / "run" / "model")
    for path in (tmp_path / "run" / "model", tmp_path / "run"):  # The folder itself, and a run directory.
        loaded = DualEncoder.from_pretrained(path)
        assert loaded.config == saved.config
        jax.tree.map(np.testing.assert_array_equal, loaded.params, saved.params)
    texts = ["who founded it ?"]
    np.testing.assert_array_equal(loaded.encode_queries(texts), saved.encode_queries(texts))
    # The weights are in memory once: the devices read the same arrays, with the layers together and apart.
    engine = loaded.engine("question")
    own = [range(array.ctypes.data, array.ctypes.data + array.nbytes) for array in jax.tree.leaves(loaded.params)]
    for array in jax.tree.leaves((engine.params, engine.stacked)):
        for shard in array.addressable_shards:
            place = shard.data.unsafe_buffer_pointer()
            assert array.nbytes % 64 or any(place in each for each in own), (
                "a size that JAX must copy, or a second array"
            )
    changed = DualEncoder.from_pretrained(tmp_path / "run", max_question_length=9, passage_template="pair").config
    assert (changed.max_question_length, changed.max_passage_length, changed.passage_template) == (9, 48, "pair")
    with pytest.raises(UserError, match="was trained with pooling 'mean'"):
        DualEncoder.from_pretrained(tmp_path / "run", pooling="cls")
    with pytest.raises(UserError, match="two towers"):
        DualEncoder.from_pretrained(tmp_path / "run", shared=True)


def test_a_saved_tokenizer_is_read_without_transformers(
    encoder: DualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder.save(tmp_path / "model")
    whole = load_tokenizer(tmp_path / "model")
    with monkeypatch.context() as patch:
        patch.setattr(transformers.AutoTokenizer, "from_pretrained", None)
        loaded = DualEncoder.from_pretrained(tmp_path / "model")
        assert isinstance(loaded.tokenizer, StoredTokenizer)
        assert tokenizer_fingerprint(loaded.tokenizer) == tokenizer_fingerprint(whole)
        texts = ["Who founded it ?", "\u00e9t\u00e9 \u4e2d", ""]
        for build, columns in ((question_rows, (texts,)), (passage_pair, (texts, texts))):
            assert build(loaded.tokenizer, *columns, 16) == build(whole, *columns, 16)  # pyright: ignore[reportCallIssue, reportArgumentType]
        assert len(loaded.tokenizer) == len(whole)
        assert loaded.tokenizer.model_max_length == whole.model_max_length
        loaded.save(tmp_path / "again")
    for file in (tmp_path / "model").iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()
    # All else is AutoTokenizer's, also once the folder is gone.
    shutil.rmtree(tmp_path / "again")
    assert loaded.tokenizer("who")["input_ids"] == whole("who")["input_ids"]
    assert type(copy.deepcopy(loaded.tokenizer)) is type(whole)
    # Files that somebody changed are read as before.
    path = tmp_path / "model" / "tokenizer.json"
    path.write_text(
        path.read_text()
        .replace('"lowercase":true', '"lowercase":false')
        .replace('"lowercase": true', '"lowercase": false')
    )
    changed = DualEncoder.from_pretrained(tmp_path / "model").tokenizer
    assert not isinstance(changed, StoredTokenizer)
    # What only a class of transformers reads is not stated.
    assert statement(tmp_path / "model", changed)
    assert statement(tmp_path / "model", whole) == {}


def test_changes_of_a_saved_tokenizer_are_saved(encoder: DualEncoder, tmp_path: Path) -> None:
    encoder.save(tmp_path / "model")
    lengths, tokens, words = (DualEncoder.from_pretrained(tmp_path / "model") for _ in range(3))
    before = tokenizer_fingerprint(lengths.tokenizer)
    lengths.tokenizer.model_max_length = 17
    piece = next(word for word in encoder.tokenizer.get_vocab() if word.startswith("##"))
    tokens.tokenizer.add_tokens([piece])  # Then a text may contain it.
    words.tokenizer.backend_tokenizer.normalizer = None
    assert tokenizer_fingerprint(lengths.tokenizer) == before
    for changed in (tokens, words):
        assert tokenizer_fingerprint(changed.tokenizer) != before
        assert tokenizer_fingerprint(copy.deepcopy(changed.tokenizer)) == tokenizer_fingerprint(changed.tokenizer)
    for name, changed in {"lengths": lengths, "tokens": tokens, "words": words}.items():
        before, rows = (
            tokenizer_fingerprint(changed.tokenizer),
            question_rows(changed.tokenizer, [f"The {piece}"], 16),
        )
        changed.save(tmp_path / name)
        again = DualEncoder.from_pretrained(tmp_path / name).tokenizer
        assert tokenizer_fingerprint(again) == tokenizer_fingerprint(changed.tokenizer) == before
        assert question_rows(again, [f"The {piece}"], 16) == rows
        assert again.model_max_length == changed.tokenizer.model_max_length
    assert DualEncoder.from_pretrained(tmp_path / "lengths").tokenizer.model_max_length == 17


def test_all_files_of_a_saved_tokenizer_are_kept(encoder: DualEncoder, tmp_path: Path) -> None:
    changed = copy.deepcopy(encoder.tokenizer)
    changed.chat_template = {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
    DualEncoder(encoder.config, encoder.params, changed).save(tmp_path / "model")
    loaded = DualEncoder.from_pretrained(tmp_path / "model")
    assert isinstance(loaded.tokenizer, StoredTokenizer)
    loaded.tokenizer.save_pretrained(tmp_path / "a new" / "folder")
    assert load_tokenizer(tmp_path / "a new" / "folder").chat_template == changed.chat_template
    assert pickle.loads(pickle.dumps(loaded.tokenizer)).chat_template == changed.chat_template


def test_a_damaged_statement_of_a_tokenizer_is_not_believed(encoder: DualEncoder, tmp_path: Path) -> None:
    encoder.save(tmp_path)
    content = json.loads((tmp_path / "jaxretr.json").read_text())
    stated = content["tokenizer"]
    whole = [[stated], 3, "files", None, {}, *({**stated, key: value} for key in stated for value in (3, None, ["a"]))]
    for damaged in (*whole, *({key: stated[key] for key in stated if key != name} for name in stated)):
        (tmp_path / "jaxretr.json").write_text(json.dumps({**content, "tokenizer": damaged}))
        loaded = DualEncoder.from_pretrained(tmp_path).tokenizer
        assert not isinstance(loaded, StoredTokenizer)
        assert tokenizer_fingerprint(loaded) == tokenizer_fingerprint(encoder.tokenizer)


@pytest.mark.parametrize("kind", ["qwen3", "llama", "qwen2", "gemma3_text", "roberta"])
def test_tokenizers_with_other_special_tokens_need_no_transformers(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_encoder(kind, tmp_path / "theirs")
    theirs = DualEncoder.from_pretrained(tmp_path / "theirs")
    theirs.save(tmp_path / "ours")
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", None)
    ours = DualEncoder.from_pretrained(tmp_path / "ours")
    np.testing.assert_array_equal(
        ours.encode_queries(["Who founded it ?"]), theirs.encode_queries(["Who founded it ?"])
    )
    theirs_row = theirs.tokenizer("Who founded it ?")["input_ids"]
    assert question_rows(ours.tokenizer, ["Who founded it ?"], 48).ids == [theirs_row]


def test_what_is_saved_below_the_home_is_found_there(
    encoder: DualEncoder, tiny_cross_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder called ~ was made, which no reader looks into."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    encoder.save("~/dual")
    CombinedEncoder([encoder, encoder], [1.0, 0.5]).save("~/combined")
    CrossEncoder.from_pretrained(tiny_cross_encoder).save("~/cross")
    index = ExactIndex(np.eye(2, dtype=np.float32), ["a", "b"])
    index.save("~/index")
    adapted = with_new_adapters(encoder, AdapterShape(lora_rank=2), 0)
    Adapter.of(adapted).save("~/adapter")
    Adapter.of(adapted).save_peft("~/peft", "base")
    assert {path.name for path in tmp_path.iterdir()} == {"dual", "combined", "cross", "index", "adapter", "peft"}
    assert DualEncoder.from_pretrained("~/dual").config == encoder.config
    assert len(ExactIndex.load("~/index")) == 2


def test_only_a_model_is_replaced(tokenizer: Any, encoder: DualEncoder, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    encoder.save(folder)
    other = make(tokenizer, seed=2)
    other.save(folder)
    loaded = DualEncoder.from_pretrained(folder)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, other.params)
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"something else .*\(thesis\.tex\)"):
        encoder.save(folder)
    with pytest.raises(UserError, match="is a file"):
        encoder.save(folder / "thesis.tex")
    assert (folder / "thesis.tex").read_text() == "years of work"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"], "a half-written folder was left behind"


def test_a_failed_save_leaves_the_old_model(encoder: DualEncoder, tmp_path: Path) -> None:
    encoder.save(tmp_path / "model")
    before = {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}

    class Full(type(encoder.tokenizer)):
        def save_pretrained(self, folder: Any) -> None:
            raise Exception("No space left on device")

    broken = make(encoder.tokenizer, seed=2)
    broken.tokenizer = Full(tokenizer_object=encoder.tokenizer.backend_tokenizer)
    with pytest.raises(UserError, match="the tokenizer cannot be written"):
        broken.save(tmp_path / "model")
    assert {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()} == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_checkpoint_of_another_shape_is_named(encoder: DualEncoder, tmp_path: Path) -> None:
    encoder.save(tmp_path)
    path = tmp_path / "jaxretr.json"
    good = json.loads(path.read_text())

    def load(bert: Any = (), **changes: Any) -> None:
        config = {**good["config"], **changes}
        path.write_text(json.dumps({**good, "config": {**config, "bert": {**config["bert"], **dict(bert)}}}))
        DualEncoder.from_pretrained(tmp_path)

    with pytest.raises(
        UserError,
        match=r"question.bert.word_embedding.table has shape \[400, 16\], but by jaxretr.json it must have \[500",
    ):
        load(bert={"vocab_size": 500})
    for name, size in (("num_hidden_layers", 10**9), ("hidden_size", 4 * 10**15), ("type_vocab_size", 10**15)):
        with pytest.raises(
            UserError, match=f"jaxretr.json says {name} {size}, but no tensor here is nearly that large"
        ):
            load(bert={name: size})
    with pytest.raises(UserError, match=r"jaxretr\.json: num_hidden_layers is -3, but must be at least 1"):
        load(bert={"num_hidden_layers": -3})
    with pytest.raises(UserError, match=r"jaxretr\.json says projection_size 1000000000000000, but no tensor"):
        load(projection_size=10**15)
    with pytest.raises(UserError, match=r"'initializer_range' is 1000.*; it must be a number"):
        load(bert={"initializer_range": 10**40})
    load(bert={"initializer_range": 10**15})  # A whole number that JAX itself would not take for a float.
    with pytest.raises(
        UserError, match=r"4 of \d+ tensors are missing: passage.projection.bias.*jaxretr.json and the weights"
    ):
        load(projection_size=6)
    with pytest.raises(UserError, match=r"tensors are missing: shared.bert"):
        load(shared=True)
    with pytest.raises(UserError, match=r"jaxretr.json: unknown key 'poling'; did you mean 'pooling'"):
        load(poling="cls")
    with pytest.raises(UserError, match=r"'pooling' is 'sum'; .*cls, mean, max"):
        load(pooling="sum")
    path.write_text(json.dumps({**good, "version": 2}))
    with pytest.raises(UserError, match="is of version 2, not 1"):
        DualEncoder.from_pretrained(tmp_path)
    path.write_text(json.dumps(good))
    tensors = {"question.extra": np.zeros(1, np.float32)}
    flat = jax.tree_util.tree_flatten_with_path(encoder.params)[0]
    tensors |= {".".join(part.key for part in names): leaf for names, leaf in flat}
    write_safetensors(tmp_path / "model.safetensors", tensors, {})
    with pytest.raises(
        UserError, match=r"1 tensors have no place in this architecture: question.extra; jaxretr.json and"
    ):
        DualEncoder.from_pretrained(tmp_path)


def test_a_tokenizer_or_length_that_does_not_fit_is_refused(tokenizer: Any) -> None:
    with pytest.raises(UserError, match=r"tokenizer .*400 .*100"):
        make(tokenizer, backbone=dataclasses.replace(BERT, vocab_size=100))
    with pytest.raises(UserError, match=r"max_passage_length is 65, .*64 positions"):
        make(tokenizer, max_passage_length=65)


# ---- the folders of others -------------------------------------------------------------------------------------------


def hugging_face(folder: Path, tokenizer: Any, params: Any, prefix: str = "", config: Any = BERT) -> Path:
    content, tensors = export_encoder(config, params["bert"], prefix=prefix, projection=params.get("projection"))
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(content))
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    tokenizer.save_pretrained(folder)
    return folder


def test_a_plain_bert_gives_one_tower_or_two_copies(tokenizer: Any, encoder: DualEncoder, tmp_path: Path) -> None:
    weights = tower(encoder.params, "question")
    folder = hugging_face(tmp_path / "bert", tokenizer, weights)
    one, two = (DualEncoder.from_pretrained(folder, shared=shared) for shared in (None, False))
    assert one.config == DualEncoderConfig(BERT, shared=True, max_question_length=64, max_passage_length=64)
    jax.tree.map(np.testing.assert_array_equal, one.params["shared"], weights)
    assert not two.config.shared
    jax.tree.map(np.testing.assert_array_equal, two.params["question"], two.params["passage"])
    assert not any(jax.tree.leaves(jax.tree.map(np.shares_memory, two.params["question"], two.params["passage"])))
    assert DualEncoder.from_pretrained(folder, pooling="mean").config.pooling == "mean"
    with pytest.raises(UserError, match="pooling 'sum' is not supported"):
        DualEncoder.from_pretrained(folder, pooling="sum")  # pyright: ignore[reportArgumentType]


def test_a_tokenizer_that_would_cut_the_beginning_of_texts_is_named(
    tokenizer: Any, encoder: DualEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = hugging_face(tmp_path / "bert", tokenizer, tower(encoder.params, "question"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"truncation_side": "left"}))
    found = DualEncoder.from_pretrained(folder)
    assert "cuts the beginning of a text that is too long (truncation_side); here the end is cut" in caplog.text
    found.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").truncation_side == "right"


def test_what_no_file_says_is_guessed_aloud_once(
    tokenizer: Any, encoder: DualEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = hugging_face(tmp_path / "bert", tokenizer, tower(encoder.params, "question"))
    for _ in range(2):
        DualEncoder.from_pretrained(folder)
    (said,) = (record.getMessage() for record in caplog.records)
    for part in ("pooling='cls'", "normalise=False", "passage_template='pair'", "max_passage_length=64"):
        assert part in said
    caplog.clear()
    config = DualEncoder.from_pretrained(folder, pooling="mean", normalise=True, passage_template="joined").config
    assert (config.pooling, config.normalise, config.passage_template) == ("mean", True, "joined")
    DualEncoder.bare(folder)
    assert not caplog.records
    DualEncoder.from_pretrained(folder, pooling="mean")
    assert "pooling" not in caplog.text.split("guessed")[1] and "normalise=False" in caplog.text


@pytest.mark.parametrize(
    ("change", "extra"),
    [
        ({"architectures": ["BertForSequenceClassification"]}, {"classifier.weight": (2, 16), "classifier.bias": (2,)}),
        ({"architectures": ["BertForQuestionAnswering"]}, {"qa_outputs.weight": (2, 16), "qa_outputs.bias": (2,)}),
        ({}, {"logit_scale": ()}),
    ],
)
def test_heads_for_other_tasks_are_left_out_aloud(
    tokenizer: Any, encoder: DualEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Any, extra: Any
) -> None:
    weights = tower(encoder.params, "question")
    folder = hugging_face(tmp_path / "bert", tokenizer, weights)
    content, tensors = export_encoder(BERT, weights["bert"])
    (folder / "config.json").write_text(json.dumps(content | change))
    tensors |= {name: np.ones(shape, np.float32) for name, shape in extra.items()}
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    loaded = DualEncoder.from_pretrained(folder, pooling="cls", normalise=False)
    jax.tree.map(np.testing.assert_array_equal, loaded.params["shared"], weights)
    (said,) = (record.getMessage() for record in caplog.records)
    assert str(folder) in said and all(name in said for name in extra)
    assert encoder_shape(str(folder)).backbone == BERT
    tensors["projection.weight"] = tensors["pooled.weight"] = np.ones((2, 16), np.float32)
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    with pytest.raises(UserError, match=r"2 tensors have no place .*pooled\.weight, projection\.weight"):
        DualEncoder.from_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *(("weights.bin", "weights alone"), ("model.pth", "PyTorch's weights alone"), ("model.onnx", "ONNX")),
        *(("model.h5", "TensorFlow"), ("flax_model.msgpack", "Flax"), ("x.ckpt", "PyTorch's weights alone")),
        *(("quantised", "GGUF.*gguf_file"), ("model.tar.gz", "an archive; unpack it"), ("model.zip", "an archive")),
    ],
)
def test_a_file_as_model_is_named_with_what_to_do(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_bytes(b"GGUF\3\0\0\0" if name == "quantised" else b"\0")
    for read in (DualEncoder.from_pretrained, load_scorer):
        with pytest.raises(UserError, match=rf"{name}: is .*{message}"):
            read(tmp_path / name)


QUESTION, CONTEXT = "question_encoder.bert_model.", "ctx_encoder.bert_model."


def test_dpr_folders_are_not_swapped(tokenizer: Any, tmp_path: Path) -> None:
    saved = make(tokenizer, projection_size=6)
    question = hugging_face(tmp_path / "question", tokenizer, saved.params["question"], QUESTION)
    context = hugging_face(tmp_path / "context", tokenizer, saved.params["passage"], CONTEXT)
    loaded = DualEncoder.from_pretrained(question, passage_path=context)
    assert loaded.config == dataclasses.replace(saved.config, max_question_length=64, max_passage_length=64)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, saved.params)
    for first, second in ((context, question), (context, context), (question, question)):
        with pytest.raises(UserError, match="swapped"):
            DualEncoder.from_pretrained(first, passage_path=second)
    with pytest.raises(UserError, match=r"question encoder alone; .*passage_path"):
        DualEncoder.from_pretrained(question)
    plain = hugging_face(tmp_path / "plain", tokenizer, {"bert": saved.params["passage"]["bert"]}, CONTEXT)
    with pytest.raises(UserError, match="of one shape, but projection is 6 and None"):
        DualEncoder.from_pretrained(question, passage_path=plain)


def test_an_original_dpr_checkpoint(tokenizer: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="a .cp file is read and written with torch")
    bert = dataclasses.replace(BERT, num_attention_heads=1)  # Heads of up to 64: what is assumed of a .cp file.
    saved = make(tokenizer, backbone=bert, max_question_length=64, max_passage_length=64)
    state = {}
    for side, prefix in (("question", "question_model."), ("passage", "ctx_model.")):
        tensors = export_encoder(bert, saved.params[side]["bert"])[1]
        state |= {prefix + name: torch.from_numpy(tensor) for name, tensor in tensors.items()}
    torch.save({"model_dict": state, "epoch": 3}, tmp_path / "dpr.cp")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    loaded = DualEncoder.from_pretrained(tmp_path / "dpr.cp", tokenizer=tmp_path / "tokenizer")
    assert loaded.config == saved.config
    jax.tree.map(np.testing.assert_array_equal, loaded.params, saved.params)
    with pytest.raises(UserError, match="has no tokenizer"):
        DualEncoder.from_pretrained(tmp_path / "dpr.cp")


LEGACY_MEAN = {"word_embedding_dimension": 16, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


@pytest.fixture
def modules(tmp_path: Path, tokenizer: Any, encoder: DualEncoder) -> Any:
    """Writes a sentence-transformers folder of the given modules, each (type, content of its config.json)."""

    def write(*modules: tuple[str, dict[str, Any]], settings: Any = None, prompts: Any = None) -> Path:
        folder = tmp_path / f"folder{len(list(tmp_path.iterdir()))}"
        hugging_face(folder, tokenizer, tower(encoder.params, "question"))
        entries = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
        for number, (kind, config) in enumerate(modules, 1):
            path = f"{number}_{kind.rsplit('.', 1)[-1]}"
            entries.append({"idx": number, "name": str(number), "path": path, "type": kind})
            (folder / path).mkdir()
            (folder / path / "config.json").write_text(json.dumps(config))
        (folder / "modules.json").write_text(json.dumps(entries))
        (folder / "sentence_bert_config.json").write_text(json.dumps(settings or {"max_seq_length": 32}))
        (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts or {}))
        return folder

    return write


def test_a_sentence_transformers_folder(modules: Any, encoder: DualEncoder) -> None:
    folder = modules(("sentence_transformers.models.Pooling", LEGACY_MEAN))
    loaded = DualEncoder.from_pretrained(folder)
    assert loaded.config == DualEncoderConfig(BERT, True, "mean", None, False, "joined", 32, 32)
    jax.tree.map(np.testing.assert_array_equal, loaded.params["shared"], tower(encoder.params, "question"))
    # The schema of sentence-transformers 6, and a Dense module.
    projected = modules(
        ("sentence_transformers.sentence_transformer.modules.pooling.Pooling", {"pooling_mode": "cls"}),
        ("x.Dense", {"activation_function": "torch.nn.modules.linear.Identity", "bias": False}),
        ("x.Normalize", {}),
    )
    kernel = RNG.normal(size=(16, 6)).astype(np.float32)
    write_safetensors(projected / "2_Dense" / "model.safetensors", {"linear.weight": kernel.T}, {"format": "pt"})
    loaded = DualEncoder.from_pretrained(projected)
    assert loaded.config == DualEncoderConfig(BERT, True, "cls", 6, True, "joined", 32, 32)
    np.testing.assert_array_equal(loaded.params["shared"]["projection"]["kernel"], kernel)
    assert not loaded.params["shared"]["projection"]["bias"].any()
    with pytest.raises(UserError, match="was trained with pooling 'cls'"):
        DualEncoder.from_pretrained(projected, pooling="mean")
    with pytest.raises(UserError, match="leave passage_path out"):
        DualEncoder.from_pretrained(projected, passage_path=folder)


def test_what_is_left_of_a_sentence_transformers_folder_is_read(modules: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A folder without modules.json, as people make them by hand."""
    cls = ("x.Pooling", {"pooling_mode": "cls"})
    folder = modules(cls, ("x.Normalize", {}), prompts={"prompts": {"query": "query: "}})
    (folder / "modules.json").unlink()
    config = DualEncoder.from_pretrained(folder).config
    assert config == DualEncoderConfig(BERT, True, "cls", None, True, "joined", 32, 32, query_prompt="query: ")
    assert encoder_shape(str(folder)) == config and not caplog.records
    shutil.rmtree(folder / "2_Normalize")
    config = DualEncoder.from_pretrained(folder).config
    assert config.pooling == "cls" and not config.normalise and "guessed: normalise=False" in caplog.text
    caplog.clear()
    shutil.rmtree(folder / "1_Pooling")
    config = DualEncoder.from_pretrained(folder).config
    assert config.pooling == "mean" and "guessed: pooling='mean', normalise=False" in caplog.text
    assert DualEncoder.from_pretrained(folder, pooling="cls").config.pooling == "cls"


def test_more_tokens_than_positions_are_cut_to_what_there_is(modules: Any, caplog: pytest.LogCaptureFixture) -> None:
    config = DualEncoder.from_pretrained(modules(("x.Pooling", LEGACY_MEAN), settings={"max_seq_length": 66})).config
    assert config.max_passage_length == config.max_question_length == 64
    assert "sentence_bert_config.json: says max_seq_length 66, but the encoder has 64 positions" in caplog.text


@pytest.mark.parametrize("weights", ["beside", "in the folder named", "in a folder beside"])
def test_a_peft_adapter_in_the_folder_is_applied(
    tokenizer: Any, encoder: DualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str
) -> None:
    base = hugging_face(tmp_path / "base", tokenizer, tower(encoder.params, "question"))
    plain = DualEncoder.from_pretrained(base, pooling="mean", normalise=True)
    shape = AdapterShape(lora_rank=2, lora_targets=("query", "value"), bottleneck=0)
    modules = jax.tree.map(lambda leaf: RNG.normal(size=leaf.shape), init_adapter(shape, BERT, seed=0))
    expected = Adapter(shape, {"shared": modules}, plain.config, None).put_into(plain)
    monkeypatch.chdir(tmp_path)
    named = {"beside": "elsewhere", "in the folder named": "base", "in a folder beside": "../base"}[weights]
    Adapter.of(expected).save_peft(tmp_path / "adapted", named)
    if weights == "beside":
        shutil.copytree(base, tmp_path / "adapted", dirs_exist_ok=True)
    loaded = DualEncoder.from_pretrained(tmp_path / "adapted", pooling="mean", normalise=True)
    texts = ["who wrote it", "nation"]
    np.testing.assert_allclose(loaded.encode_queries(texts), expected.encode_queries(texts), atol=1e-6)
    assert np.abs(loaded.encode_queries(texts) - plain.encode_queries(texts)).max() > 1e-3
    assert encoder_shape(str(tmp_path / "adapted")).adapter == loaded.config.adapter


def test_an_adapter_without_its_model_says_what_to_do(tokenizer: Any, encoder: DualEncoder, tmp_path: Path) -> None:
    shape = AdapterShape(lora_rank=2, lora_targets=("query",), bottleneck=0)
    modules = init_adapter(shape, BERT, seed=0)
    for base in ("./gone", "."):
        Adapter(shape, {"shared": modules}, encoder.config, None).save_peft(tmp_path / "adapter", base)
        for read in (DualEncoder.from_pretrained, load_scorer):
            with pytest.raises(UserError, match=r"adapter: holds an adapter alone.*load_adapter"):
                read(tmp_path / "adapter")


def test_lower_casing_survives_saving(modules: Any, tmp_path: Path) -> None:
    def rows(encoder: DualEncoder) -> list[list[int]]:
        return question_rows(encoder.tokenizer, ["THE Nation", "the nation"], 16).ids

    folder = modules(("x.Pooling", LEGACY_MEAN))
    # As the folders of cased models have it.
    cased = (folder / "tokenizer.json").read_text().replace('"lowercase": true', '"lowercase": false')
    (folder / "tokenizer.json").write_text(cased)
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    plain = rows(DualEncoder.from_pretrained(folder))
    assert plain[0] != plain[1], "a tokenizer that lower-cases by itself would hide everything"
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 32, "do_lower_case": true}')
    loaded = DualEncoder.from_pretrained(folder)
    loaded.save(tmp_path / "saved")
    for encoder in (loaded, DualEncoder.from_pretrained(tmp_path / "saved")):
        assert rows(encoder) == [plain[1], plain[1]]


@pytest.mark.parametrize(
    ("parts", "prompts", "message"),
    [
        ([("x.Pooling", {"pooling_mode": "sum"})], None, "pooling sum is not supported; supported: cls or mean or max"),
        (
            [("x.Pooling", {**LEGACY_MEAN, "pooling_mode_cls_token": True})],
            None,
            r"pooling cls \+ mean is not supported",
        ),
        (
            [("x.Pooling", LEGACY_MEAN), ("x.Dense", {"activation_function": "torch.nn.modules.activation.ReLU"})],
            None,
            "has activation torch.nn.modules.activation.ReLU; supported: Identity and Tanh",
        ),
        (
            [("x.Pooling", LEGACY_MEAN), ("x.Normalise", {})],
            None,
            "Normalise is not supported; did you mean 'Normalize'",
        ),
        ([("x.Normalize", {}), ("x.Pooling", LEGACY_MEAN)], None, "Normalize, Pooling are not supported together"),
        ([], None, "a Transformer and a Pooling are needed"),
        ([("x.Pooling", LEGACY_MEAN)], {"prompts": {"query": 5}}, "'prompts' is not an object of texts; correct it"),
        ([("x.Pooling", {**LEGACY_MEAN, "include_prompt": False})], None, "'include_prompt' is false, but prompts are"),
    ],
)
def test_what_is_not_supported_is_said(modules: Any, parts: Any, prompts: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        DualEncoder.from_pretrained(modules(*parts, prompts=prompts))


@pytest.mark.parametrize("path", ["../outside", "1_Pooling/../../outside", "/", "a\0b"])
def test_a_module_outside_of_the_folder_is_not_read(modules: Any, tmp_path: Path, path: str) -> None:
    folder = modules(("x.Pooling", LEGACY_MEAN))
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "config.json").write_text(json.dumps(LEGACY_MEAN))
    entries = json.loads((folder / "modules.json").read_text())
    entries[1]["path"] = str(tmp_path / "outside") if path == "/" else path
    (folder / "modules.json").write_text(json.dumps(entries))
    with pytest.raises(UserError, match=r"modules\.json: the path '.*' leads out of the folder; correct it"):
        DualEncoder.from_pretrained(folder)


def test_a_list_of_no_modules_is_named_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[]")
    with pytest.raises(UserError, match=r"modules\.json: .* it lists no module; copy it again"):
        DualEncoder.from_pretrained(tmp_path)


def test_a_tokenizer_that_cannot_read_unknown_words_is_named(tokenizer: Any, tmp_path: Path) -> None:
    """It would fail at the first text that has one, an hour into `encode`."""
    tokenizer.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    del content["model"]["vocab"]["[UNK]"]
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "[UNK]"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    with pytest.raises(UserError, match=r"tokenizer .*unknown words \(.*UNK.*\)"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": "x"}))
    tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"has model_max_length 'x'; give a number of tokens"):
        load_tokenizer(tmp_path)


def test_a_prompt_that_is_not_applied_is_said(modules: Any, caplog: pytest.LogCaptureFixture) -> None:
    """sentence-transformers 6 puts the prompt named document before passages, which is empty unless stated."""
    prompts = {"query": "query: ", "passage": "passage: "}
    folder = modules(("x.Pooling", LEGACY_MEAN), prompts={"prompts": prompts, "default_prompt_name": "query"})
    with caplog.at_level(logging.WARNING):
        config = DualEncoder.from_pretrained(folder).config
    assert (config.query_prompt, config.passage_prompt) == ("query: ", "")
    assert "its prompt 'passage' ('passage: ') is not put before passages" in caplog.text
    config = DualEncoder.from_pretrained(folder, query_prompt="", passage_prompt="passage").config
    assert (config.query_prompt, config.passage_prompt) == ("", "passage: ")
