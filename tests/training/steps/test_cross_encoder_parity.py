"""Five steps of a cross-encoder's training against a plain loop with transformers' models and torch.optim.

Dropout off, the same pairs. Tolerance: losses to 1e-5 relative, parameters to 5e-6 after five updates of at most 1e-3
each: both sides are float32 and sum in another order.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from pair_models import make_model
from pair_training import CLIP, Steps, by_pytorch, config, ours
from peers import torch, transformers
from tiny import DATA, write_tokenizer

from jaxretr.data.readers import read_corpus
from jaxretr.data.tokens import load_tokenizer
from jaxretr.training.runs.cross_encoder import CrossEncoderRun

RANKINGS = {"binary": {"loss": "binary", "positive_weight": 3.0}, "listwise": {"loss": "listwise"}}


def check(found: Steps, expected: Steps, start: dict[str, np.ndarray]) -> None:
    assert min(expected.losses) > 1e-2
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)
    np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-4)
    assert max(expected.norms) > CLIP  # Some steps are clipped.
    names = {name for name in expected.params if "position_ids" not in name}
    assert names == found.params.keys()
    for name in names:
        # Without gradient but rounding's: the keys' biases, and listwise, which sees differences, the last one.
        idle = "key.bias" in name or name == "classifier.bias"
        np.testing.assert_allclose(found.params[name], expected.params[name], atol=1e-4 if idle else 5e-6, err_msg=name)
        assert idle or np.abs(expected.params[name] - start[name]).max() > 1e-5, name


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
@pytest.mark.parametrize("loss", RANKINGS)
def test_five_steps_equal_pytorchs_on_one_device_and_on_eight(
    loss: str, kind: str, mesh1: jax.sharding.Mesh, mesh8: jax.sharding.Mesh, tmp_path: Path
) -> None:
    folder = make_model(kind, tmp_path / "model")
    plan = config(folder, ranking=RANKINGS[loss])
    for mesh in (mesh8, mesh1):
        run = CrossEncoderRun(plan, mesh, tmp_path / "run")
        expected, start = by_pytorch(folder, run)
        check(ours(run), expected, start)


def test_chunks_and_what_is_kept_change_nothing(mesh1: jax.sharding.Mesh, tmp_path: Path) -> None:
    """Tolerance: sums over chunks in another order."""
    folder = make_model("bert", tmp_path / "model")
    results = []
    for chunk, activations in ((32, "recompute"), (5, "recompute"), (32, "keep"), (5, "keep")):
        plan = config(folder, ranking={"chunk": chunk}, encoder={"activations": activations, "dropout": 0.1})
        results.append(ours(CrossEncoderRun(plan, mesh1, tmp_path / "run"), steps=2))
    for other in results[1:]:
        np.testing.assert_allclose(other.losses, results[0].losses, rtol=1e-5)
        for name, value in results[0].params.items():
            atol = 1e-4 if "key.bias" in name else 5e-6
            np.testing.assert_allclose(other.params[name], value, atol=atol, err_msg=name)


def test_dropout_does_not_depend_on_the_devices(
    mesh1: jax.sharding.Mesh, mesh8: jax.sharding.Mesh, tmp_path: Path
) -> None:
    folder = make_model("bert", tmp_path / "model")
    on, off = (config(folder, encoder={"dropout": rate}) for rate in (0.2, 0.0))
    alone, shared = (ours(CrossEncoderRun(on, mesh, tmp_path / "run"), steps=1) for mesh in (mesh1, mesh8))
    np.testing.assert_allclose(alone.losses, shared.losses, rtol=1e-5)
    assert abs(ours(CrossEncoderRun(off, mesh1, tmp_path / "run"), steps=1).losses[0] - alone.losses[0]) > 1e-4


@pytest.mark.parametrize("loss", RANKINGS)
def test_five_steps_equal_pytorchs_at_a_real_width(loss: str, mesh1: jax.sharding.Mesh, tmp_path: Path) -> None:
    """384 x 1536, in chunks of 8 pairs; the initial weights of transformers."""
    write_tokenizer("bert", [passage.text for passage in read_corpus(DATA)], tmp_path / "tokenizer")
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
    shape = transformers.BertConfig(
        **sizes, vocab_size=400, num_hidden_layers=2, max_position_embeddings=64, num_labels=1
    )
    transformers.BertForSequenceClassification(shape).save_pretrained(tmp_path / "model")
    load_tokenizer(tmp_path / "tokenizer").save_pretrained(tmp_path / "model")
    plan = config(tmp_path / "model", ranking={**RANKINGS[loss], "chunk": 8})
    run = CrossEncoderRun(plan, mesh1, tmp_path / "run")
    expected, _ = by_pytorch(tmp_path / "model", run)
    found = ours(run)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)
    np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-4)
    for name, value in found.params.items():
        # Sums over 1536 terms: rounding errors are some times those of the tiny models.
        atol = 1e-4 if "key.bias" in name or name == "classifier.bias" else 2e-5
        np.testing.assert_allclose(value, expected.params[name], atol=atol, err_msg=name)
