"""Joint training: a base learns beside a frozen lexical encoder, and the weight of its score is learnt as well."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import small_runs
from scipy.special import log_softmax
from tiny import DATA, art_config, contrastive_config, few_padding_rows, write_models, write_tokenizer

from jaxretr.config import AdapterShape, ArtConfig, BertShape, ContrastiveConfig, Joint
from jaxretr.data.readers import read_corpus
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training import loop as training
from jaxretr.training.runs.art import ArtRun
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.runs.corpus_programs import RunState
from jaxretr.training.runs.corpus_sizes import corpus_size
from jaxretr.training.runs.encoder_start import load_encoder

WEIGHT = 0.7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base, and a lexical encoder of another shape on the same tokens."""
    folder = tmp_path_factory.mktemp("joint")
    write_models(folder, noise=0.3)
    plain = contrastive_config(folder).encoder
    shape = BertShape(hidden_size=24, layers=1, heads=2, intermediate_size=16)
    lexical = dataclasses.replace(plain, fresh=shape, pooling="mean", normalise=True, shared=True)
    load_encoder(lexical, seed=5).save(folder / "lexical")
    return folder


def config(folder: Path, **changes: dict[str, object]) -> ContrastiveConfig:
    plain = contrastive_config(folder, **changes)
    return dataclasses.replace(plain, joint=Joint(str(folder / "lexical"), WEIGHT))


def two_steps(folder: Path, devices: int, **changes: dict[str, object]) -> tuple[ContrastiveRun, RunState, list]:
    with few_padding_rows():
        run = ContrastiveRun(config(folder, **changes), make_mesh(jax.devices()[:devices]), folder / f"run{devices}")
        state = run.init()
        losses = []
        for number in range(2):
            state, values = run.step(state, number, run.batch(number))
            losses.append(float(values["loss"]))
    return run, state, losses


def test_only_the_base_and_the_weight_move(folder: Path) -> None:
    run, state, losses = two_steps(folder, 8, negatives={"retrieved": 1}, optimizer={"weight_decay": 0.5})
    before, after = jax.device_get((run.model.params, state.train.weights))
    for old, new in zip(*(jax.tree.leaves(params["lexical"]) for params in (before, after)), strict=True):
        np.testing.assert_array_equal(old, new, "the lexical encoder is frozen, also against weight decay")
    moved = jax.tree.map(lambda old, new: not np.array_equal(old, new), before["base"], after["base"])
    assert all(moved["question"]["bert"]["word_embedding"].values())
    assert after["weight"] != before["weight"] and abs(after["weight"] - WEIGHT) < 0.01
    remembered = {str(path[-1]) for path, _ in jax.tree_util.tree_leaves_with_path(state.train.opt_state)}
    sizes = sum(leaf.size for leaf in jax.tree.leaves(state.train.opt_state))
    trained = sum(leaf.size for leaf in jax.tree.leaves(before["base"])) + 1
    assert sizes <= 2 * trained + 8, f"moments of trained parameters alone: {remembered}"

    _, alone, losses_alone = two_steps(folder, 1, negatives={"retrieved": 1}, optimizer={"weight_decay": 0.5})
    np.testing.assert_allclose(losses, losses_alone, rtol=1e-5, err_msg="one device and eight")
    np.testing.assert_allclose(after["weight"], alone.train.params["weight"], rtol=1e-5)


def test_the_loss_is_of_the_weighted_scores(folder: Path) -> None:
    """The step's first loss from the two encoders' own vectors: sim + w sim_L."""
    run, _, losses = two_steps(folder, 1)
    base = load_encoder(run.config.encoder)
    lexical = DualEncoder.from_pretrained(folder / "lexical")
    chosen = run.batches.indices(0)
    texts = [run.examples.texts[i] for i in chosen]
    rows = np.asarray(run.batch(0).rows)[:, 0]
    passages = list(read_corpus(DATA))
    score = sum(
        weight * encoder.encode_queries(texts).astype(np.float64) @ encoder.encode_passages(passages)[rows].T
        for weight, encoder in ((1.0, base), (WEIGHT, lexical))
    )
    positive = rows[:, None] == rows[None]
    own = np.diag(score)
    rest = np.where(positive, -np.inf, score)
    expected = np.mean(np.log(np.exp(own) + np.exp(rest).sum(axis=1)) - own)
    np.testing.assert_allclose(losses[0], expected, rtol=1e-5)


def test_a_joint_run_is_resumed_and_saved_as_one_model(folder: Path) -> None:
    plan = config(folder, train={"steps": 4, "save_every": 2, "eval_every": 2})
    whole = training.train(plan, folder / "whole")
    assert small_runs.train_killed_once(ContrastiveRun, plan, folder / "resumed", at=2) == whole

    models = [CombinedEncoder.from_pretrained(folder / name) for name in ("whole", "resumed")]
    questions = ["who wrote the book", "where is it"]
    vectors = [model.encode_queries(questions) for model in models]
    np.testing.assert_array_equal(vectors[0], vectors[1])
    note = json.loads((folder / "whole/model/jaxretr.json").read_text())
    assert note["weights"][0] == 1.0 and note["weights"][1] != WEIGHT
    lexical = DualEncoder.from_pretrained(folder / "lexical").encode_queries(questions)
    np.testing.assert_allclose(vectors[0][:, -24:], note["weights"][1] * lexical, rtol=1e-5)


def art(folder: Path, **changes: dict[str, object]) -> ArtConfig:
    return dataclasses.replace(art_config(folder, **changes), joint=Joint(str(folder / "lexical"), WEIGHT))


def test_art_learns_beside_a_lexical_encoder(folder: Path) -> None:
    """The live index holds both parts; the teacher's passages are those of the joint score, and so is the loss."""
    losses, weights = {}, {}
    for devices in (1, 8):
        run = ArtRun(art(folder), make_mesh(jax.devices()[:devices]), folder / f"art{devices}")
        state = run.init()
        assert state.index.embeddings.shape[1] == 16 + 24
        state, values = run.step(state, 0, run.batch(0))
        losses[devices], weights[devices] = float(values["loss"]), float(state.train.params["weight"])
        before, after = jax.device_get((run.model.params["lexical"], state.train.weights["lexical"]))
        jax.tree.map(np.testing.assert_array_equal, before, after)
    assert weights[1] != np.float32(WEIGHT)
    np.testing.assert_allclose(losses[1], losses[8], rtol=1e-5)
    np.testing.assert_allclose(weights[1], weights[8], rtol=1e-5)

    base, lexical = load_encoder(art(folder).encoder), DualEncoder.from_pretrained(folder / "lexical")
    run = ArtRun(art(folder), make_mesh(jax.devices()[:1]), folder / "art1")
    texts = [run.questions[number].text for number in run.batches.indices(0)]
    passages = list(run.corpus)
    score = sum(
        weight * encoder.encode_queries(texts).astype(np.float64) @ encoder.encode_passages(passages).T
        for weight, encoder in ((1.0, base), (WEIGHT, lexical))
    )
    rows = np.argsort(-score, axis=1)[:, :4]
    teacher = run.scorer.score(
        [text for text in texts for _ in range(4)],
        [{"title": passages[row].title, "text": passages[row].text} for found in rows for row in found],
    ).reshape(-1, 4)
    student = log_softmax(np.take_along_axis(score, rows, axis=1) / np.sqrt(16 + 24), axis=1)
    target = log_softmax(teacher.astype(np.float64), axis=1)
    expected = (np.exp(target) * (target - student)).sum(axis=1).mean()
    np.testing.assert_allclose(losses[1], expected, rtol=1e-4)


def test_art_with_a_lexical_encoder_is_saved_as_one_model(folder: Path) -> None:
    plan = art(folder, train={"steps": 2, "eval_every": 2, "save_every": 2})
    model = CombinedEncoder.from_pretrained(training.train(plan, folder / "art_run").model)
    assert model.config.embedding_size == 16 + 24 and model.config.weights[0] == 1.0
    planned = training.outline(plan, make_mesh(jax.devices()[:1]), corpus_size(plan))
    assert {program.name for program in planned.programs} >= {"step", "refresh"}


@pytest.mark.parametrize("name", ["fresh_start", "adapter"])
def test_what_does_not_go_together_is_refused(folder: Path, name: str) -> None:
    shape: Any = {
        "fresh_start": {"fresh": BertShape(16, 1, 2, 16), "fresh_start": "lexical"},
        "adapter": AdapterShape(2),
    }
    changes = shape[name] if isinstance(shape[name], dict) else {name: shape[name]}
    for plan, kind in ((config(folder, encoder=changes), ContrastiveRun), (art(folder, encoder=changes), ArtRun)):
        with pytest.raises(UsageError, match=name):
            kind(plan, make_mesh(), folder / "refused")


def test_encoders_that_read_other_tokens_are_refused(folder: Path, tmp_path: Path) -> None:
    lexical = DualEncoder.from_pretrained(folder / "lexical")
    joined = DualEncoder(
        dataclasses.replace(lexical.config, passage_template="joined"), lexical.params, lexical.tokenizer
    )
    joined.save(tmp_path / "joined")
    texts = [passage.text for passage in read_corpus(DATA)][:5]
    write_tokenizer("bert", texts, tmp_path / "tokenizer", size=300)
    shape = BertShape(16, 1, 2, 16)
    other = dataclasses.replace(contrastive_config(folder).encoder, path=str(tmp_path / "tokenizer"), fresh=shape)
    load_encoder(other).save(tmp_path / "other")
    for name, words in (("joined", "template 'joined'"), ("other", "another tokenizer")):
        plan = dataclasses.replace(config(folder), joint=Joint(str(tmp_path / name)))
        with pytest.raises(UserError, match=words):
            ContrastiveRun(plan, make_mesh(), tmp_path / "run")
