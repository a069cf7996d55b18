"""Models merged into one: the arithmetic, the choice of the weight, and what is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tiny import DATA, lively

import jaxretr
from jaxretr import cli
from jaxretr.config import AdapterShape
from jaxretr.data.readers import read_beir
from jaxretr.evaluate.merging import GRID, merge
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.training.runs.encoder_start import with_new_adapters


@pytest.fixture(scope="module")
def models(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three models of one start; the second reads longer passages."""
    folder = tmp_path_factory.mktemp("models")
    start = DualEncoder.from_pretrained(tiny_models / "encoder", shared=True)
    for seed in range(3):
        config = dataclasses.replace(start.config, max_passage_length=32 + 16 * (seed == 1))
        DualEncoder(config, lively(start.params, seed, 0.3), start.tokenizer).save(folder / str(seed))
    return [folder / str(seed) for seed in range(3)]


def leaves(model: DualEncoder | Path) -> dict[str, np.ndarray]:
    loaded = model if isinstance(model, DualEncoder) else DualEncoder.from_pretrained(model)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(loaded.params)}


def tensors(model: DualEncoder | Path) -> dict[str, np.ndarray]:
    """The parameters with each layer's by themselves, as other libraries have them."""
    parts = [
        {f"{name}{layer}": one for layer, one in enumerate(value)} if "['layers']" in name else {name: value}
        for name, value in leaves(model).items()
    ]
    return {name: value for part in parts for name, value in part.items()}


def test_a_weighted_mean(models: list[Path], tmp_path: Path) -> None:
    merged = jaxretr.merge(models, weights=(1, 2, 5), out=tmp_path / "merged")
    parts = [leaves(each) for each in models]
    for name, value in leaves(tmp_path / "merged").items():
        expected = sum(w * part[name].astype(np.float64) for w, part in zip((1, 2, 5), parts, strict=True)) / 8
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7, err_msg=name)
    assert merged.encoder.config.max_passage_length == 48 and merged.weights == (1, 2, 5)
    same = leaves(merge(models[:2]).encoder)
    np.testing.assert_allclose(
        same[next(iter(same))], (parts[0][next(iter(same))] + parts[1][next(iter(same))]) / 2, rtol=1e-6
    )
    texts = ["who wrote the history of England"]
    loaded = DualEncoder.from_pretrained(tmp_path / "merged")
    np.testing.assert_array_equal(loaded.encode_queries(texts), merged.encoder.encode_queries(texts))


def test_slerp_keeps_the_length_and_the_angle(models: list[Path]) -> None:
    first, second = (tensors(each) for each in models[:2])
    found = tensors(merge(models[:2], weights=(3, 1), how="slerp").encoder)
    for name, value in found.items():
        a, b, c = (each[name].astype(np.float64).ravel() for each in (first, second, found))
        unit = [x / np.linalg.norm(x) for x in (a, b, c)]
        whole, part = np.arccos(unit[0] @ unit[1]), np.arccos(np.clip(unit[0] @ unit[2], -1, 1))
        # Tensors of one length keep it; of two, the arc's factors weigh them.
        factors = np.sin([0.75 * whole, 0.25 * whole]) / np.sin(whole)
        np.testing.assert_allclose(value.ravel(), factors[0] * a + factors[1] * b, rtol=1e-5, atol=1e-6, err_msg=name)
        if np.isclose(np.linalg.norm(a), np.linalg.norm(b), rtol=1e-3):
            np.testing.assert_allclose(part, whole / 4, rtol=1e-2)
    same = tensors(merge([models[0], models[0]], how="slerp").encoder)
    for name, value in same.items():
        np.testing.assert_allclose(value, first[name], rtol=1e-6, err_msg=name)


def test_dev_questions_choose_the_weight(
    models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [models[0], models[2]]
    words = ["merge", *both, "--beir", DATA, "--split", "train", "--metric", "mrr@10", "--out", tmp_path / "m"]
    assert cli.main([str(word) for word in words]) == 0
    printed = capsys.readouterr().out
    curve = json.loads((tmp_path / "m/curve.json").read_text())
    assert [point["weight"] for point in curve["curve"]] == list(GRID) and (tmp_path / "m/curve.png").stat().st_size
    best = curve["best"]["weight"]
    assert curve["best"]["value"] == max(point["value"] for point in curve["curve"]) and "<- best" in printed
    # Each point is what the merged model has, and both ends are the models themselves.
    beir = read_beir(DATA, "train")
    for model, value in [
        (both[0], curve["alone"][0]),
        (both[1], curve["alone"][1]),
        (tmp_path / "m", curve["best"]["value"]),
    ]:
        of_model = jaxretr.evaluate_model(model, beir=DATA, split="train", metrics=["mrr@10"])
        assert json.loads(of_model.to_json())["metrics"]["mrr@10"] == pytest.approx(value), model
    assert len(beir.questions) == curve["questions"]
    # The same command replaces the model, and what it must not replace is seen before anything is measured.
    assert cli.main([str(word) for word in words]) == 0
    with pytest.raises(UserError, match="holds something else than a model of jaxretr"):
        merge(both, beir="nowhere", out=tmp_path)
    expected = leaves(merge(both, weights=(1, best)).encoder)
    for name, value in leaves(tmp_path / "m").items():
        np.testing.assert_array_equal(value, expected[name])


def test_lora_is_merged_into_the_kernels_first(models: list[Path], tmp_path: Path) -> None:
    shape, adapted = AdapterShape(lora_rank=2), []
    for seed in range(2):
        model = with_new_adapters(DualEncoder.from_pretrained(models[0]), shape, seed)
        lively_model = model.replaced(model.config, lively(model.params, seed + 7, 0.1))
        lively_model.save(tmp_path / str(seed))
        adapted.append(leaves(lively_model.merge_lora()))
    # Any rank, and the start itself.
    other = with_new_adapters(DualEncoder.from_pretrained(models[0]), AdapterShape(lora_rank=4), 5)
    other.save(tmp_path / "other")
    with_start = leaves(merge([models[0], tmp_path / "other"]).encoder)
    assert with_start.keys() == leaves(models[0]).keys()
    merged = merge([tmp_path / "0", tmp_path / "1"]).encoder
    assert merged.config.adapter is None
    for name, value in leaves(merged).items():
        np.testing.assert_allclose(value, (adapted[0][name] + adapted[1][name]) / 2, rtol=1e-5, atol=1e-6, err_msg=name)


def test_unlike_models_are_refused(models: list[Path], tmp_path: Path) -> None:
    model = DualEncoder.from_pretrained(models[0])
    for changes in ({"pooling": "mean"}, {"query_prompt": "q: "}):
        other: Any = dataclasses.replace(model.config, **changes)
        DualEncoder(other, model.params, model.tokenizer).save(tmp_path / "other")
        with pytest.raises(
            UserError, match=rf"other: differs from .* in {next(iter(changes))}; merge trainings of one"
        ):
            merge([models[0], tmp_path / "other"])


@pytest.mark.parametrize(
    ("count", "settings", "message"),
    [
        (1, {}, "1 models cannot be merged"),
        (3, {"how": "slerp"}, "slerp is for two models, not 3"),
        (3, {"beir": DATA}, "beir= is for two models, not 3"),
        (2, {"beir": DATA, "weights": (1, 1)}, "beir= chooses the weights"),
        (2, {"weights": (1,)}, "one of at least 0 for each of the 2 models"),
        (2, {"weights": (0, 0)}, "not all 0"),
        (2, {"weights": (1, -1)}, "at least 0"),
        (2, {"how": "cubic"}, "how=cubic: no such way"),
        (2, {"grid": (0.3, 2.0)}, "grid=: is of dev questions"),
        (2, {"metric": "mrr@10"}, "metric=: is of dev questions"),
        (2, {"grid": "0.5,1"}, "give log, paper, or weights above 0"),
        (2, {"grid": (-1.0, 2.0)}, "give log, paper, or weights above 0"),
    ],
)
def test_wrong_calls_are_refused(count: int, settings: dict[str, Any], message: str, models: list[Path]) -> None:
    with pytest.raises(UsageError, match=message):
        merge(models[:count], **settings)
    with pytest.raises(UsageError, match="is a single one; give a list"):
        merge(str(models[0]))


def test_a_model_is_not_written_over_those_that_it_is_made_of(models: list[Path]) -> None:
    before = leaves(models[1])
    with pytest.raises(UsageError, match=r"1: is read as well, and would be replaced"):
        merge(models[:2], out=models[1])
    with pytest.raises(UsageError, match=r"0: is read as well, and would be replaced"):
        jaxretr.assemble(models[1], models[0], out=models[0])
    for name, value in leaves(models[1]).items():
        np.testing.assert_array_equal(value, before[name])
