"""Runs of cross-encoders: they learn, resume bit for bit, are read by others, and refuse what cannot be."""

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tiny
from flax.traverse_util import flatten_dict
from pair_training import config

import jaxretr
from jaxretr.config import AdapterShape, RerankerConfig
from jaxretr.data.own_data import with_data
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.models.backbones.t5_encoder_config import T5EncoderConfig
from jaxretr.runtime.errors import UserError
from jaxretr.training.loop import outline, train
from jaxretr.training.runs.corpus_sizes import CorpusSize
from jaxretr.training.runs.cross_encoder import CrossEncoderRun
from jaxretr.training.runs.cross_encoder_start import load_cross_encoder, with_new_head


@pytest.fixture(scope="module")
def trained(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose 7 questions can be learnt by heart, from a BERT with a new head."""
    folder = tmp_path_factory.mktemp("run")
    train(learning(tiny_models), folder)
    return folder


def learning(models: Path, **changes: dict[str, Any]) -> RerankerConfig:
    sections: dict[str, dict[str, Any]] = {
        "ranking": {"loss": "listwise"},
        "optimizer": {"learning_rate": 1e-2, "warmup": 0.1},
        "encoder": {"dropout": 0.02},
        "train": {"steps": 80, "batch_size": 8, "eval_every": 80, "save_every": 10, "log_every": 10},
    }
    return config(models / "encoder", **merged(sections, changes))


def merged(sections: dict[str, dict[str, Any]], changes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: {**sections.get(name, {}), **changes.get(name, {})} for name in sections | changes}


def with_teacher(models: Path, folder: Path, **changes: dict[str, Any]) -> RerankerConfig:
    """KL from the scores of a file: each question has a positive, 3 negatives, and itself as a fourth.

    The scores are of the passages alone, so that a small model can learn them.
    """
    texts = [passage.text for passage in read_corpus(tiny.DATA)]
    rows = []
    for number, question in enumerate(read_questions(tiny.DATA)):
        numbers = [number, *((number + place) % 10 + 10 for place in (0, 3, 7))]
        scores = [float(place % 4) for place in (*numbers, 0)]
        positive, *negatives = (texts[place] for place in numbers)
        row = {"query": question.text, "pos": [positive], "neg": [*negatives, question.text]}
        rows.append(json.dumps({**row, "pos_scores": scores[:1], "neg_scores": scores[1:]}))
    (folder / "scored.jsonl").write_text("\n".join(rows) + "\n")
    sections: dict[str, dict[str, Any]] = {
        "data": {"train": str(folder / "scored.jsonl"), "corpus": str(tiny.DATA)},
        "ranking": {"loss": "kl"},
        "negatives": {"bm25": 0, "random": 0, "static": 5},
    }
    return learning(models, **merged(sections, changes))


def test_a_run_learns_to_rerank(trained: Path) -> None:
    values = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line["ndcg@10"] for line in values if "ndcg@10" in line]
    assert evaluated[-1] > evaluated[0] + 0.1
    losses = [line["loss"] for line in values if "loss" in line]
    assert losses[-1] < losses[0]


def test_a_resumed_run_ends_with_the_same_bits(trained: Path, tiny_models: Path, tmp_path: Path) -> None:
    plan = learning(tiny_models)
    step = CrossEncoderRun.step
    with pytest.MonkeyPatch.context() as patch:

        def dying(run: CrossEncoderRun, state: Any, number: int, batch: Any) -> Any:
            if number == 14:
                raise KeyboardInterrupt  # As abrupt as a kill: nothing is saved after step 10.
            return step(run, state, number, batch)

        patch.setattr(CrossEncoderRun, "step", dying)
        with pytest.raises(KeyboardInterrupt):
            train(plan, tmp_path)
    train(plan, tmp_path)
    whole, resumed = (jaxretr.CrossEncoder.from_pretrained(folder).fingerprint() for folder in (trained, tmp_path))
    assert whole == resumed
    assert (trained / "best.json").read_text() == (tmp_path / "best.json").read_text()


def test_the_model_is_one_that_sentence_transformers_reads(trained: Path) -> None:
    pytest.importorskip("torch", reason="the reference needs torch")
    reference = pytest.importorskip("sentence_transformers", reason="pip install sentence-transformers")
    ours = jaxretr.CrossEncoder.from_pretrained(trained)
    passages = list(read_corpus(tiny.DATA))[:6]
    pairs = [("who lived there?", passage.text) for passage in passages]
    theirs = reference.CrossEncoder(str(trained / "model"), device="cpu").predict(pairs)
    found = ours.score([question for question, _ in pairs], [{"text": text} for _, text in pairs])
    np.testing.assert_allclose(found, theirs, atol=1e-5)
    assert ours.texts.frame.max_length == 48


def test_a_run_goes_on_from_a_cross_encoder(trained: Path, mesh1: jax.sharding.Mesh, tmp_path: Path) -> None:
    run = CrossEncoderRun(config(trained), mesh1, tmp_path)
    saved = jaxretr.CrossEncoder.from_pretrained(trained)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(run.init().params), saved.params)


def test_negatives_are_neither_positives_nor_copies(
    tiny_models: Path, mesh1: jax.sharding.Mesh, tmp_path: Path
) -> None:
    plan = config(tiny_models / "encoder", negatives={"bm25": 3, "random": 4, "last_rank": 6})
    draws = CrossEncoderRun(plan, mesh1, tmp_path).draws
    chosen = np.arange(len(draws.examples.texts))
    known = draws.examples.draws.known(chosen)
    first, again, other = (draws.rows(chosen, step)[0] for step in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert first.shape == (len(chosen), 8) and (first != NO_PASSAGE).all()
    for rows, positives in zip(first, known, strict=True):
        contents = draws.examples.contents[rows]
        assert contents[0] in positives
        assert not set(contents[1:]) & set(positives)
        assert len(set(contents)) == len(contents)


def test_a_place_without_a_passage_counts_nothing(tiny_models: Path, mesh1: jax.sharding.Mesh, tmp_path: Path) -> None:
    """More negatives than the corpus of 20 has."""
    plan = config(tiny_models / "encoder", negatives={"random": 30})
    run = CrossEncoderRun(plan, mesh1, tmp_path)
    batch = run.batch(0)
    there = np.asarray(batch.is_present)
    assert not there.all() and there[:, :15].all()


def test_candidates_come_from_a_run(tiny_models: Path, mesh1: jax.sharding.Mesh, tmp_path: Path) -> None:
    plain = CrossEncoderRun(config(tiny_models / "encoder"), mesh1, tmp_path)
    ids, question = plain.dev.corpus.ids, plain.dev.questions[0].id
    run = tmp_path / "dev.trec"
    lines = (f"{question} Q0 {ids[row]} {rank} {10 - rank} made" for rank, row in enumerate((3, 1, 2), start=1))
    run.write_text("\n".join(lines) + "\n")
    plan = config(tiny_models / "encoder", data={"dev_run": str(run), "dev_depth": 2})
    given = CrossEncoderRun(plan, mesh1, tmp_path)
    assert given.dev.rows[0].tolist() == [3, 1]
    run.write_text(f"{question} Q0 nowhere 1 2.0 made\n")
    with pytest.raises(UserError, match=r"dev\.trec: passage 'nowhere' is not in the corpus"):
        CrossEncoderRun(plan, mesh1, tmp_path)


def test_ones_own_data_replaces_the_configs(tiny_models: Path, tmp_path: Path) -> None:
    tiny.write_subset(tmp_path / "data")
    plan = config(tiny_models / "encoder", data={"dev_run": "of other questions"})
    own = with_data(plan, tmp_path / "data", {})
    assert isinstance(own, RerankerConfig)
    assert own.data.train == str(tmp_path / "data") and own.data.dev_qrels == str(tmp_path / "data/qrels/dev.tsv")
    assert own.data.dev_run is None


@pytest.mark.parametrize("teacher", [False, True])
def test_a_plan_has_the_batch_of_the_run(
    teacher: bool, tiny_models: Path, mesh1: jax.sharding.Mesh, tmp_path: Path
) -> None:
    """Also one that trains LoRA on a teacher's scores."""
    plan = config(tiny_models / "encoder")
    if teacher:
        plan = with_teacher(tiny_models, tmp_path, encoder={"adapter": AdapterShape(lora_rank=2)})
    planned = outline(plan, mesh1, CorpusSize(0, 0, "none")).programs[0].arguments
    run = CrossEncoderRun(plan, mesh1, tmp_path)
    for shape, array in zip(*map(jax.tree.leaves, (planned[1], run.batch(0))), strict=True):
        assert (shape.ndim, shape.dtype, shape.sharding) == (array.ndim, array.dtype, array.sharding)
        # Real texts may be shorter than the longest allowed.
        assert all(real <= most for real, most in zip(array.shape, shape.shape, strict=True))
    state = [
        jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (planned[0], run.abstract_state(), run.init())
    ]
    assert state[0] == state[1] == state[2]


def test_a_teachers_scores_follow_the_draws(tiny_models: Path, mesh1: jax.sharding.Mesh, tmp_path: Path) -> None:
    """Empty places and the question itself give way to random passages, which have no score."""
    teaching = with_teacher(tiny_models, tmp_path)
    draws = CrossEncoderRun(teaching, mesh1, tmp_path).draws
    written = [json.loads(line) for line in (tmp_path / "scored.jsonl").read_text().splitlines()]
    rows, teacher = draws.rows(np.arange(len(written)), 3)
    assert teacher is not None and teacher.dtype == np.float32 and (rows != NO_PASSAGE).all()
    for row, scores, example in zip(rows, teacher, written, strict=True):
        known = dict(zip(example["pos"] + example["neg"], example["pos_scores"] + example["neg_scores"], strict=True))
        del known[example["query"]]
        texts = [draws.examples.passages.texts[place] for place in row]
        found = {text: score for text, score in zip(texts, scores.tolist(), strict=True) if not np.isnan(score)}
        assert found == known and texts[0] == example["pos"][0]
    # Two scored negatives are enough for all losses but Margin-MSE.
    for example in written:
        example["pos_scores"] = [None] * len(example["pos"])
    (tmp_path / "scored.jsonl").write_text("".join(json.dumps(example) + "\n" for example in written))
    (tmp_path / "again").mkdir()
    for loss, message in (("kl", None), ("margin_mse", "no example has a positive and a negative with a score")):
        scored = dataclasses.replace(teaching, ranking=dataclasses.replace(teaching.ranking, loss=loss))
        with pytest.raises(UserError, match=message) if message else contextlib.nullcontext():
            CrossEncoderRun(scored, mesh1, tmp_path / "again" / loss)


def with_lora(models: Path, folder: Path) -> RerankerConfig:
    encoder = {"adapter": AdapterShape(lora_rank=4, lora_alpha=8)}
    unjudged = {"dev_questions": None, "dev_qrels": None}  # So that the last model is saved, not the best.
    return with_teacher(
        models, folder, encoder=encoder, optimizer={"learning_rate": 2e-2}, train={"steps": 60}, data=unjudged
    )


def test_lora_and_the_head_learn_from_a_teacher(tiny_models: Path, tmp_path: Path) -> None:
    """All other parameters keep their bits."""
    plan = with_lora(tiny_models, tmp_path)
    train(plan, tmp_path / "run")
    values = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in values if "loss" in line]
    assert losses[-1] < 0.6 * losses[0]
    saved = flatten_dict(jaxretr.CrossEncoder.from_pretrained(tmp_path / "run").params)
    start = flatten_dict(load_cross_encoder(plan.encoder, plan.train.seed).params)
    assert saved.keys() == start.keys()
    moved = {path for path in saved if (np.asarray(saved[path]) != np.asarray(start[path])).any()}
    kernels = {("bert", "layers", name, "kernel") for name in ("query", "value")}
    assert {path for path in moved if path[0] == "bert"} == kernels and ("head", "out", "kernel") in moved


def test_a_saved_model_has_loras_products_in_its_kernels(
    tiny_models: Path, mesh1: jax.sharding.Mesh, tmp_path: Path
) -> None:
    """Its loss is that of the encoder with the adapters beside it, to float32's rounding."""
    run = CrossEncoderRun(with_lora(tiny_models, tmp_path), mesh1, tmp_path)
    state, batch = run.init(), run.batch(0)
    adapters = tiny.lively(state.params["adapter"], 5, 0.5)
    learnt = dataclasses.replace(state, params={**state.params, "adapter": adapters})
    run.save_model(learnt, tmp_path / "saved")
    merged = {**state.weights, **jaxretr.CrossEncoder.from_pretrained(tmp_path / "saved").params}
    before, beside, inside = (
        float(run.programs.evaluation(weights, batch)[0]) for weights in (state.weights, learnt.weights, merged)
    )
    assert abs(beside - before) > 1e-3
    assert inside == pytest.approx(beside, rel=1e-5)


def test_lora_on_eight_devices_takes_the_steps_of_one(
    tiny_models: Path, mesh1: jax.sharding.Mesh, mesh8: jax.sharding.Mesh, tmp_path: Path
) -> None:
    """Tolerance: sums in another order, before Adam's first steps. The frozen encoder keeps its bits."""
    plan = with_lora(tiny_models, tmp_path)
    found = []
    for mesh in (mesh1, mesh8):
        run = CrossEncoderRun(plan, mesh, tmp_path)
        start, state = jax.device_get(run.init().frozen), run.init()
        step = tiny.compiled_quickly(run.programs.step)
        for number in range(3):
            state, _ = step(state, run.batch(number))
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.frozen), start)
        found.append(jax.device_get(state.params))
    jax.tree.map(lambda one, eight: np.testing.assert_allclose(one, eight, atol=1e-5), *found)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"negatives": {"bm25": 0, "random": 0}}, "needs some for each question; set negatives.bm25"),
        ({"negatives": {"random": -1}}, "negatives.random=-1: must be at least 0"),
        ({"negatives": {"mined": 1}}, "negatives.mined and data.mined go together"),
        ({"negatives": {"static": 1}}, "contains no negatives; set negatives.static=0"),
        ({"negatives": {"first_rank": 9, "last_rank": 8}}, "ranks count from 1 upwards"),
        ({"ranking": {"chunk": 0}}, "must be at least 1"),
        ({"ranking": {"loss": "listwise", "positive_weight": 2.0}}, "is of the binary loss"),
        ({"ranking": {"positive_weight": 0.0}}, "must be above 0"),
        ({"ranking": {"teacher_order": True}}, "teacher_order is of ranknet, .* set ranking.loss=ranknet"),
        ({"ranking": {"loss": "lambda", "teacher_order": True}}, "teacher_order is of ranknet"),
        ({"ranking": {"loss": "margin_mse", "teacher_temperature": 2.0}}, "teacher_temperature is of the kl loss"),
        ({"ranking": {"loss": "kl"}}, "only the training file's passages have .*; set negatives.static"),
        ({"ranking": {"loss": "ranknet", "teacher_order": True}}, "ranking.loss=ranknet: only the training file's"),
        ({"encoder": {"adapter": AdapterShape(lora_rank=2, bottleneck=2)}}, "encoder.adapter.bottleneck: .* set"),
        ({"encoder": {"adapter": AdapterShape(lora_rank=2, lora_targets=("ffn_gate",))}}, "encoder.adapter: .*choose"),
        ({"encoder": {"max_length": 65}}, "64 positions; lower it"),
        ({"encoder": {"dropout": 1.0}}, "must be from 0 to below 1"),
        ({"data": {"dev_run": "r", "dev_questions": None}}, "set data.dev_questions as well"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    changes: dict[str, Any], message: str, tiny_models: Path, mesh1: jax.sharding.Mesh, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message) as error:
        CrossEncoderRun(config(tiny_models / "encoder", **changes), mesh1, tmp_path)
    assert "\n" not in str(error.value)


def test_an_encoder_that_no_head_goes_on_is_refused() -> None:
    with pytest.raises(UserError, match="sentence-t5: is T5, which no head of a cross-encoder goes on"):
        with_new_head(T5EncoderConfig(), "sentence-t5")
