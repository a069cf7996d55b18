"""The two pretraining objectives: what is masked, what is drawn, and that training lowers the held-out loss."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import DATA, write_tokenizer

from jaxretr.config import BertShape, MlmConfig, Optimizer, PassageLmConfig, PretrainData, T5Shape, Train
from jaxretr.data.readers import read_corpus
from jaxretr.losses.language_models import masked_sum
from jaxretr.models.backbones.t5 import T5Config
from jaxretr.models.hub import encoder_params, t5_params
from jaxretr.models.scorers.t5_scorer import Prompt, score_pairs
from jaxretr.models.starts import copying_start
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training import optim
from jaxretr.training.loop import build, train
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.state import TrainState
from jaxretr.training.steps.mlm import mask
from jaxretr.training.steps.passage_lm import thinned_windows
from jaxretr.training.steps.token_step import make_token_step

TRAIN = Train(steps=40, batch_size=8, log_every=20, save_every=100, eval_every=20, best_metric="loss")
OPTIMIZER = Optimizer(learning_rate=1e-2, warmup=0.1, weight_decay=0.0)


def data(**changes: object) -> PretrainData:
    return dataclasses.replace(
        PretrainData(corpora=(str(DATA),), vocab_size=400, vocabulary_every=1, max_length=24, held_out=8), **changes
    )


def test_masking_follows_its_rates() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, 1000, (500, 100)).astype(np.uint16)
    tokens[:, 0], tokens[:, 60] = 2, 3
    lengths = np.full(500, 80)
    batch = mask(rng, tokens, lengths, rate=0.15, mask_id=4, special=np.arange(5), vocab_size=1000)
    chosen = batch.weights > 0
    assert (batch.positions[chosen] < 80).all()
    assert not np.isin(batch.positions[chosen], [0, 60]).any(), "special tokens are never predicted"
    shown = np.take_along_axis(batch.tokens, batch.positions, axis=1)
    np.testing.assert_array_equal(batch.labels[chosen], np.take_along_axis(tokens, batch.positions, axis=1)[chosen])
    n = chosen.sum()
    assert abs(n / (500 * 78) - 0.15) < 3 * np.sqrt(0.15 * 0.85 / (500 * 78))
    for share, value in ((0.8, (shown == 4)[chosen].mean()), (0.1, (shown == batch.labels)[chosen].mean())):
        assert abs(value - share) < 3 * np.sqrt(share * (1 - share) / n) + 1e-3, share
    unmasked = np.ones_like(tokens, bool)
    np.put_along_axis(unmasked, batch.positions, ~chosen, axis=1)
    np.testing.assert_array_equal(batch.tokens[unmasked], tokens[unmasked])


def test_windows_come_from_the_passage_and_are_sometimes_held_out() -> None:
    rng = np.random.default_rng(0)
    passages = np.arange(1, 4001).reshape(100, 40)
    lengths = np.full(100, 40)
    shown, shown_lengths, targets, target_lengths = thinned_windows(
        rng, passages, lengths, window=12, target_length=8, held_out=0.25
    )
    removed = 0
    for row in range(100):
        target = targets[row, : target_lengths[row]]
        assert 1 <= len(target) <= 8
        assert np.isin(target, passages[row]).all() and (np.diff(target) > 0).all(), "in the order of the passage"
        assert target.max() - target.min() < 12, "within one window"
        assert (targets[row, target_lengths[row] :] == 0).all()
        left = shown[row, : shown_lengths[row]]
        if len(left) < 40:
            removed += 1
            assert not np.isin(target, left).any(), "a held-out window is not shown"
        else:
            np.testing.assert_array_equal(left, passages[row])
    assert 10 <= removed <= 42, removed  # 25 +- 4 standard deviations


def test_mlm_learns_and_its_folder_loads(tmp_path: Path) -> None:
    # A vocabulary that is the same in every run; the one that is learnt breaks ties at random.
    texts = [f"{passage.title} {passage.text}" for passage in read_corpus(DATA)]
    write_tokenizer("bert", texts, tmp_path / "data/tokenizer")
    shape = BertShape(hidden_size=32, layers=1, heads=2, intermediate_size=64)
    plan = MlmConfig(name="mlm", data=data(max_length=128), bert=shape, optimizer=OPTIMIZER, train=TRAIN)
    # From 12 passages, on windows of 8 others.
    assert train(plan, tmp_path)["loss"] < read_metrics(tmp_path)[0]["loss"] - 0.1
    assert encoder_params.read_checkpoint(tmp_path / "model").mlm_head is not None


def test_the_scorer_learns_with_pairs_and_its_folder_loads(tmp_path: Path) -> None:
    config = PassageLmConfig(
        name="lm",
        data=data(pairs=str(DATA), pair_share=0.5),
        t5=T5Shape(d_model=32, d_kv=8, d_ff=48, heads=4, encoder_layers=1, decoder_layers=1),
        window=10,
        target_length=8,
        optimizer=OPTIMIZER,
        train=TRAIN,
    )
    figures = train(config, tmp_path)
    assert figures["loss"] < read_metrics(tmp_path)[0]["loss"] - 0.5
    assert t5_params.read(tmp_path / "model")[0].tie_word_embeddings


def test_a_model_at_the_copying_start_prefers_a_target_from_its_passage() -> None:
    config = T5Config(
        vocab_size=500, d_model=96, d_kv=16, d_ff=64, num_heads=6, num_layers=2, num_decoder_layers=2,
        feed_forward_proj="relu", tie_word_embeddings=True,
    )  # fmt: skip
    params = copying_start(config, seed=0)
    rng = np.random.default_rng(0)
    passages = rng.permuted(np.tile(np.arange(10, 500), (40, 1)), axis=1)[:, :30].astype(np.int32)
    targets = passages[:, 8:16]
    lengths = np.full(40, 30, np.int32)
    score = jax.jit(lambda p: score_pairs(config, Prompt((3, 4), (5, 1)), params, p, lengths, targets, lengths * 0 + 8))
    own, other = np.asarray(score(passages)), np.asarray(score(np.roll(passages, 1, axis=0)))
    assert (own > other).mean() >= 0.95


@pytest.mark.parametrize("kind", ["new encoder", "encoder", "new scorer", "scorer"])
def test_a_checkpoint_is_read_in_the_shapes_of_the_first_state(kind: str, tiny_models: Path, tmp_path: Path) -> None:
    """New weights, or those of a start: the shapes are told by the model's definition, without drawing any."""
    start = None if kind.startswith("new") else str(tiny_models / kind)
    if kind.endswith("encoder"):
        config = MlmConfig(
            name="mlm",
            data=data(),
            start=start,
            bert=BertShape(hidden_size=16, layers=1, heads=2, intermediate_size=32),
            head_warmup=0,
        )
    else:
        small = T5Shape(d_model=32, d_kv=8, d_ff=48, heads=4, encoder_layers=1, decoder_layers=1)
        config = PassageLmConfig(name="lm", data=data(), start=start, t5=small)
    run = build(config, make_mesh(), tmp_path)
    state, shapes = run.init(), run.abstract_state()
    assert jax.tree.structure(state) == jax.tree.structure(shapes)
    for real, shape in zip(jax.tree.leaves(state), jax.tree.leaves(shapes), strict=True):
        assert (real.shape, real.dtype, real.sharding) == (shape.shape, shape.dtype, shape.sharding)


def test_a_corpus_smaller_than_what_is_held_out_is_an_error(tmp_path: Path) -> None:
    config = MlmConfig(name="mlm", data=data(held_out=1000), train=TRAIN)
    with pytest.raises(Exception, match="held out"):
        train(config, tmp_path)


def test_a_batch_with_nothing_to_predict_leaves_numbers() -> None:
    optimizer = optim.build(Optimizer(weight_decay=0.0), 10)
    step = make_token_step(lambda params, x, _: masked_sum(params["w"] * x, 0.0 * x), optimizer, make_mesh())
    state, metrics = step(TrainState.create({"w": jnp.full((), 0.5)}, optimizer), jnp.ones(8))
    assert float(state.params["w"]) == 0.5 and float(metrics["loss"]) == 0.0
