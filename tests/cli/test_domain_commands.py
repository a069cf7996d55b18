"""From a relevance module and domain encoders to models: train, assemble and adapt, as a user types them."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
import small_runs
from command_errors import the_error
from tiny import DATA, contrastive_config, lively, write_models

from jaxretr import adaptation, cli
from jaxretr.config import AdapterShape, MlmConfig, Optimizer, PretrainData, Train
from jaxretr.models.adapter import Adapter
from jaxretr.models.backbones.adapter_layers import init_adapter
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.hub.encoder_params import read_checkpoint
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.loop import train
from jaxretr.training.runs.mlm import MlmRun

SHAPE = AdapterShape(lora_rank=2, bottleneck=3)
TEXTS = ["who wrote the book", "where is it"]
# Without dev questions a run's model is that of its last step.
LAST: dict[str, dict[str, object]] = {"data": {"dev_questions": None}, "train": {"steps": 3}}
ADAPT = ["--steps", "4", "--batch-size", "8", "--max-length", "32", "--held-out", "8", "--learning-rate", "1e-2"]


def run(*words: object) -> int:
    return cli.main([str(word) for word in words])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dam: the encoder after some masked language modelling; rem: adapters trained in it; other: another domain."""
    folder = tmp_path_factory.mktemp("runs")
    write_models(folder)
    plan = MlmConfig(
        name="dam",
        start=str(folder / "encoder"),
        head_warmup=2,
        data=PretrainData(corpora=(str(DATA),), max_length=32, held_out=8),
        optimizer=Optimizer(learning_rate=1e-2),
        train=Train(steps=2, batch_size=8, log_every=1, save_every=2, eval_every=2, best_metric="loss"),
    )
    train(plan, folder / "dam")
    train(dataclasses.replace(plan, start=str(folder / "dam")), folder / "other")
    shared = {"path": str(folder / "dam"), "shared": True, "pooling": "mean", "adapter": SHAPE}
    train(contrastive_config(folder, encoder=shared, **LAST), folder / "rem")
    return folder


def vectors(path: Path) -> np.ndarray:
    return DualEncoder.from_pretrained(path).encode_queries(TEXTS)


def test_a_run_with_adapters_writes_an_ordinary_model_and_the_module_apart(runs: Path) -> None:
    model = DualEncoder.from_pretrained(runs / "rem")
    dam = read_checkpoint(runs / "dam/model")
    for new, old in zip(*map(jax.tree.leaves, (model.params["shared"]["bert"], dam.params)), strict=True):
        np.testing.assert_array_equal(new, old, "the domain's encoder is frozen")
    assert model.mlm_head is not None and dam.mlm_head is not None
    for new, old in zip(*map(jax.tree.leaves, (model.mlm_head, dam.mlm_head)), strict=True):
        np.testing.assert_array_equal(new, old, "the head is kept with the domain's encoder")
    adapter = Adapter.from_pretrained(runs / "rem")
    # 2 layers of 16: LoRA 2 x (16 x 2 + 2 x 16), the parallel adapter 16 x 3 + 3 + 3 x 16 + 16.
    assert adapter.size == 2 * (2 * (16 * 2 * 2) + 16 * 3 * 2 + 3 + 16)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(adapter.params))
    size = sum(path.stat().st_size for path in (runs / "rem/model/adapter").iterdir())
    assert size < (runs / "rem/model/model.safetensors").stat().st_size


def test_a_domains_folder_says_how_its_start_was_used(runs: Path, tmp_path: Path) -> None:
    data = PretrainData(corpora=(str(DATA),), max_length=32, held_out=8)
    plan = MlmConfig(name="dam", start=str(runs / "rem"), data=data, train=Train(steps=2, batch_size=8))
    again = MlmRun(plan, make_mesh(jax.devices()[:1]), tmp_path)
    again.save_model(again.init(), tmp_path / "model")
    start, found = (DualEncoder.from_pretrained(path) for path in (runs / "rem", tmp_path))
    assert found.config == dataclasses.replace(start.config, adapter=None, backbone=found.config.backbone)
    assert found.config.pooling == "mean" and found.mlm_head is not None
    assert not (runs / "dam/model/jaxretr.json").exists(), "its start says nothing"


def test_assembled_with_its_own_domain_it_is_the_model_of_the_run(runs: Path, tmp_path: Path) -> None:
    assert run("assemble", "--rem", runs / "rem", "--dam", runs / "dam", "--out", tmp_path / "m") == 0
    np.testing.assert_array_equal(vectors(tmp_path / "m"), vectors(runs / "rem"))


def test_assembled_with_another_domain_only_the_encoder_changes(runs: Path, tmp_path: Path) -> None:
    Adapter.from_pretrained(runs / "rem").save(tmp_path / "rem")  # a few kilobytes, away from any model
    assert run("assemble", "--rem", tmp_path / "rem", "--dam", runs / "other", "--out", tmp_path / "m") == 0
    model, rem = (DualEncoder.from_pretrained(path) for path in (tmp_path / "m", runs / "rem"))
    assert model.config == rem.config
    for new, old in zip(*(jax.tree.leaves(m.params["shared"]["adapter"]) for m in (model, rem)), strict=True):
        np.testing.assert_array_equal(new, old)
    other = read_checkpoint(runs / "other/model").params
    for new, old in zip(*map(jax.tree.leaves, (model.params["shared"]["bert"], other)), strict=True):
        np.testing.assert_array_equal(new, old)
    assert not np.allclose(model.encode_queries(TEXTS), rem.encode_queries(TEXTS), atol=1e-3)


def test_saving_and_merging_leave_the_vectors(runs: Path, tmp_path: Path) -> None:
    model = DualEncoder.from_pretrained(runs / "rem")
    merged = model.merge_lora()
    assert merged.config.lora_merged and merged.merge_lora() is merged
    merged.save(tmp_path / "merged")
    model.save(tmp_path / "copy")
    expected = model.encode_queries(TEXTS)
    np.testing.assert_array_equal(vectors(tmp_path / "copy"), expected)
    np.testing.assert_allclose(vectors(tmp_path / "merged"), expected, atol=1e-6)
    back = DualEncoder.from_pretrained(tmp_path / "merged").unmerge_lora()
    for new, old in zip(*map(jax.tree.leaves, (back.params, model.params)), strict=True):
        np.testing.assert_allclose(new, old, atol=1e-6)  # float32's rounding of one sum and one difference


def test_lora_alone_is_written_as_peft_has_it_and_read_again(runs: Path, tmp_path: Path) -> None:
    base = DualEncoder.from_pretrained(runs / "dam", pooling="mean")
    shape = AdapterShape(lora_rank=2, lora_alpha=3.0, lora_targets=("query", "ffn_out"), bottleneck=0)
    config = dataclasses.replace(base.config, adapter=shape)
    modules = lively(init_adapter(shape, config.backbone, 0), 1)
    model = DualEncoder(config, {"shared": {**base.params["shared"], "adapter": modules}}, base.tokenizer)
    Adapter.of(model).save_peft(tmp_path / "peft", str(runs / "dam/model"))
    words = ("--rem", tmp_path / "peft", "--dam", runs / "dam", "--pooling", "mean", "--out", tmp_path / "m")
    assert run("assemble", *words) == 0
    np.testing.assert_array_equal(vectors(tmp_path / "m"), model.encode_queries(TEXTS))
    # In other libraries' layouts LoRA is part of the kernels.
    assert run("export", tmp_path / "m", "--to", "sentence-transformers", "--out", tmp_path / "st") == 0
    np.testing.assert_allclose(vectors(tmp_path / "st"), model.encode_queries(TEXTS), atol=1e-6)


def test_a_parallel_adapter_is_not_exported_as_a_plain_bert(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", runs / "rem", "--to", "huggingface", "--out", tmp_path / "hf") == 1
    assert "export --to jaxretr, or train the module as LoRA alone" in the_error(capsys)
    assert run("export", runs / "rem", "--to", "jaxretr", "--out", tmp_path / "own") == 0
    np.testing.assert_array_equal(vectors(tmp_path / "own"), vectors(runs / "rem"))


def test_several_modules_one_active(runs: Path) -> None:
    base = DualEncoder.from_pretrained(runs / "dam", pooling="mean")
    first = Adapter.from_pretrained(runs / "rem")
    second = dataclasses.replace(first, params=lively(first.params, 5))
    a, b = first.put_into(base), second.put_into(base)
    assert not np.allclose(a.encode_queries(TEXTS), b.encode_queries(TEXTS), atol=1e-3)
    np.testing.assert_array_equal(first.put_into(b).encode_queries(TEXTS), a.encode_queries(TEXTS))
    np.testing.assert_array_equal(
        first.put_into(b.merge_lora()).config.lora_merged, False, "the other's products are taken off first"
    )
    np.testing.assert_allclose(b.without_adapters().encode_queries(TEXTS), base.encode_queries(TEXTS), atol=1e-6)


def test_modules_are_loaded_by_name_and_switched(runs: Path) -> None:
    first = Adapter.from_pretrained(runs / "rem")
    second = dataclasses.replace(first, params=lively(first.params, 5))
    encoder = DualEncoder.from_pretrained(runs / "dam", pooling="mean")
    plain = encoder.encode_queries(TEXTS)
    encoder.load_adapter(runs / "rem", "first")
    encoder.load_adapter(second, "second")
    np.testing.assert_array_equal(encoder.encode_queries(TEXTS), plain, "loaded is not active")
    expected = {"first": vectors(runs / "rem"), "second": second.put_into(encoder).encode_queries(TEXTS), None: plain}
    for name in ("second", "first", None, "second"):
        encoder.set_adapter(name)
        np.testing.assert_array_equal(encoder.encode_queries(TEXTS), expected[name])
    with pytest.raises(UserError, match="no adapter 'frist'; did you mean 'first'"):
        encoder.set_adapter("frist")


def test_a_module_goes_on_training(runs: Path, tmp_path: Path) -> None:
    further = {"path": str(runs / "rem"), "shared": True, "pooling": "mean", "adapter": SHAPE}
    train(contrastive_config(runs, encoder=further, **LAST), tmp_path / "further")
    model, start = (DualEncoder.from_pretrained(path) for path in (tmp_path / "further", runs / "rem"))
    moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), model.params["shared"], start.params["shared"])
    assert all(jax.tree.leaves(moved["adapter"])) and not any(jax.tree.leaves(moved["bert"]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rem", "encoder", "--dam", "dam"], "holds no adapters; give a run that was trained with encoder.adapter"),
        (["--rem", "rem", "--dam", "narrow"], "an encoder with hidden_size 16, and this one has 8; give an encoder of"),
        (
            ["--rem", "rem", "--dam", "words"],
            "trained with another tokenizer than this encoder has; give an encoder that",
        ),
        (["--rem", "rem", "--dam", "dam", "--pooling", "cls"], "leave --pooling and --normalise out"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    from tiny import BERT, write_tokenizer

    from jaxretr.data.tokens import load_tokenizer
    from jaxretr.models.embed import DualEncoderConfig, init_params

    tokenizer = load_tokenizer(runs / "encoder_tokenizer")
    narrow = DualEncoderConfig(
        dataclasses.replace(BERT, hidden_size=8), shared=True, max_question_length=64, max_passage_length=64
    )
    DualEncoder(narrow, init_params(narrow, 0), tokenizer).save(tmp_path / "narrow")
    write_tokenizer("bert", ["quite other words"], tmp_path / "other_tokenizer")
    words_of = dataclasses.replace(narrow, backbone=BERT)
    DualEncoder(words_of, init_params(words_of, 0), load_tokenizer(tmp_path / "other_tokenizer")).save(
        tmp_path / "words"
    )
    places = {
        name: (tmp_path if name in ("narrow", "words") else runs) / name
        for name in ("encoder", "rem", "dam", "narrow", "words")
    }
    assert run("assemble", *(places.get(word, word) for word in words), "--out", tmp_path / "out") in (1, 2)
    assert message in the_error(capsys)
    assert not (tmp_path / "out").exists()


def test_adapt_does_it_all_and_reports_before_and_after(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("adapt", runs / "rem", "--corpus", DATA, "--out", tmp_path / "a", "--split", "train", *ADAPT)
    assert run(*command) == 0
    printed = capsys.readouterr().out
    report = json.loads((tmp_path / "a/report.json").read_text())
    assert report["perplexity_after"] < report["perplexity_before"] and "perplexity" in printed
    rem, model = DualEncoder.from_pretrained(runs / "rem"), DualEncoder.from_pretrained(tmp_path / "a")
    for new, old in zip(*(jax.tree.leaves(m.params["shared"]["adapter"]) for m in (model, rem)), strict=True):
        np.testing.assert_array_equal(new, old, "the relevance module stays")
    assert not np.array_equal(*(m.params["shared"]["bert"]["word_embedding"]["table"] for m in (model, rem))), (
        "the encoder has moved"
    )
    # The report's figures are those that evaluate gives for the two models.
    for place, name in ((tmp_path / "a", "mean_a"), (runs / "rem", "mean_b")):
        assert run("evaluate", place, "--beir", DATA, "--split", "train", "--json") == 0
        measured = json.loads(capsys.readouterr().out)["metrics"]
        for metric in adaptation.METRICS:
            assert report["retrieval"][metric][name] == pytest.approx(measured[metric], abs=1e-6)
    # The corpus can be searched at once.
    search = (
        "search",
        tmp_path / "a",
        "--index",
        tmp_path / "a/embeddings",
        "--queries",
        DATA,
        "--out",
        tmp_path / "r",
    )
    assert run(*search) == 0
    # Once more: nothing is left to do, and nothing changes.
    capsys.readouterr()
    before = (tmp_path / "a/model/model.safetensors").read_bytes()
    assert run(*command) == 0
    assert (tmp_path / "a/model/model.safetensors").read_bytes() == before


def test_adapt_warns_of_a_model_whose_relevance_is_not_apart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    small_runs.write_models(tmp_path)
    words = ("--corpus", DATA / "corpus.jsonl", "--out", tmp_path / "a", "--head-steps", 2, *ADAPT)
    assert run("adapt", tmp_path / "encoder", *words) == 0
    assert any("has no adapters: what it knows of relevance is in the weights" in line for line in caplog.messages)
    assert "retrieval" not in json.loads((tmp_path / "a/report.json").read_text()), "no judgements, no metrics"


def test_modules_of_other_runs_are_assembled(tmp_path: Path) -> None:
    """Without training: the vectors of the module and the encoder put together, and of both as they came."""
    small_runs.write_models(tmp_path)
    dam = DualEncoder.from_pretrained(tmp_path / "encoder", shared=True, pooling="mean")
    adapter = lively(init_adapter(SHAPE, dam.config.backbone, 0), 1)
    config = dataclasses.replace(dam.config, adapter=SHAPE)
    rem = DualEncoder(config, {"shared": {**dam.params["shared"], "adapter": adapter}}, dam.tokenizer)
    other = DualEncoder(dam.config, lively(dam.params, 5), dam.tokenizer)
    expected = DualEncoder(config, {"shared": {**other.params["shared"], "adapter": adapter}}, dam.tokenizer)
    for name, model in {"dam": dam, "rem": rem, "other": other}.items():
        model.save(tmp_path / name)
    Adapter.from_pretrained(tmp_path / "rem").save(tmp_path / "module")  # away from any model
    for module, domain, model in (("rem", "dam", rem), ("module", "other", expected)):
        out = tmp_path / f"{module} in {domain}"
        assert run("assemble", "--rem", tmp_path / module, "--dam", tmp_path / domain, "--out", out) == 0
        np.testing.assert_array_equal(vectors(out), model.encode_queries(TEXTS))
    assert not np.allclose(vectors(tmp_path / "module in other"), vectors(tmp_path / "rem"), atol=1e-3)
