"""Masked language modelling: its statistics, PyTorch's loss and folders, where it starts, and its compiled step."""

import dataclasses
import json
import shutil
import threading
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from safetensors.numpy import load_file
from scipy import stats
from tiny import BERT, DATA, lively

from jaxretr.config import AdapterShape, MlmConfig, Optimizer, PretrainData, Train
from jaxretr.data.readers import read_corpus
from jaxretr.data.tokens import load_tokenizer
from jaxretr.models.adapter import Adapter
from jaxretr.models.backbones.adapter_layers import init_adapter
from jaxretr.models.backbones.layers import Params, bind, define
from jaxretr.models.backbones.masked_lm import MaskedLm
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.hub.encoder_params import export_encoder
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.loop import train
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.plan.compiled_text import Program
from jaxretr.training.runs.mlm import MlmRun
from jaxretr.training.state import TrainState
from jaxretr.training.steps.mlm import MaskedBatch, mask
from jaxretr.training.steps.token_step import make_token_step

pytestmark = pytest.mark.usefixtures("float32_products")

SEED = 17
RATE = 0.15

# ---- what is masked --------------------------------------------------------------------------------------------------

# Scattered, as in published vocabularies: what is ordinary is no range of ids.
CLS, SEP, UNK, MASK = 2, 3, 41, 101
SPECIAL = np.array([0, CLS, SEP, UNK, 97, MASK])
VOCABULARY = 211
WORDS = np.setdiff1d(np.arange(VOCABULARY), SPECIAL)
FREQUENCIES = np.random.default_rng(SEED).dirichlet(np.full(len(WORDS), 0.5))

CASES = pytest.mark.parametrize("length", [24, 96, 128, 512])
ROWS = pytest.mark.parametrize("padded", [False, True], ids=["full rows", "padded rows"])


@cache
def drawn(length: int, padded: bool, seed: int = SEED) -> tuple[np.ndarray, np.ndarray, MaskedBatch]:
    """(tokens, which of them may be chosen, the masked batch); of the latter kind there are about a million.

    Some words are far more frequent than others, and behind a row's end stand ordinary words: where padding is, only
    the length tells.
    """
    rng = np.random.default_rng(SEED)
    lengths = rng.integers(3, length + 1, 2_150_000 // length) if padded else np.full(1_150_000 // length, length)
    tokens = rng.choice(WORDS, (len(lengths), length), p=FREQUENCIES)
    tokens[rng.random(tokens.shape) < 0.01] = UNK
    tokens[rng.random(tokens.shape) < 0.01] = MASK
    tokens[:, 0], tokens[np.arange(len(lengths)), lengths - 1] = CLS, SEP
    tokens = tokens.astype(np.uint16)
    free = (np.arange(length) < lengths[:, None]) & ~np.isin(tokens, SPECIAL)
    before = tokens.copy()
    batch = mask(
        np.random.default_rng(seed), tokens, lengths, rate=RATE, mask_id=MASK, special=SPECIAL, vocab_size=VOCABULARY
    )
    np.testing.assert_array_equal(tokens, before, err_msg="the token store's rows were written to")
    return tokens, free, batch


def within_3_sigma(count: float, n: float, share: float) -> bool:
    """Whether a count of n independent draws is where it should be."""
    return abs(count - n * share) < 3 * np.sqrt(n * share * (1 - share))


def chi_square_within_3_sigma(observed: np.ndarray, expected: np.ndarray, freedom: int) -> bool:
    return abs(((observed - expected) ** 2 / expected).sum() - freedom) < 3 * np.sqrt(2 * freedom)


@ROWS
@CASES
def test_15_percent_of_the_ordinary_tokens_are_chosen(length: int, padded: bool) -> None:
    tokens, free, batch = drawn(length, padded)
    chosen = np.zeros(tokens.shape, int)
    np.add.at(chosen, (np.arange(len(tokens))[:, None], batch.positions), batch.weights.astype(int))
    assert chosen.max() == 1, "a token is predicted twice"
    assert not chosen[~free].any(), "special tokens and padding are never predicted"
    assert free.sum() > 990_000
    assert within_3_sigma(chosen.sum(), free.sum(), RATE)
    # Everywhere in the row alike.
    there = free.sum(axis=0)
    at = there > 1000
    spread = (chosen.sum(axis=0) - RATE * there)[at] ** 2 / (RATE * (1 - RATE) * there[at])
    assert abs(spread.sum() - at.sum()) < 3 * np.sqrt(2 * at.sum())
    # And tokens are chosen one by one, not a fixed number a row.
    off = (chosen.sum(axis=1) - RATE * free.sum(axis=1)) ** 2
    assert abs(off.mean() / (RATE * (1 - RATE) * free.sum(axis=1).mean()) - 1) < 3 * np.sqrt(2 / len(tokens))


@ROWS
@CASES
def test_what_a_row_has_no_place_for_is_too_little_to_be_seen(length: int, padded: bool) -> None:
    """A row has P places. The share of predictions lost to that is a bias, which no number of tokens averages out."""
    _, free, batch = drawn(length, padded)
    n, rows = np.unique(free.sum(axis=1), return_counts=True)
    beyond = np.arange(batch.positions.shape[1] + 1, length + 1)
    lost = rows @ (stats.binom.pmf(beyond, n[:, None], RATE) @ (beyond - batch.positions.shape[1]))
    assert lost < 3e-4 * RATE * free.sum(), lost / (RATE * free.sum())
    assert lost < 0.1 * np.sqrt(free.sum() * RATE * (1 - RATE)), "far below what a million tokens can show"


@ROWS
@CASES
def test_80_percent_are_masked_and_10_percent_are_random_words(length: int, padded: bool) -> None:
    """A random word is the original once in W times, so 10% + 10% / W look as if they had been kept."""
    tokens, _, batch = drawn(length, padded)
    used = batch.weights > 0
    labels = batch.labels[used].astype(int)
    shown = np.take_along_axis(batch.tokens, batch.positions, axis=1)[used].astype(int)
    np.testing.assert_array_equal(labels, np.take_along_axis(tokens, batch.positions, axis=1)[used])
    same, masked = shown == labels, shown == MASK
    n, words = len(labels), len(WORDS)
    assert within_3_sigma(masked.sum(), n, 0.8)
    assert within_3_sigma(same.sum(), n, 0.1 + 0.1 / words)
    other = ~same & ~masked
    assert within_3_sigma(other.sum(), n, 0.1 * (1 - 1 / words))
    assert not np.isin(shown[other], SPECIAL).any(), "a special token was drawn as a random word"
    # Uniform over the vocabulary, however frequent a word is in the text; a word cannot replace itself unseen.
    expected = n - np.bincount(labels, minlength=VOCABULARY)[WORDS]
    expected = other.sum() * expected / expected.sum()
    assert chi_square_within_3_sigma(np.bincount(shown[other], minlength=VOCABULARY)[WORDS], expected, words - 1)
    # What happens to a token does not depend on which word it is: the most frequent ones are masked as often.
    frequent = np.isin(labels, WORDS[np.argsort(-FREQUENCIES)[:10]])
    assert within_3_sigma(masked[frequent].sum(), frequent.sum(), 0.8)
    # All the rest of the batch is as it was.
    rest = np.ones(tokens.shape, bool)
    rows, places = np.nonzero(used)
    rest[rows, batch.positions[rows, places]] = False
    np.testing.assert_array_equal(batch.tokens[rest], tokens[rest])


def test_masks_follow_the_seed() -> None:
    """A resumed run sees the batches of the run that was killed; another epoch sees other masks."""
    _, free, first = drawn(24, False)
    again, other = drawn.__wrapped__(24, False)[2], drawn.__wrapped__(24, False, SEED + 1)[2]
    jax.tree.map(np.testing.assert_array_equal, first, again)
    both = _chosen(first, free.shape) & _chosen(other, free.shape)
    assert within_3_sigma(both.sum(), free.sum(), RATE**2), "masks of two seeds have to do with each other"


def _chosen(batch: MaskedBatch, shape: tuple[int, ...]) -> np.ndarray:
    chosen = np.zeros(shape, bool)
    rows, places = np.nonzero(batch.weights)
    chosen[rows, batch.positions[rows, places]] = True
    return chosen


# ---- against PyTorch -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The beginnings of the test passages, from 6 words to 63: shorter and longer than what a row holds."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    rows = [
        {"_id": str(n), "title": passage.title, "text": " ".join(passage.text.split()[: 6 + 3 * n])}
        for n, passage in enumerate(read_corpus(DATA))
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def theirs(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """(transformers' BertForMaskedLM with every parameter drawn at random, the folder that it wrote)."""
    torch = pytest.importorskip("torch", reason="parity is measured against PyTorch: pip install torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.BertForMaskedLM(transformers.BertConfig(**_theirs_of(BERT)))
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in model.named_parameters():
        parameter.data.normal_(1.0 if "LayerNorm.weight" in name else 0.0, 0.25, generator=generator)
    folder = tmp_path_factory.mktemp("theirs")
    model.eval().save_pretrained(folder)
    load_tokenizer(tiny_models / "encoder_tokenizer").save_pretrained(folder)
    return model, folder


def _theirs_of(bert: Any) -> dict[str, Any]:
    fields = dataclasses.asdict(bert)
    return {name: value for name, value in fields.items() if name != "pre_layer_norm"}


def mlm_config(corpus: str, start: Path | None, **changes: Any) -> MlmConfig:
    changes.setdefault("data", PretrainData(corpora=(corpus,), max_length=48, held_out=0))
    changes.setdefault("train", Train(steps=6, batch_size=16, log_every=1, save_every=2))
    changes.setdefault("optimizer", Optimizer(learning_rate=1e-2, warmup=0.1, weight_decay=0.0, eps=1e-5))
    return MlmConfig(name="tiny", start=None if start is None else str(start), **changes)


@pytest.fixture(scope="module")
def run(corpus: str, theirs: tuple[Any, Path], mesh1: Mesh, tmp_path_factory: pytest.TempPathFactory) -> MlmRun:
    """Goes on from the folder that transformers wrote."""
    return MlmRun(mlm_config(corpus, theirs[1]), mesh1, tmp_path_factory.mktemp("run"))


def torch_output(model: Any, batch: MaskedBatch) -> Any:
    """transformers' output for our batch, where -100 is no label."""
    import torch

    tokens = torch.tensor(np.asarray(batch.tokens).astype(np.int64))
    labels = np.full(tokens.shape, -100)
    rows, places = np.nonzero(batch.weights)
    labels[rows, np.asarray(batch.positions)[rows, places]] = np.asarray(batch.labels)[rows, places]
    real = torch.arange(tokens.shape[1]) < torch.tensor(np.asarray(batch.lengths))[:, None]
    return model(input_ids=tokens, attention_mask=real.long(), labels=torch.tensor(labels))


def ours(run: MlmRun, params: Params, batch: MaskedBatch) -> jax.Array:
    """The mean over the batch's predictions."""
    total, count = run.programs.loss(params, batch, None)
    return total / count


def test_loss_and_gradients_are_those_of_pytorch(run: MlmRun, theirs: tuple[Any, Path]) -> None:
    """Loss to 1e-5, gradients to 1e-4 (the key biases' is rounding alone): float32 sums in another order."""
    torch = pytest.importorskip("torch")
    model, state, batch = theirs[0], run.init(), run.batch(0)
    assert len(set(np.asarray(batch.lengths))) > 3 and int(batch.lengths.max()) == 48, "padding and windows"
    loss, gradients = jax.device_get(jax.jit(jax.value_and_grad(lambda p: ours(run, p, batch)))(state.params))
    model.zero_grad()
    expected = torch_output(model, batch).loss
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
    found = export_encoder(run.bert, gradients["bert"], mlm_head=gradients["head"])[1]
    parameters = dict(model.named_parameters())
    assert found.keys() == parameters.keys()
    for name, gradient in found.items():
        wanted = parameters[name].grad.numpy()
        np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-4 * max(abs(wanted).max(), 1e-2), err_msg=name)

    # The word embedding is used twice, as the input's table and as the output's matrix; untied, each has its part.
    table = parameters["bert.embeddings.word_embeddings.weight"]
    decoder = model.cls.predictions.decoder
    try:
        decoder.weight = torch.nn.Parameter(table.detach().clone())
        model.zero_grad()
        torch_output(model, batch).loss.backward()
        parts = table.grad.numpy(), decoder.weight.grad.numpy()
    finally:
        decoder.weight = table
    tied = found["bert.embeddings.word_embeddings.weight"]
    for part in parts:
        assert abs(tied - part).max() > 1e-3, "the other part is not there to be lost"
    np.testing.assert_allclose(tied, sum(parts), rtol=1e-4, atol=1e-4 * abs(tied).max())

    _, metrics = run.step(run.init(), 0, run.batch(0))
    np.testing.assert_allclose(float(metrics["loss"]), expected.item(), rtol=1e-5, err_msg="not begun with the head")


def test_our_folder_is_one_of_transformers(run: MlmRun, tmp_path: Path) -> None:
    """BertForMaskedLM finds every tensor that it wants, and none that it does not, and gives our scores."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    params = lively(jax.device_get(run.init().params), SEED)
    run.save_model(TrainState.create(params, run.programs.optimizer), tmp_path)
    model, report = transformers.BertForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    batch = run.batch(1)
    logits = torch_output(model.eval(), batch).logits.detach().numpy()
    wanted = np.take_along_axis(logits, np.asarray(batch.positions)[..., None], axis=1)
    graph, _ = define(lambda rngs: MaskedLm(run.bert, rngs=rngs))
    found = jax.jit(lambda p: bind(graph, p)(batch.tokens, batch.lengths, batch.positions))(params)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * abs(wanted).max())


def test_the_head_of_transformers_goes_through_our_folder_bit_for_bit(
    run: MlmRun, theirs: tuple[Any, Path], corpus: str, mesh1: Mesh, tmp_path: Path
) -> None:
    model, folder = theirs
    predictions = {name: tensor.detach().numpy() for name, tensor in model.cls.predictions.named_parameters()}
    encoder = DualEncoder.from_pretrained(folder)
    assert encoder.mlm_head is not None
    np.testing.assert_array_equal(encoder.mlm_head["dense"]["kernel"], predictions["transform.dense.weight"].T)
    np.testing.assert_array_equal(encoder.mlm_head["dense"]["bias"], predictions["transform.dense.bias"])
    np.testing.assert_array_equal(encoder.mlm_head["norm"]["scale"], predictions["transform.LayerNorm.weight"])
    np.testing.assert_array_equal(encoder.mlm_head["norm"]["bias"], predictions["transform.LayerNorm.bias"])
    np.testing.assert_array_equal(encoder.mlm_head["bias"], predictions["bias"])
    encoder.save(tmp_path / "ours")
    again = DualEncoder.from_pretrained(tmp_path / "ours")
    same((again.params, again.mlm_head), (encoder.params, encoder.mlm_head))
    # And from there into a run: the same start as from their folder.
    from_ours = MlmRun(mlm_config(corpus, tmp_path / "ours"), mesh1, tmp_path / "run")
    same(from_ours.init().params, run.init().params)


def same(one: Any, other: Any) -> None:
    """Bit for bit, and of one structure."""
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(one), jax.device_get(other))


# ---- where a run starts ----------------------------------------------------------------------------------------------


def test_a_start_without_a_head_gets_one_and_then_learns(tiny_models: Path, mesh1: Mesh, tmp_path: Path) -> None:
    """The head is trained with the encoder as it was, and then both lower the perplexity of held-out passages."""
    data = PretrainData(corpora=(str(DATA),), max_length=64, held_out=8)
    settings = {"data": data, "train": Train(steps=40, batch_size=12), "head_learning_rate": 3e-3, "dropout": 0.1}
    runs = [
        MlmRun(mlm_config("", tiny_models / "encoder", head_warmup=steps, **settings), mesh1, tmp_path)
        for steps in (0, 40)
    ]
    encoder = DualEncoder.from_pretrained(tiny_models / "encoder").params["shared"]["bert"]
    cold, state = (run.init() for run in runs)
    same(cold.params["bert"], encoder)
    same(state.params["bert"], encoder)
    same(runs[1].start, encoder)
    for leaf, before in zip(*(jax.tree.leaves(one.params["head"]) for one in (state, cold)), strict=True):
        assert (np.asarray(leaf) != np.asarray(before)).any()
    abstract = runs[1].abstract_state()
    assert jax.tree.structure(abstract) == jax.tree.structure(state), "a checkpoint of it could not be read"
    assert int(state.step) == 0 and not state.frozen

    run = runs[1]
    perplexities = [run.evaluate(cold)["perplexity"], run.evaluate(state)["perplexity"]]
    for number in range(40):
        state, _ = run.step(state, number, run.batch(number))
    perplexities.append(run.evaluate(state)["perplexity"])
    assert perplexities[1] < 0.9 * perplexities[0], perplexities
    assert perplexities[2] < 0.9 * perplexities[1], perplexities


@pytest.mark.parametrize("merged", [False, True], ids=["beside", "merged"])
def test_adapters_of_the_start_are_left_out(
    merged: bool, tiny_models: Path, corpus: str, mesh1: Mesh, tmp_path: Path
) -> None:
    """A domain module is the encoder alone: what LoRA added belongs to the relevance module."""
    encoder = DualEncoder.from_pretrained(tiny_models / "encoder", shared=True)
    shape = AdapterShape(lora_rank=3, bottleneck=5)
    model = Adapter(shape, {"shared": lively(init_adapter(shape, BERT, SEED), SEED)}).put_into(encoder)
    (model.merge_lora() if merged else model).save(tmp_path / "model")
    params = MlmRun(mlm_config(corpus, tmp_path / "model", head_warmup=0), mesh1, tmp_path / "run").init().params
    assert params.keys() == {"bert", "head"}
    # Merged products are taken off again: float32 sums there and back.
    close = {"rtol": 0, "atol": 1e-6 if merged else 0}
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, **close), params["bert"], encoder.params["shared"]["bert"]
    )


def _without_mask(tokenizer_folder: Path) -> None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (path := tokenizer_folder / name).exists():
            content = json.loads(path.read_text())
            path.write_text(json.dumps({key: value for key, value in content.items() if key != "mask_token"}))


def test_starts_that_cannot_be_trained_are_refused(tiny_models: Path, corpus: str, mesh1: Mesh, tmp_path: Path) -> None:
    def begin(start: Path, **changes: Any) -> MlmRun:
        return MlmRun(mlm_config(corpus, start, head_warmup=0, **changes), mesh1, tmp_path / "run")

    model = DualEncoder.from_pretrained(tiny_models / "encoder", shared=False)
    model.save(tmp_path / "equal")
    same(begin(tmp_path / "equal").init().params["bert"], model.params["question"]["bert"])
    model.params["passage"]["bert"]["norm"]["bias"][3] += 1
    model.save(tmp_path / "towers")
    with pytest.raises(UserError, match="towers: its two towers are different encoders; give a model that has one"):
        begin(tmp_path / "towers")

    long = PretrainData(corpora=(corpus,), max_length=65, held_out=0)
    with pytest.raises(UsageError, match=r"has 64 positions, the config asks for 65; lower data\.max_length"):
        begin(tiny_models / "encoder", data=long)

    shutil.copytree(tiny_models / "encoder", tmp_path / "maskless")
    _without_mask(tmp_path / "maskless")
    with pytest.raises(UserError, match=r"maskless: the tokenizer has no \[MASK\]"):
        begin(tmp_path / "maskless")


def test_the_devices_do_not_wait_while_a_batch_is_masked(run: MlmRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step's batch is made in another thread while they work, and is the one that would be made here."""
    made, make = [], run.make_batch

    def noted(*arguments: Any) -> Any:
        made.append(threading.current_thread())
        return make(*arguments)

    monkeypatch.setattr(run, "make_batch", noted)
    ahead = [run.batch(number) for number in (5, 6)]
    assert len(made) >= 2 and threading.main_thread() not in made
    for number, batch in zip((5, 6), ahead, strict=True):
        same(batch, run._on_host(number))


def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(
    tiny_models: Path, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a head of its own making, dropout and chunks: all that could be drawn differently the second time."""
    config = mlm_config(corpus, tiny_models / "encoder", head_warmup=3, dropout=0.1, chunk=1)
    train(config, tmp_path / "whole")

    class Killed(BaseException):
        pass

    step = MlmRun.step

    def killed(run: MlmRun, state: TrainState, number: int, batch: Any) -> Any:
        if number == 5:
            raise Killed
        return step(run, state, number, batch)

    monkeypatch.setattr(MlmRun, "step", killed)
    with pytest.raises(Killed):
        train(config, tmp_path / "killed")
    monkeypatch.setattr(MlmRun, "step", step)
    monkeypatch.setattr(MlmRun, "init", lambda run: pytest.fail("it began anew"))
    train(config, tmp_path / "killed")

    weights = [load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "killed")]
    same(weights[0], weights[1])
    losses = [[(row["step"], row["loss"]) for row in read_metrics(tmp_path / name)] for name in ("whole", "killed")]
    assert losses[0] == losses[1] and [step for step, _ in losses[0]] == [1, 2, 3, 4, 5, 6]
    assert len(set(losses[0])) == 6


# ---- the compiled step -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dropping(corpus: str, theirs: tuple[Any, Path], mesh1: Mesh, tmp_path_factory: pytest.TempPathFactory) -> MlmRun:
    return MlmRun(mlm_config(corpus, theirs[1], dropout=0.1), mesh1, tmp_path_factory.mktemp("dropping"))


def steps(
    run: MlmRun,
    mesh: Mesh,
    optimizer: optax.GradientTransformation,
    frozen: tuple[str, ...] = (),
    number: int = 1,
    **settings: Any,
) -> tuple[TrainState, list[float], Program]:
    """The state after some steps, their losses, and the program."""
    params = run.first_parameters(0)
    trained = {name: branch for name, branch in params.items() if name not in frozen}
    kept = {name: branch for name, branch in params.items() if name in frozen}
    state = sharding.put(TrainState.create(trained, optimizer, kept), mesh)
    place = NamedSharding(mesh, sharding.ROWS)
    batches = [jax.device_put(jax.device_get(run.batch(n)), place) for n in range(number)]
    # Half the time to compile; LLVM's optimisations come after all that is read here.
    program = make_token_step(run.programs.loss, optimizer, mesh, **settings).lower(state, batches[0])
    compiled = program.compile({"xla_backend_optimization_level": 0})
    losses = []
    for batch in batches:
        state, metrics = compiled(state, batch)
        losses.append(float(metrics["loss"]))
    return jax.device_get(state), losses, Program(compiled.as_text())


def close(one: Any, other: Any) -> None:
    """To 1e-5 of the values, and of the largest ones where they nearly cancel: float32 sums in another order."""
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), one, other)


def test_chunks_change_the_memory_alone(dropping: MlmRun, mesh1: Mesh) -> None:
    """A step of plain gradient descent at rate 1 subtracts the gradient: rows with many predictions weigh more."""
    assert len(set(np.asarray(dropping.batch(0).weights).sum(axis=1))) > 3
    whole = steps(dropping, mesh1, optax.sgd(1.0), dropout=True)
    start = dropping.first_parameters(0)
    assert max(abs(x - y).max() for x, y in zip(*map(jax.tree.leaves, (whole[0].params, start)), strict=True)) > 0.01
    for chunk in (1, 2, 16):
        parts = steps(dropping, mesh1, optax.sgd(1.0), dropout=True, chunk=chunk)
        assert (parts[2].loops > whole[2].loops) == (chunk < 16)
        close((parts[0].params, parts[1]), (whole[0].params, whole[1]))
    undropped = steps(dropping, mesh1, optax.sgd(1.0))
    assert abs(undropped[1][0] - whole[1][0]) > 1e-3, "dropout was off"


def test_one_device_trains_as_eight(dropping: MlmRun, mesh1: Mesh, mesh8: Mesh) -> None:
    """A row's dropout goes by its place in the global batch, and a mean is one over all devices' tokens."""
    settings: dict[str, Any] = {"number": 3, "dropout": True}
    one, losses, _ = steps(dropping, mesh1, optax.sgd(0.1), **settings)
    eight, losses8, program = steps(dropping, mesh8, optax.sgd(0.1), chunk=1, **settings)
    close((one.params, losses), (eight.params, losses8))
    # Gradients are summed over the chunks first, and over the devices once, behind all loops.
    assert program.loops > 2
    assert [(op.kind, op.in_loop) for op in program.collectives] == [("all-reduce", False)]
    (reduced,) = program.collectives
    shapes = sorted(leaf.shape for leaf in jax.tree.leaves(one.params))
    assert sorted(array.shape for array in reduced.results) == sorted([*shapes, (), ()])


def test_a_second_step_is_not_compiled_anew(dropping: MlmRun, mesh1: Mesh) -> None:
    """On a "model" axis too the state comes back where it was put: the first step's program takes it as it is."""
    settings: dict[str, Any] = {"number": 2, "dropout": True}
    one, losses, _ = steps(dropping, mesh1, optax.adamw(1e-2), **settings)
    split, losses8, _ = steps(dropping, make_mesh(model=2), optax.adamw(1e-2), chunk=1, **settings)
    np.testing.assert_allclose(losses8, losses, rtol=1e-5)
    assert split.step == one.step == 2


def test_what_is_frozen_costs_nothing_and_stays(dropping: MlmRun, mesh8: Mesh) -> None:
    """As when a head is trained: the encoder's bits are the same, nothing is kept or sent for its gradient."""
    state, _, program = steps(dropping, mesh8, optax.adamw(1e-2), ("bert",), number=2, dropout=True, chunk=1)
    start = dropping.first_parameters(0)
    same(state.frozen, {"bert": start["bert"]})
    head = [leaf.shape for leaf in jax.tree.leaves(start["head"])]
    for leaf, before in zip(*map(jax.tree.leaves, (state.params, {"head": start["head"]})), strict=True):
        assert (leaf != before).any()
    kept = [leaf.shape for leaf in jax.tree.leaves(state.opt_state) if leaf.shape]
    assert sorted(kept) == sorted(head * 2), "Adam's two moments of the head, and of nothing else"
    assert [(op.kind, op.in_loop) for op in program.collectives] == [("all-reduce", False)]
    assert sorted(array.shape for array in program.collectives[0].results) == sorted([*head, (), ()])
