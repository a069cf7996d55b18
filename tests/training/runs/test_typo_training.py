"""Training with misspelt questions: what a step reads, what the terms are worth, and that they go with every objective."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from tiny import DATA, art_config, compiled_quickly, contrastive_config, write_models, write_supervised

from jaxretr.config import AdapterShape, BertShape, ContrastiveConfig, Joint, Typos, load, override
from jaxretr.data.lexical_set import LexicalSet, Ranking, Selection
from jaxretr.data.readers import read_corpus
from jaxretr.data.typos import TypoGenerator
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.loop import train
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.runs.art import ArtRun
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.runs.step_questions import StepQuestions
from jaxretr.training.state import TrainState
from jaxretr.training.steps import art, contrastive

ROOT = Path(__file__).parents[3]
TEXTS = ["Who wrote the history of England?", "when was the second world war", "what is a dual encoder", "Who?"]
CHOSEN = np.array([2, 0, 1, 2, 3])


@pytest.fixture(scope="module")
def model(tiny_models: Path) -> DualEncoder:
    encoder = DualEncoder.from_pretrained(tiny_models / "encoder", pooling="mean")
    config = replace(encoder.config, max_question_length=30)
    return DualEncoder(config, encoder.params, encoder.tokenizer)


@pytest.fixture
def no_typos(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator gives the questions back as they are."""
    monkeypatch.setattr(TypoGenerator, "texts", lambda self, texts, step, rows, variant=0: list(texts))


def ids(model: DualEncoder, text: str) -> list[int]:
    return model.tokenizer(text, truncation=True, max_length=30)["input_ids"]


# ---- what a step reads -----------------------------------------------------------------------------------------------


def test_forms_are_the_generator_s_texts_of_seed_step_and_question(model: DualEncoder, tmp_path: Path) -> None:
    typos = Typos(profile="single_word", variants=2, contrast_weight=1.0)
    questions = StepQuestions(TEXTS, typos, model, tmp_path, seed=3)
    tokens, lengths, forms = questions.of_step(CHOSEN, 11)
    assert forms is not None and forms[0].shape == (5, 2, questions.width) and questions.width == 32
    generator = TypoGenerator("single_word", seed=3)
    for place, i in enumerate(CHOSEN.tolist()):
        assert tokens[place, : lengths[place]].tolist() == ids(model, TEXTS[i])
        for v in range(2):
            row = forms[0][place, v]
            expected = ids(model, generator.typo(TEXTS[i], 11, i, v + 1).text)
            assert row[: forms[1][place, v]].tolist() == expected and not row[len(expected) :].any()
    assert (forms[0][0] == forms[0][3]).all() and (forms[0][:3, 0] != forms[0][:3, 1]).any(axis=-1).all()
    assert (questions.of_step(CHOSEN, 12)[2][0] != forms[0]).any()  # pyright: ignore[reportOptionalSubscript]


def test_pre_drawn_forms_of_a_step_are_different_draws_and_change_with_the_step(
    model: DualEncoder, tmp_path: Path
) -> None:
    typos = Typos(profile="single_word", variants=3, pre_drawn=5, augmentation=0.5, contrast_weight=1.0)
    questions = StepQuestions(TEXTS, typos, model, tmp_path, seed=1)
    generator = TypoGenerator("single_word", seed=1)
    drawn = [[ids(model, generator.typo(text, d, i, 1).text) for d in range(5)] for i, text in enumerate(TEXTS)]
    seen = set()
    for step in range(40):
        tokens, lengths, forms = questions.of_step(CHOSEN, step)
        assert forms is not None
        for place, i in enumerate(CHOSEN.tolist()):
            rows = [forms[0][place, v, : forms[1][place, v]].tolist() for v in range(3)]
            assert all(row in drawn[i] for row in rows)
            if len({tuple(row) for row in drawn[i]}) == 5:
                read = tokens[place, : lengths[place]].tolist()
                assert len({tuple(row) for row in [*rows, read]}) == 4  # the question itself is never one of its forms
                seen.add((i, tuple(rows[0])))
    several = sum(len({tuple(row) for row in of_question}) == 5 for of_question in drawn)
    assert several >= 3 and len(seen) == 5 * several  # each draw stands first at some step


def test_augmentation_misspells_its_share_of_the_questions(model: DualEncoder, tmp_path: Path) -> None:
    questions = StepQuestions(TEXTS, Typos(augmentation=0.3), model, tmp_path, seed=0)
    clean = [ids(model, text) for text in TEXTS]
    changed = []
    for step in range(200):
        tokens, lengths, forms = questions.of_step(CHOSEN[:3], step)
        assert forms is None
        changed += [tokens[place, : lengths[place]].tolist() != clean[i] for place, i in enumerate(CHOSEN[:3].tolist())]
    # 600 draws: a standard deviation of .019; some swaps exchange equal letters.
    assert 0.22 < np.mean(changed) < 0.36


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"variants": 0, "contrast_weight": 1.0}, "at least 1"),
        ({"variants": 4}, "no term reads them"),
        ({"pre_drawn": 4}, "no term reads them"),
        ({"pre_drawn": 2, "variants": 2, "augmentation": 0.1, "contrast_weight": 1.0}, "a step reads 3"),
        ({"augmentation": 1.5}, "from 0 to 1"),
        ({"clean_weight": 0.5, "augmentation": 0.5}, "clean_weight"),
        ({"multi_positive": True}, "contrastive.symmetric"),
        ({"passage_weight": 1.0, "misspellings": "nowhere.json"}, "nowhere.json"),
    ],
)
def test_settings_without_sense_are_refused(
    settings: dict[str, Any], what: str, tiny_models: Path, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=what) as error:
        ContrastiveRun(contrastive_config(tiny_models, typos=settings), make_mesh(), tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("settings", [{"multi_positive": True}, {"passage_self_teaching_weight": 1.0}])
def test_art_has_no_judged_passages_to_start_from(settings: dict[str, Any], tiny_models: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="judged passages"):
        ArtRun(art_config(tiny_models, typos=settings), make_mesh(), tmp_path)


# ---- what the terms are worth ----------------------------------------------------------------------------------------


def test_a_typo_that_changes_nothing_gives_the_base_loss_and_constants(
    no_typos: None, tiny_models: Path, tmp_path: Path
) -> None:
    """L(q~ -> P) = L(q -> P), the KL is 0, and CE(q -> Q~) is the questions' softmax among themselves."""
    data = write_supervised(tmp_path / "data")
    typos = {"variants": 2, "contrast_weight": 0.5, "passage_weight": 2.0, "self_teaching_weight": 3.0}
    losses = {}
    for name, settings in (("base", {}), ("typos", typos)):
        config = contrastive_config(tiny_models, data=data, negatives={"static": 2}, typos=settings)
        run = ContrastiveRun(config, make_mesh(), tmp_path / name)
        # Questions have unequal numbers of hard negatives, down to none: a target that slipped would show.
        batch = run.batch(0)
        if name == "typos":
            assert len({int(n) for n in (np.asarray(batch.rows) >= 0).sum(axis=1)}) > 1
        step = compiled_quickly(contrastive.make_step(run.program, optax.sgd(0.0), make_mesh()))
        state = TrainState.create(sharding.put(jax.tree.map(np.array, run.model.params), make_mesh()), optax.sgd(0.0))
        losses[name] = step(state, None, run.whole.passages, run.device_contents, batch)[2]
    q = run.model.encode_queries([run.examples.texts[i] for i in run.batches.indices(0)]).astype(np.float64)
    scores = q @ q.T
    # Each question has two equal positives; each stands against the other questions' two.
    others = [np.log(2 * np.exp(np.delete(row, i) - row[i]).sum()) for i, row in enumerate(scores)]
    contrast = np.mean(np.logaddexp(0, others))
    base = float(losses["base"]["loss"])
    terms = {name: float(value) for name, value in losses["typos"].items()}
    np.testing.assert_allclose(terms["typo_passages"], base, rtol=1e-5)
    np.testing.assert_allclose(terms["typo_contrast"], contrast, rtol=1e-4)
    assert abs(terms["typo_self_teaching"]) < 1e-6
    np.testing.assert_allclose(terms["loss"], base + 0.5 * contrast + 2.0 * base, rtol=1e-5)
    assert base > 0.1 and contrast > 0.1


@pytest.mark.parametrize(
    ("term", "reaches_passages"),
    [("contrast_weight", False), ("passage_weight", True), ("self_teaching_weight", True)],
)
def test_which_towers_a_term_moves(term: str, reaches_passages: bool, tiny_models: Path, tmp_path: Path) -> None:
    """With the term alone: CE(q -> Q~) moves the question tower, the other two move both."""
    config = contrastive_config(
        tiny_models, data=write_supervised(tmp_path / "data"), typos={"clean_weight": 0.0, term: 1.0}
    )
    run = ContrastiveRun(config, make_mesh(), tmp_path)
    step = compiled_quickly(contrastive.make_step(run.program, optax.sgd(1.0), make_mesh()))
    params = jax.tree.map(np.array, run.model.params)
    state = TrainState.create(sharding.put(params, make_mesh()), optax.sgd(1.0))
    after = step(state, None, run.whole.passages, run.device_contents, run.batch(0))[0].params
    moved = {
        name: max(float(np.abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, (tower, after[name])), strict=True))
        for name, tower in params.items()
    }
    assert moved["question"] > 1e-6
    assert moved["passage"] > 1e-6 if reaches_passages else moved["passage"] == 0


def test_art_reads_typos_as_well(no_typos: None, tiny_models: Path, tmp_path: Path) -> None:
    """A form that equals the question has ART's own loss; the teacher reads the question as it is."""
    typos = {"variants": 2, "passage_weight": 1.0, "self_teaching_weight": 1.0, "contrast_weight": 0.25}
    run = ArtRun(art_config(tiny_models, typos=typos), make_mesh(), tmp_path)
    plain = replace(run.program, typos=Typos())
    values = {}
    for name, program in (("plain", plain), ("typos", run.program)):
        step = compiled_quickly(art.make_step(program, optax.sgd(0.0), make_mesh()))
        train_state = TrainState.create(
            sharding.put(jax.tree.map(np.array, run.model.params), make_mesh()), optax.sgd(0.0)
        )
        index = run.whole.encode(train_state)
        batch = run.batch(0)
        if name == "plain":
            batch = replace(batch, forms=None)
        arguments = (run.whole.passages, run.scorer_passages, run.scorer_params, batch)
        found = step(train_state, index, run.new_table(), *arguments)[3]
        values[name] = {key: float(value) for key, value in found.items()}
    base, terms = values["plain"]["loss"], values["typos"]
    np.testing.assert_allclose(terms["typo_passages"], base, rtol=1e-5)
    assert abs(terms["typo_self_teaching"]) < 1e-6 and terms["typo_contrast"] > 0
    np.testing.assert_allclose(terms["loss"], 2 * base + 0.25 * terms["typo_contrast"], rtol=1e-5)


def write_lexical_set(folder: Path) -> str:
    """Four queries with a ranking of five passages each."""
    corpus = read_corpus(DATA)
    rows = np.arange(20, dtype=np.int32).reshape(4, 5)
    ranking = Ranking("teacher", rows, (100.0 - rows).astype(np.float32))
    given = {"selection": Selection(2, 4, 5), "corpus_fingerprint": corpus.fingerprint(), "corpus_rows": len(corpus)}
    LexicalSet.write(folder, TEXTS, np.full(4, -1, np.int32), [ranking], settings={}, **given)
    return str(folder)


@pytest.mark.parametrize("kind", ["SPAR's Lambda", "DDR's relevance module", "a base beside a frozen Lambda"])
def test_the_terms_are_added_to_any_supervised_run(kind: str, tiny_models: Path, tmp_path: Path) -> None:
    typos = {"profile": "single_word", "variants": 2, "contrast_weight": 0.5, "passage_weight": 2.0}
    values: dict[str, dict[str, float]] = {}
    for name, settings in (("base", {}), ("typos", typos)):
        config = contrastive_config(tiny_models, typos=settings, data={"dev_questions": None}, train={"batch_size": 4})
        if kind == "SPAR's Lambda":
            data = replace(config.data, train=write_lexical_set(tmp_path / f"{name} set"), corpus=str(DATA))
            encoder = replace(config.encoder, fresh=BertShape(16, 0, 2, 32), pooling="mean", shared=True)
            config = replace(config, data=data, encoder=encoder)
        elif kind == "DDR's relevance module":
            config = replace(config, encoder=replace(config.encoder, adapter=AdapterShape(4, bottleneck=4)))
        else:
            config = replace(config, joint=Joint(str(tiny_models / "encoder")))
        run = ContrastiveRun(config, make_mesh(jax.devices()[:1]), tmp_path / name)
        values[name] = {key: float(value) for key, value in run.step(run.init(), 0, run.batch(0))[1].items()}
    base, terms = values["base"]["loss"], values["typos"]
    assert base > 0.1 and terms["typo_contrast"] > 0 and abs(terms["typo_passages"] - base) > 1e-6
    expected = base + 0.5 * terms["typo_contrast"] + 2.0 * terms["typo_passages"]
    np.testing.assert_allclose(terms["loss"], expected, rtol=1e-5)


# ---- whole runs ------------------------------------------------------------------------------------------------------


def test_a_run_is_also_evaluated_on_fixed_typos(tiny_models: Path, tmp_path: Path) -> None:
    """The same misspelt dev questions for every seed, beside the clean ones; the best model can be picked by them."""
    figures = []
    for seed in (0, 1):
        config = contrastive_config(
            tiny_models,
            data={"dev_qrels": str(DATA / "qrels/tydi.tsv")},
            typos={"profile": "single_word", "augmentation": 0.5},
            train={"steps": 1, "seed": seed, "eval_every": 1, "best_metric": "typo_recall@5"},
        )
        train(config, tmp_path / str(seed))
        figures.append(read_metrics(tmp_path / str(seed))[0])
    assert {"recall@5", "typo_recall@5", "mrr@10", "typo_mrr@10"} <= figures[0].keys()
    # Before the first step the weights are the same ones, so only other typos could make a difference.
    for name in ("typo_mrr@10", "typo_ndcg@10"):
        assert figures[0][name] == figures[1][name]
    assert any(figures[0][name] != figures[0][f"typo_{name}"] for name in ("mrr@10", "ndcg@10", "recall@5"))


def test_the_paper_s_config_has_both_terms_on_two_towers() -> None:
    config = load(ROOT / "configs/typos_msmarco.py")
    assert isinstance(config, ContrastiveConfig)
    assert config.typos == Typos(profile="dictionary", variants=1, contrast_weight=1.0, passage_weight=1.0)
    assert not config.encoder.shared and config.encoder.pooling == "cls" and not config.encoder.normalise
    assert config.contrastive.temperature == 1.0 and config.train.best_metric.startswith("typo_")


def test_the_small_config_runs_with_the_settings_that_it_lists(tmp_path: Path) -> None:
    """Every line of its docstring is parsed; multi-positive, which has the most of them, is trained."""
    path = ROOT / "configs/typos_small.py"
    listed = path.read_text().split('"""')[1]
    arms = re.findall(r"^  (\w.*?)  +(--.*(?:\n {4,}--.*)*)", listed, re.MULTILINE)
    assert [name.split()[0] for name, _ in arms] == ["augmentation", "contrast", "self-teaching", "multi-positive,"]
    configs = [load(path, words.split()) for _, words in arms]
    assert all(isinstance(config, ContrastiveConfig) and config.typos.active for config in configs)
    words = ["--typos.variants", "3", "--typos.pre-drawn", "3", "--data.dev", "None"]
    words += [
        "--data.train",
        str(DATA),
        "--data.dev-questions",
        str(DATA),
        "--data.dev-qrels",
        f"{DATA}/qrels/tydi.tsv",
    ]
    words += ["--train.steps", "2", "--train.batch-size", "8", "--train.eval-every", "2", "--train.save-every", "2"]
    words += ["--encoder.max-passage-length", "32", "--encoder.path", str(tmp_path / "models/encoder")]
    write_models(tmp_path / "models")  # the small encoder's layers are too wide for the tests' eight devices
    figures = train(override(configs[-1], words), tmp_path / "run")
    assert {"recall@20", "typo_recall@20"} <= figures.keys()
    logged = next(line for line in read_metrics(tmp_path / "run") if "loss" in line)
    assert logged["typo_self_teaching"] > 0 and logged["typo_passage_self_teaching"] > 0
