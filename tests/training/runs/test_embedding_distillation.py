"""Learning another encoder's embeddings: the loss, what is read, and what comes of it."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from tiny import DATA, art_config, write_models

from jaxretr.config import BertShape, EmbeddingDistillationConfig, Optimizer, PretrainData, Train
from jaxretr.data.readers import read_beir, read_corpus
from jaxretr.models.backbones.bert_config import BertConfig
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.starts import static_start
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.loop import outline, train
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.runs.corpus_sizes import corpus_size
from jaxretr.training.runs.embedding_distillation import EmbeddingDistillationRun
from jaxretr.training.runs.encoder_start import load_encoder
from jaxretr.training.steps.embedding_distillation import principal_directions

SIZE = 12


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    write_models(folder, noise=0.3)
    encoder = dataclasses.replace(art_config(folder).encoder, shared=True, pooling="mean", normalise=True)
    load_encoder(encoder).save(folder / "model")
    return folder / "model"


def config(teacher: Path, **changes: object) -> EmbeddingDistillationConfig:
    plan = EmbeddingDistillationConfig(
        name="tiny",
        data=PretrainData(corpora=(str(DATA),), vocab_size=400, vocabulary_every=1, max_length=24, held_out=8),
        teacher=str(teacher),
        teacher_passages=10,
        teacher_sentences=12,
        questions=(str(DATA),),
        questions_split="train",
        short_length=16,
        short_texts=2,
        bert=BertShape(hidden_size=SIZE, layers=1, heads=2, intermediate_size=16),
        optimizer=Optimizer(learning_rate=5e-3, warmup=0.1, weight_decay=0.0),
        train=Train(steps=30, batch_size=8, log_every=10, save_every=15, eval_every=15, best_metric="loss"),
    )
    return dataclasses.replace(plan, **changes)


def test_principal_directions_keep_inner_products() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 3)) @ rng.normal(size=(3, 8)) + 2.0  # rank 4
    directions = principal_directions(rows, 4)
    np.testing.assert_allclose(directions.T @ directions, np.eye(4), atol=1e-6)
    np.testing.assert_allclose((rows @ directions) @ (rows @ directions).T, rows @ rows.T, rtol=1e-5)
    kept = [np.square(rows @ principal_directions(rows, size)).sum() for size in (1, 2, 3)]
    assert kept == sorted(kept) and kept[-1] < np.square(rows).sum()


def test_the_student_begins_as_the_mean_of_its_pieces() -> None:
    bert = BertConfig(100, 16, 1, 2, 16, max_position_embeddings=32)
    vectors = np.random.default_rng(0).normal(size=(100, 16))
    table = np.asarray(static_start(bert, vectors, seed=0)["word_embedding"]["table"])
    cosines = (table * vectors).sum(1) / np.linalg.norm(table, axis=1) / np.linalg.norm(vectors, axis=1)
    np.testing.assert_allclose(cosines, 1.0, rtol=1e-5)


def test_the_loss_is_one_minus_the_cosine_on_any_number_of_devices(teacher: Path, tmp_path: Path) -> None:
    losses = []
    for devices in (1, 8):
        run = EmbeddingDistillationRun(config(teacher), make_mesh(jax.devices()[:devices]), tmp_path)
        state, batch = run.init(), run.batch(0)
        student = DualEncoder(run.model, {"shared": jax.device_get(state.params)}, run.data.tokenizer)
        expected = []
        for texts, template in ((batch.passages, "passages"), (batch.short, "short")):
            rows = [np.asarray(ids)[:n] for ids, n in zip(texts.tokens, texts.lengths, strict=True)]
            words = [run.data.tokenizer.decode(row, skip_special_tokens=True) for row in rows]
            assert len(words) == 8 * (2 if template == "short" else 1)
            if template == "short":  # Passages are cut in the middle of a word, which decoding does not keep.
                expected += list((student.encode_queries(words) * np.asarray(texts.targets)).sum(axis=1))
        own = float(run.programs.step(state, batch)[1]["loss"])
        losses.append(own)
        # What is left is the passages' part.
        rest = own * 24 - sum(1 - cosine for cosine in expected)
        assert 0 < rest < 16
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_targets_are_the_teachers_own_embeddings(teacher: Path, tmp_path: Path) -> None:
    """With as many dimensions as the teacher's, inner products of the targets are the teacher's cosines."""
    shape = BertShape(hidden_size=16, layers=1, heads=2, intermediate_size=16)
    run = EmbeddingDistillationRun(config(teacher, bert=shape), make_mesh(jax.devices()[:1]), tmp_path)
    encoder = DualEncoder.from_pretrained(teacher)
    corpus = read_corpus(DATA)
    rows = np.flatnonzero(run.place >= 0)
    vectors = encoder.encode_passages([corpus[int(row)] for row in rows])
    targets = run.of_passages[run.place[rows]]
    np.testing.assert_allclose(targets @ targets.T, vectors @ vectors.T, atol=2e-3)  # kept as float16


def test_it_learns_is_resumed_and_loads_as_a_model(teacher: Path, tmp_path: Path) -> None:
    result = train(config(teacher), tmp_path / "run")
    assert result["loss"] < read_metrics(tmp_path / "run")[0]["loss"] - 0.05
    assert result["cosine"] == pytest.approx(1 - result["loss"])
    model = DualEncoder.from_pretrained(result.model)
    assert model.config.normalise and model.config.pooling == "mean" and model.config.embedding_size == SIZE
    # A resumed run asks the teacher for nothing: its embeddings are complete.
    before = sorted((tmp_path / "run/data/teacher").rglob("*.npy"))
    assert before
    stamps = [path.stat().st_mtime_ns for path in before]
    again = train(config(teacher), tmp_path / "run")
    assert dict(again) == dict(result) and [path.stat().st_mtime_ns for path in before] == stamps


def test_excluded_questions_are_not_read(teacher: Path, tmp_path: Path) -> None:
    texts = [question.text for question in read_beir(DATA, "train").questions]
    prefix = read_beir(DATA, "train").questions[0].id[:1]

    def short(**changes: object) -> set[str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        EmbeddingDistillationRun(config(teacher, **changes), make_mesh(jax.devices()[:1]), folder)
        meta = json.loads((folder / "data/teacher/short/meta.json").read_text())
        return {str(meta["rows"])}

    all_rows, none = int(short().pop()), int(short(questions=()).pop())
    assert all_rows - none == len(texts)
    left_out = sum(question.id.startswith(prefix) for question in read_beir(DATA, "train").questions)
    assert int(short(exclude_questions=(prefix,)).pop()) == all_rows - left_out and left_out


def test_teachers_that_do_not_fit_are_refused(teacher: Path, tmp_path: Path) -> None:
    wide = BertShape(hidden_size=32, layers=1, heads=2, intermediate_size=16)
    with pytest.raises(UsageError, match=r"hidden_size=32: more than the teacher's 16"):
        EmbeddingDistillationRun(config(teacher, bert=wide), make_mesh(), tmp_path)
    two = DualEncoder.from_pretrained(teacher)
    towers = dict.fromkeys(("question", "passage"), two.params["shared"])
    DualEncoder(dataclasses.replace(two.config, shared=False), towers, two.tokenizer).save(tmp_path / "two")
    with pytest.raises(UserError, match="a tower for each side"):
        EmbeddingDistillationRun(config(tmp_path / "two"), make_mesh(), tmp_path)


def test_the_plan_names_its_programs(teacher: Path) -> None:
    plan = config(teacher)
    planned = outline(plan, make_mesh(), corpus_size(plan))
    assert [program.name for program in planned.programs] == ["step", "evaluation"]
