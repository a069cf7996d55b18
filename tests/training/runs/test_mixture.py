"""Training on several sets at once: which examples a step reads, with which prompts and objectives, and where it searches."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_runs
from jax.sharding import Mesh
from safetensors.numpy import load_file
from tiny import DATA, contrastive_config, write_supervised

from jaxretr.config import Contrastive, ContrastiveConfig, MixtureSet, Negatives, from_json, override, to_json
from jaxretr.data.batches import MixtureBatches
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.training.experiment import load_config
from jaxretr.training.loop import train
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.plan.requirements import plan
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.runs.corpus_sizes import corpus_size

DEV = {"dev_questions": str(DATA), "dev_qrels": str(DATA / "qrels/train.tsv")}


def mixture_config(models: Path, folder: Path, *sets: dict[str, Any], **changes: Any) -> ContrastiveConfig:
    """A run on two sets of the same questions: "whole" has the passages of wiki_qa, "file" those of a training file."""
    file = write_supervised(folder / "file")
    own: list[dict[str, Any]] = [
        {"name": "whole", "train": str(DATA), "split": "train", **DEV, "query_prompt": "whole: "},
        {"name": "file", **file, "passage_prompt": "file: ", "weight": None},
    ]
    settings = zip(own, (*sets, *({},) * (2 - len(sets))), strict=True)
    mixture = tuple(MixtureSet(**one | changed) for one, changed in settings)
    changes["train"] = {"best_metric": "ndcg@10", "steps": 4, "eval_every": 4, **changes.get("train", {})}
    changes["data"] = {"train": "", "dev_questions": None, "mixture": mixture, **changes.get("data", {})}
    return contrastive_config(models, **changes)


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_batches_are_of_one_set_each_and_keep_the_shares() -> None:
    sizes = (10, 3, 40)
    batches = MixtureBatches(sizes, (0.2, 0.1, 0.7), 4, seed=5, mixed=False)
    edges = np.cumsum([0, *sizes])
    read = [batches.indices(step) for step in range(100)]
    sets = [np.unique(np.searchsorted(edges, each, side="right") - 1) for each in read]
    assert all(len(each) == 1 for each in sets)
    counts = np.bincount(np.concatenate(sets), minlength=3)
    assert counts.tolist() == [20, 10, 70]
    # Every epoch of a set has each of its examples once, across batches.
    of_first = np.concatenate([each for each, number in zip(read, sets, strict=True) if number == 0])
    for epoch in range(8):
        assert sorted(of_first[10 * epoch : 10 * (epoch + 1)].tolist()) == list(range(10))
    # Any step alone, in any order.
    again = MixtureBatches(sizes, (2, 1, 7), 4, seed=5, mixed=False)
    for step in (77, 3, 50):
        np.testing.assert_array_equal(again.indices(step), read[step])
    # A set that is given twice is read in two orders.
    twice = MixtureBatches((10, 10), (1, 1), 10, seed=5, mixed=False)
    assert (twice.indices(0) != twice.indices(1) - 10).any()
    other = MixtureBatches(sizes, (2, 1, 7), 4, seed=6, mixed=False)
    assert any((other.indices(step) != read[step]).any() for step in range(4))


def test_mixed_batches_have_the_shares_inside() -> None:
    batches = MixtureBatches((10, 30), (1, 3), 8, seed=5, mixed=True)
    for step in range(20):
        assert (batches.indices(step) < 10).sum() == 2


@pytest.mark.parametrize(("temperature", "shares"), [(1.0, [3, 5]), (1e9, [1, 1])])
def test_sets_without_weights_are_drawn_by_their_size(
    temperature: float, shares: list[int], tiny_models: Path, tmp_path: Path, mesh1: Mesh
) -> None:
    config = mixture_config(tiny_models, tmp_path, data={"mixture_temperature": temperature})
    run = ContrastiveRun(config, mesh1, tmp_path)
    sizes = [len(each.examples.texts) for each in run.mixture.members]
    assert sizes == [6, 10]
    drawn = np.bincount([int(run._sets(step)[0]) for step in range(sum(shares) * 10)])
    assert abs(drawn - 10 * np.array(shares)).max() <= 1


# ---- what a step reads -----------------------------------------------------------------------------------------------


def test_a_step_reads_its_set_alone_with_its_prompts(tiny_models: Path, tmp_path: Path, mesh1: Mesh) -> None:
    config = mixture_config(tiny_models, tmp_path, {"weight": 1.0}, {"weight": 1.0})
    run: Any = ContrastiveRun(config, mesh1, tmp_path)
    whole, file = run.mixture.members
    read = run.model.tokenizer.decode
    # The corpora first, then what the training file has besides: the shortened negatives.
    counts = [each.examples.corpus_rows for each in run.mixture.members]
    assert counts == [20, 22] and run.corpus_rows == 42 < len(run.examples.passages)
    for row, passage in enumerate(run.examples.passages):
        text = read(run.store.row(row)[1:])
        prompted = "file:" in text.replace(" ", "")[:5]
        assert prompted == passage.id.startswith("file/"), (row, text)
    for step in range(4):
        chosen, batch = run.batches.indices(step), run._on_host(step)
        [number] = set(batch.sets.tolist())
        member = run.mixture.members[number]
        own = chosen - member.first_question
        for at, question in enumerate(own.tolist()):
            expected = ("whole: " if member is whole else "") + member.examples.texts[question]
            ids = run.model.tokenizer(expected, truncation=True, max_length=16)["input_ids"]
            assert batch.tokens[at, : batch.lengths[at]].tolist() == ids
            # Its passage is one of its positives, among the rows of all sets.
            positives = member.examples.draws.examples.positives[question]
            assert batch.rows[at, 0] in member.rows(positives)
            passage = run.examples.passages[int(batch.rows[at, 0])]
            assert passage.id.startswith(f"{member.name}/")
            known = run.contents[member.rows(member.examples.contents[positives])]
            assert set(known.tolist()) <= set(batch.known[at].tolist())
    assert file.rows(np.array([-1, 0, 21, 22])).tolist() == [-1, 20, 41, 42]


def test_mixed_batches_read_positives_and_negatives_in_their_places(
    tiny_models: Path, tmp_path: Path, mesh1: Mesh
) -> None:
    config = mixture_config(
        tiny_models,
        tmp_path,
        data={"mixed_batches": True},
        contrastive={"positives": "all", "max_positives": 3},
        negatives={"static": 0},
    )
    run: Any = ContrastiveRun(config, mesh1, tmp_path)
    batch, chosen = run._on_host(1), run.batches.indices(1)
    assert set(batch.sets.tolist()) == {0, 1} and batch.rows.shape == (8, run.draws.positives)
    for at, (question, number) in enumerate(zip(chosen.tolist(), batch.sets.tolist(), strict=True)):
        member = run.mixture.members[number]
        expected = member.rows(member.examples.draws.examples.positives[question - member.first_question])
        assert set(batch.rows[at][batch.rows[at] >= 0].tolist()) == set(expected.tolist())


# ---- training --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole_run(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[ContrastiveConfig, Path]:
    """(config, folder) of a run whose sets have objectives of their own, one with retrieved negatives."""
    folder = tmp_path_factory.mktemp("mixture")
    config = mixture_config(
        tiny_models,
        folder,
        {"negatives": Negatives(static=0, retrieved=1, last_rank=30), "weight": 1.0},
        {
            "negatives": Negatives(static=1),
            "contrastive": Contrastive(temperature=0.5, chunk=4),
            "weight": 1.0,
            "held_out": 1,
        },
        train={"log_every": 4, "save_every": 1},
    )
    losses: list[float] = []
    train(config, folder / "run", on_step=lambda _, metrics: losses.append(float(metrics["loss"])))
    (folder / "losses.json").write_text(json.dumps(losses))
    return config, folder


def test_a_run_reports_each_set(whole_run: tuple[ContrastiveConfig, Path]) -> None:
    config, folder = whole_run
    lines = read_metrics(folder / "run")
    trained = [line for line in lines if "whole:loss" in line or "file:loss" in line]
    assert [line["step"] for line in trained] == [4]
    # Each step is of one set; the line has the mean of each set's steps.
    losses = json.loads((folder / "losses.json").read_text())
    means = sorted(np.mean(losses[first::2]) for first in (0, 1))
    assert sorted([trained[0]["whole:loss"], trained[0]["file:loss"]]) == pytest.approx(means, rel=1e-6)
    measured = [line for line in lines if "whole:ndcg@10" in line]
    assert [line["step"] for line in measured] == [0, 4]
    for line in measured:
        assert line["ndcg@10"] == pytest.approx((line["whole:ndcg@10"] + line["file:ndcg@10"]) / 2)
    assert from_json(json.loads((folder / "run/config.json").read_text())) == config


@pytest.mark.slow
def test_a_killed_run_of_sets_ends_as_an_undisturbed_one(
    whole_run: tuple[ContrastiveConfig, Path], tmp_path: Path
) -> None:
    config, folder = whole_run
    small_runs.train_killed_once(ContrastiveRun, config, tmp_path / "run", at=3)
    weights = [load_file(each / "run/model/model.safetensors") for each in (folder, tmp_path)]
    for name, value in weights[0].items():
        np.testing.assert_array_equal(weights[1][name], value, err_msg=name)


def test_questions_are_searched_for_in_the_corpus_of_their_set(
    whole_run: tuple[ContrastiveConfig, Path], tmp_path: Path, mesh8: Mesh
) -> None:
    config, _ = whole_run
    run: Any = ContrastiveRun(config, mesh8, tmp_path)
    state = run.init()
    for number in range(2):
        batch = run.batch(number)
        rows = np.asarray(run.step_of(number)(*run.arguments(state, batch))[-1])
        state = run.init()
        member = run.mixture.members[int(run._sets(number)[0])]
        ids = {run.examples.passages.ids[row].partition("/")[0] for row in rows[rows >= 0].tolist()}
        assert ids == {member.name} and rows.shape == (8, 2)
        if member.name == "whole":
            assert (rows[:, 1] >= 0).all(), "20 passages, of which at most two are the question's own"
    # One program for each objective.
    assert run.steps[0] is None and run.steps[1] is not None
    # The same metrics as a run on the set alone has at its start.
    alone = ContrastiveRun(config.members["whole"], mesh8, tmp_path / "alone")
    expected = alone.evaluate(alone.init())
    found = run.evaluate(state)
    assert {name: found[f"whole:{name}"] for name in expected} == pytest.approx(expected, abs=1e-6)


def test_sets_with_one_objective_share_a_program(tiny_models: Path, tmp_path: Path, mesh1: Mesh) -> None:
    (tmp_path / "own.py").write_text("def loss(scores, positive, negative):\n    return scores.sum(-1)\n")
    for loss in ("softmax", f"{tmp_path}/own.py:loss"):
        run: Any = ContrastiveRun(mixture_config(tiny_models, tmp_path, contrastive={"loss": loss}), mesh1, tmp_path)
        assert run.steps == [None, None], loss


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sets", "changes", "message"),
    [
        ((), {"data": {"train": "somewhere"}}, "data.train: belongs to each set of data.mixture"),
        ((), {"data": {"mixture": ()}}, "data.train: is not given"),
        ((), {"data": {"dev": "x"}}, "data.dev: a mixture has no validation loss"),
        (({"name": "file"},), {}, "'file' is no name of one set"),
        (({"name": "a b"},), {}, "'a b' is no name of one set"),
        (({"weight": 1.0},), {}, "every set a weight above 0, or none"),
        (({"weight": 0.0}, {"weight": 1.0}), {}, "every set a weight above 0, or none"),
        (({"weight": 1.0}, {"weight": 1.0}), {"data": {"mixture_temperature": 2.0}}, "for sets without weights"),
        ((), {"data": {"mixture_temperature": 0.0}}, "must be above 0"),
        (
            ({"negatives": Negatives()},),
            {"data": {"mixed_batches": True}},
            "a batch has one objective, and set whole has negatives of its own",
        ),
        ((), {"data": {"mixed_batches": True}, "negatives": {"retrieved": 1}}, "from the corpus of a batch's set"),
        ((), {"contrastive": {"corpus_softmax": True}}, "set whole: contrastive.corpus_softmax"),
        (({"token_cache": "x"},), {}, "set whole: token_cache is the run's"),
        (({"mined": "x"},), {}, "set whole: negatives.mined and data.mined go together"),
        (({"contrastive": Contrastive(hardness_of="own")},), {}, "set whole: contrastive.hardness_of is of"),
        (
            ({"negatives": Negatives(guide="a")}, {"negatives": Negatives(guide="b")}),
            {},
            "one guide serves all sets, not 2",
        ),
    ],
)
def test_mixtures_that_contradict_themselves_are_refused(
    sets: tuple[dict[str, Any], ...], changes: dict[str, Any], message: str, tiny_models: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        mixture_config(tiny_models, tmp_path, *sets, **changes).check()


def test_a_set_that_is_searched_needs_a_corpus(tiny_models: Path, tmp_path: Path, mesh1: Mesh) -> None:
    config = mixture_config(tiny_models, tmp_path, {}, {"corpus": None}, negatives={"retrieved": 1})
    with pytest.raises(UsageError, match=r"set file: retrieved negatives .* need a corpus"):
        ContrastiveRun(config, mesh1, tmp_path)
    config = mixture_config(tiny_models, tmp_path, {}, {"corpus": None, "held_out": 1})
    with pytest.raises(UsageError, match=r"set file: data.held_out is searched for in a corpus"):
        ContrastiveRun(config, mesh1, tmp_path)


def test_a_loss_in_python_is_refused_where_a_set_has_its_own(tiny_models: Path, tmp_path: Path) -> None:
    config = mixture_config(tiny_models, tmp_path, {}, {"contrastive": Contrastive(temperature=2.0)})
    with pytest.raises(UsageError, match="loss: set file has a contrastive section of its own"):
        train(config, tmp_path / "run", loss=lambda scores, positive, negative: scores.sum(-1))


def test_a_suite_and_a_set_have_different_names(tiny_models: Path, tmp_path: Path, mesh1: Mesh) -> None:
    suite = shutil.copytree(DATA, tmp_path / "whole")
    (suite / "qrels/tydi.tsv").rename(suite / "qrels/dev.tsv")
    config = mixture_config(tiny_models, tmp_path, train={"suites": (str(suite),)})
    with pytest.raises(UsageError, match=r"train.suites: 'whole' is also a set of data.mixture"):
        ContrastiveRun(config, mesh1, tmp_path)


def test_a_mixture_is_given_as_json(tiny_models: Path) -> None:
    config = contrastive_config(tiny_models)
    assert config.data.train and config.data.dev_questions, "of which nothing is left"
    sets = [
        {"name": "a", "train": "a.jsonl", "weight": 2},
        {"name": "b", "train": "b.jsonl", "weight": 1, "negatives": {"static": 3}},
    ]
    given = override(config, ["--data.mixture", json.dumps(sets)])
    assert isinstance(given, ContrastiveConfig)
    assert given.data.mixture[1].negatives == Negatives(static=3) and given.data.mixture[0].weight == 2
    assert from_json(to_json(given)) == given
    assert given.members["b"].negatives.static == 3 and given.members["a"].negatives == config.negatives
    with pytest.raises(UsageError, match="unknown key 'wieght'; did you mean 'weight'"):
        override(config, ["--data.mixture", json.dumps([{"name": "a", "wieght": 2}])])
    with pytest.raises(UsageError, match=r"mixture\[0\]: has no key 'name'; give it"):
        override(config, ["--data.mixture", json.dumps([{"train": "a.jsonl"}])])
    assert dataclasses.replace(given, data=config.data) == config
    again = override(given, ["--data.mixture", json.dumps(sets[:1]), "--data.token-cache", "kept"])
    assert isinstance(again, ContrastiveConfig) and again.data.token_cache == "kept" and len(again.data.mixture) == 1
    with pytest.raises(UsageError, match=r"data.train: belongs to each set"):
        override(config, ["--data.mixture", json.dumps(sets), "--data.train", "c.jsonl"]).check()
    for name in ("dpr_small", "dpr_nq"):
        shipped = load_config(name, **{"data.mixture": sets, "negatives.mined": 0})
        assert isinstance(shipped, ContrastiveConfig) and not shipped.data.train
        shipped.check()
    with pytest.raises(UsageError, match=r"data.mixture: the sets are given as data as well"):
        load_config("dpr_small", data=DATA, **{"data.mixture": sets})


def test_several_paths_are_a_mixture_by_size(tiny_models: Path, tmp_path: Path, mesh1: Mesh) -> None:
    file = write_supervised(tmp_path / "file")["train"]
    settings = {"negatives.static": 1, "negatives.retrieved": 2, "encoder.path": str(tiny_models / "encoder")}
    config = load_config("dpr_small", data=[DATA, file], **settings)
    assert isinstance(config, ContrastiveConfig)
    whole, other = config.data.mixture
    assert (whole.name, whole.train, whole.split) == ("wiki_qa", str(DATA), "train")
    assert (other.name, other.train, other.corpus) == ("train", file, file)
    assert whole.negatives == dataclasses.replace(config.negatives, static=0), "a BEIR folder has no negatives"
    assert other.negatives is None and (config.negatives.static, config.negatives.retrieved) == (1, 2)
    assert whole.held_out and other.held_out and config.train.best_metric == "recall@20"
    config.check()
    # A plan counts the passages of both.
    size = corpus_size(config)
    assert size.searched == 20 + corpus_size(config.members["train"]).searched
    planned = plan(contrastive_config(tiny_models, data=vars(config.data)), passages=64)
    assert planned.programs[0].name == "step"
    again = load_config("dpr_small", data=[DATA, DATA])
    assert isinstance(again, ContrastiveConfig)
    assert [each.name for each in again.data.mixture] == ["wiki_qa", "wiki_qa-2"]
    with pytest.raises(UsageError, match=r"data.split: belongs to each of several sets"):
        load_config("dpr_small", data=[DATA, file], **{"data.split": "tydi"})
    with pytest.raises(UsageError, match=r"data.mixture: the sets are given as data as well"):
        load_config("dpr_small", data=[DATA, file], **{"data.mixture": [{"name": "a", "train": file}]})
    with pytest.raises(UsageError, match="another kind of run than those that train on several sets"):
        load_config("art_small", data=[DATA, file])


def test_moved_files_of_a_set_resume_and_changed_ones_do_not(
    whole_run: tuple[ContrastiveConfig, Path], tmp_path: Path
) -> None:
    config, folder = whole_run
    shutil.copytree(folder / "run", tmp_path / "run")
    shutil.copytree(folder / "file", tmp_path / "file")
    whole, file = config.data.mixture
    at = {name: str(tmp_path / "file" / Path(getattr(file, name)).name) for name in ("train", "corpus")}
    data = dataclasses.replace(config.data, mixture=(whole, dataclasses.replace(file, **at)))
    moved = dataclasses.replace(config, data=data)
    train(moved, tmp_path / "run")
    heavier = dataclasses.replace(data, mixture=(dataclasses.replace(whole, weight=3.0), data.mixture[1]))
    with pytest.raises(UsageError, match="started with other settings"):
        train(dataclasses.replace(config, data=heavier), tmp_path / "run")
    rows = json.loads(Path(at["train"]).read_text())
    Path(at["train"]).write_text(json.dumps(rows[::-1]))
    with pytest.raises(UserError, match=r"other passages, questions, examples.* than there are now"):
        train(moved, tmp_path / "run")


@pytest.mark.slow
def test_the_losses_are_those_of_any_number_of_devices(
    whole_run: tuple[ContrastiveConfig, Path], tmp_path: Path, mesh1: Mesh, mesh8: Mesh
) -> None:
    config, _ = whole_run
    losses = []
    for number, mesh in enumerate((mesh1, mesh8)):
        run: Any = ContrastiveRun(config, mesh, tmp_path / str(number))
        state, found = run.init(), []
        for step in range(3):
            state, metrics = run.step(state, step, run.batch(step))
            found.append(float(metrics["loss"]))
        losses.append(found)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert len({*losses[0]}) == 3
