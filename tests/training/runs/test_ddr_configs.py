"""DDR's experiment files: the paper's numbers, what they mean to the programs, and the small Chinese run end to end."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxretr.config import AdapterShape, ContrastiveConfig, MlmConfig, from_json, load, to_json
from jaxretr.data.readers import read_beir, read_corpus
from jaxretr.data.tokenizer_training import train_tokenizer
from jaxretr.data.tokens import load_tokenizer
from jaxretr.models.backbones.adapter_layers import abstract_adapter, count
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UsageError
from jaxretr.training import optim
from jaxretr.training.loop import train
from jaxretr.training.runs.contrastive import ContrastiveRun

CONFIGS = Path(__file__).parents[3] / "configs"
CHINESE = Path(__file__).parents[2] / "data/chinese"


@pytest.fixture(autouse=True)
def no_settings_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATA", "DAM", "START", "CORPUS", "TRAIN"):
        monkeypatch.delenv(f"JAXRETR_{name}", raising=False)


def mlm(name: str, *words: str, data_folder: Path | None = None) -> MlmConfig:
    config = load(CONFIGS / f"ddr_{name}.py", words, data_folder)
    assert isinstance(config, MlmConfig)
    return config


def contrastive(name: str, *words: str, data_folder: Path | None = None) -> ContrastiveConfig:
    config = load(CONFIGS / f"ddr_{name}.py", words, data_folder)
    assert isinstance(config, ContrastiveConfig)
    return config


def test_every_config_of_ddr_loads_and_survives_json() -> None:
    paths = sorted(CONFIGS.glob("ddr_*.py"))
    names = [path.stem for path in paths]
    assert {"ddr_msmarco_dam", "ddr_msmarco_rem", "ddr_small_dam", "ddr_small_rem"} <= set(names)
    for path in paths:
        config = load(path)
        assert config.name == path.stem, "a copied file keeps the other's name"
        assert from_json(json.loads(json.dumps(to_json(config)))) == config


# ---- the paper's numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "start", "batch", "length", "rate", "steps"),
    [
        ("msmarco_dam", "bert-base-uncased", 1024, 100, 5e-5, 100_000),
        ("lotte_dam", "runs/ddr/msmarco_dam/model", 512, 190, 2e-5, 50_000),
        ("trec_covid_dam", "runs/ddr/msmarco_dam/model", 512, 190, 2e-5, 20_000),
        ("dureader_dam", "bert-base-chinese", 512, 190, 5e-5, 100_000),
    ],
)
def test_a_domain_module_is_trained_as_published(
    name: str, start: str, batch: int, length: int, rate: float, steps: int
) -> None:
    config = mlm(name)
    assert config.start == start
    assert (config.train.batch_size, config.data.max_length, config.train.steps) == (batch, length, steps)
    assert (config.mask_rate, config.optimizer.weight_decay, config.dropout) == (0.15, 0.01, 0.1)
    assert config.chunk is not None and batch % config.chunk == 0
    # 1,000 steps of warm-up, then constant: what the optimizer makes of the two shares.
    rates = optim.schedule(config.optimizer, steps)
    found = [float(rates(step)) for step in (0, 499, 999, 1000, steps // 2, steps - 1)]
    np.testing.assert_allclose(found, [rate / 1000, rate / 2, rate, rate, rate, rate], rtol=1e-5)  # float32


@pytest.mark.parametrize(
    ("name", "path", "rate", "normalise", "temperature", "hard", "length", "steps"),
    [
        ("msmarco_rem", "runs/ddr/msmarco_dam/model", 2e-5, False, 1.0, 3, 128, 5 * 502_939 // 128),
        ("msmarco_rem_margin_mse", "runs/ddr/msmarco_dam/model", 2e-5, False, 1.0, 3, 128, 20 * 502_939 // 128),
        ("msmarco_dr", "bert-base-uncased", 1e-5, False, 1.0, 3, 128, 5 * 502_939 // 128),
        ("dureader_rem", "runs/ddr/dureader_dam/model", 2e-5, True, 0.05, 0, 384, 300_000 // 128),
    ],
)
def test_a_relevance_module_is_trained_as_published(
    name: str, path: str, rate: float, normalise: bool, temperature: float, hard: int, length: int, steps: int
) -> None:
    config = contrastive(name)
    encoder, optimizer = config.encoder, config.optimizer
    assert encoder.path == path
    assert (encoder.shared, encoder.pooling, encoder.normalise, encoder.dropout) == (True, "mean", normalise, 0.1)
    assert (encoder.max_question_length, encoder.max_passage_length) == (24, length)
    assert config.contrastive.temperature == temperature
    assert (config.train.batch_size, config.train.steps) == (128, steps)
    # Candidates: 128 positives and three times as many hard negatives; judged positives do not count against a question.
    negatives = config.negatives
    assert (negatives.static, negatives.mined, negatives.retrieved) == (hard, 0, 0)
    assert (negatives.mask_known_positives, negatives.mask_duplicates) == (True, False)
    assert (optimizer.weight_decay, optimizer.clip) == (0.0, 1.0)
    # Constant from the first step to the last.
    rates = optim.schedule(optimizer, steps)
    np.testing.assert_allclose([float(rates(step)) for step in (0, 1, steps - 1)], rate, rtol=1e-5)
    shape = None if name == "msmarco_dr" else AdapterShape(192, None, ("query", "value"), 192, 4.0)
    assert encoder.adapter == shape
    weights = (config.distillation.loss, config.distillation.contrastive_weight)
    assert weights == (("margin_mse", 0.0) if name.endswith("mse") else ("none", 1.0))


def test_the_module_has_the_published_number_of_parameters() -> None:
    shape = contrastive("msmarco_rem").encoder.adapter
    assert shape is not None
    base, chinese = BertConfig(), BertConfig(vocab_size=21_128)
    for bert in (base, chinese):
        sizes = abstract_adapter(shape, bert)
        assert (count(sizes["lora"]), count(sizes["parallel"])) == (7_077_888, 3_550_464)
    small = contrastive("small_rem").encoder.adapter
    assert small is not None
    bert = BertConfig(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512)
    # Per layer: two LoRAs of 2 x 128 x 32, and 2 x 128 x 32 + 32 + 128 beside the feed-forward network.
    assert count(abstract_adapter(small, bert)) == 4 * (2 * 8192 + 8192 + 160)


# ---- the caller's settings -------------------------------------------------------------------------------------------


def test_the_modules_shape_can_be_overridden_on_the_command_line() -> None:
    lora = contrastive("msmarco_rem", "--encoder.adapter.bottleneck", "0", "--encoder.adapter.lora-rank=96")
    assert lora.encoder.adapter == AdapterShape(lora_rank=96, bottleneck=0)
    wide = contrastive("small_rem", "--encoder.adapter.lora-targets", "query", "ffn_in", "--encoder.adapter.scale", "2")
    assert wide.encoder.adapter == AdapterShape(32, None, ("query", "ffn_in"), 32, 2.0)
    with pytest.raises(UsageError, match=r"did you mean '--encoder\.adapter\.lora-rank'"):
        contrastive("small_rem", "--encoder.adapter.lora-rnak", "8")


@pytest.mark.parametrize(("rem", "dr"), [("msmarco_rem", "msmarco_dr"), ("small_rem", "small_dr")])
def test_the_baseline_differs_from_the_module_in_nothing_but_what_is_trained(rem: str, dr: str) -> None:
    first, second = contrastive(rem), contrastive(dr)
    assert first.encoder.adapter is not None and second.encoder.adapter is None
    encoder = dataclasses.replace(second.encoder, path=first.encoder.path, adapter=first.encoder.adapter)
    rate = dataclasses.replace(second.optimizer, learning_rate=first.optimizer.learning_rate)
    assert dataclasses.replace(second, name=first.name, encoder=encoder, optimizer=rate) == first


def test_the_folder_of_the_data_sets_reaches_every_config() -> None:
    for path in sorted({*CONFIGS.glob("ddr_*.py")} - {*CONFIGS.glob("ddr_small_*.py")}):
        there = json.dumps(to_json(load(path, data_folder="/my/sets")))
        assert there == json.dumps(to_json(load(path))).replace('"data/', '"/my/sets/'), path
    assert mlm("msmarco_dam", data_folder=Path("/my")).data.corpora == ("/my/msmarco",)
    assert contrastive("msmarco_rem_margin_mse", data_folder=Path("/my")).data.train == "/my/msmarco-scores.jsonl"


# ---- Chinese ---------------------------------------------------------------------------------------------------------

IDEOGRAPH = re.compile("[\u4e00-\u9fff]")


def test_a_vocabulary_of_chinese_is_one_of_characters(tmp_path: Path) -> None:
    texts = [f"{passage.title} {passage.text}" for passage in read_corpus(CHINESE)]
    train_tokenizer("bert", texts, 4000, tmp_path / "tokenizer")
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    entries = [entry for entry in tokenizer.get_vocab() if IDEOGRAPH.search(entry)]
    assert all(len(entry) == 1 for entry in entries)
    # Each character stands for itself, in its order; next to none is unknown (1,260 different ones are in the texts).
    assert tokenizer.tokenize("尤金袋鼠是袋鼠科") == list("尤金袋鼠是袋鼠科")
    pieces = [piece for text in texts for piece in tokenizer.tokenize(text)]
    assert pieces.count("[UNK]") < 0.002 * len(pieces)
    characters = [character for text in texts for character in text if IDEOGRAPH.match(character)]
    found = [piece for piece in pieces if IDEOGRAPH.match(piece)]
    assert len(found) > 0.998 * len(characters) and set(found) <= set(characters)


@pytest.fixture(scope="module")
def chinese_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[ContrastiveConfig, Path]:
    """The two Chinese configs on 20 passages: the domain module trained, and the config that takes it up."""
    folder = tmp_path_factory.mktemp("chinese")
    (folder / "data").mkdir()
    (folder / "data/cmrc2018_zh").symlink_to(CHINESE)
    shape = ["--bert.hidden-size=16", "--bert.layers=2", "--bert.heads=2", "--bert.intermediate-size=32"]
    steps = ["--train.steps=2", "--train.batch-size=8", "--train.eval-every=2"]
    data = ["--data.held-out=8", "--data.max-length=32", "--data.vocab-size=1600"]
    train(mlm("small_chinese_dam", *shape, *steps, *data, data_folder=folder / "data"), folder / "dam")
    adapter = ["--encoder.adapter.lora-rank=4", "--encoder.adapter.bottleneck=4", f"--encoder.path={folder}/dam/model"]
    words = [*adapter, "--train.steps=2", "--train.batch-size=16", "--encoder.max-passage-length=64"]
    return contrastive("small_chinese_rem", *words, data_folder=folder / "data"), folder


def test_the_chinese_loss_is_of_cosines_times_20(
    chinese_run: tuple[ContrastiveConfig, Path], mesh8: jax.sharding.Mesh
) -> None:
    config, folder = chinese_run
    run = ContrastiveRun(config, mesh8, folder / "rem")
    state, batch = run.init(), run.batch(0)
    rows, chosen = np.asarray(batch.rows)[:, 0], run.batches.indices(0)
    # Vectors of an independent length, whose cosines are taken here.
    assert isinstance(run.model, DualEncoder)
    settings: Any = dataclasses.replace(run.model.config, normalise=False)
    encoder = DualEncoder(settings, run.model.params, run.model.tokenizer)
    beir = read_beir(CHINESE, "trial")
    questions = [str(run.examples.texts[number]) for number in chosen]
    q = encoder.encode_queries(questions, progress=False).astype(np.float64)
    p = encoder.encode_passages([beir.corpus[int(row)] for row in rows], progress=False).astype(np.float64)
    cosines = (q @ p.T) / np.linalg.norm(q, axis=1)[:, None] / np.linalg.norm(p, axis=1)
    # Two questions have one passage: the other's copy of it does not count.
    own = rows[None, :] == rows[:, None]
    assert own.sum() > len(rows), "no passage occurs twice in the batch; the mask is not seen"
    scores = np.where(own & ~np.eye(len(rows), dtype=bool), -np.inf, 20 * cosines)
    expected = np.mean(np.log(np.exp(scores).sum(axis=1)) - np.diag(scores))

    _, values = run.step(state, 0, run.batch(0))
    # float32 against float64; multipliers of 1 and of 19 are further off than that.
    np.testing.assert_allclose(float(values["loss"]), expected, rtol=1e-5)
    for multiplier in (1, 19):
        other = scores * multiplier / 20
        assert abs(np.mean(np.log(np.exp(other).sum(axis=1)) - np.diag(other)) / expected - 1) > 1e-4


def test_the_chinese_module_is_trained_beside_the_frozen_encoder(chinese_run: tuple[ContrastiveConfig, Path]) -> None:
    config, folder = chinese_run
    train(config, folder / "trained")
    dam, model = (DualEncoder.from_pretrained(folder / name) for name in ("dam/model", "trained"))
    tower = model.params["shared"]
    jax.tree.map(np.testing.assert_array_equal, tower["bert"], dam.params["shared"]["bert"])
    assert all(np.any(value) for value in jax.tree.leaves(tower["adapter"]["lora"])), "LoRA's B has not left zero"
    assert model.config.normalise and model.config.adapter == config.encoder.adapter
