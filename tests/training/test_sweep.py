"""`jaxretr sweep`: the runs of a grid, resumed and widened, and a table that says what their files say."""

import json
import math
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_runs
import tiny

import jaxretr
from jaxretr import cli
from jaxretr.evaluate.significance import compare
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel.hosts import EXIT_AGAIN
from jaxretr.training import loop
from jaxretr.training.report.run_files import RunFiles
from jaxretr.training.runs import contrastive
from jaxretr.training.runs.run_inputs import Inputs
from jaxretr.training.sweep import Sweep, SweepRun, _values

METRIC = "ndcg@10"
BY_LOSS = {"train.best_metric": "loss"}
NAMES = [f"clip={clip}.0,seed={seed}" for clip in (3, 2, 1) for seed in (1, 2)]


def write_config(folder: Path) -> str:
    """A CONFIG.py of a tiny supervised run with the models in `folder`."""
    path = folder / "tiny_dpr.py"
    train = {"steps": 2, "eval_every": 2, "best_metric": METRIC}
    path.write_text(
        f"import sys\nfrom pathlib import Path\n\nsys.path.insert(0, {str(Path(tiny.__file__).parent)!r})\n"
        "from tiny import contrastive_config\n\n\ndef config():\n"
        f"    data = {{'dev_qrels': {str(tiny.DATA / 'qrels/train.tsv')!r}, 'token_cache': None}}\n"
        f"    return contrastive_config(Path({str(folder)!r}), data=data, train={train!r})\n"
    )
    return str(path)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models")
    small_runs.write_models(folder)
    return write_config(folder)


class Drawn:
    """A run that learns nothing: it measures its clip at every step, with a clip of 2 it diverges, and 3 stops it once."""

    stops = True

    def __init__(self, config: Any):
        self.config = config

    def inputs(self) -> Inputs:
        return Inputs({"corpus": "drawn"}, {})

    def init(self) -> Any:
        return {"x": jnp.zeros(1)}

    def abstract_state(self) -> Any:
        return jax.eval_shape(self.init)

    def batch(self, number: int) -> dict[str, jax.Array]:
        return {"x": jnp.zeros(1)}

    def step(self, state: Any, number: int, batch: Any) -> Any:
        if Drawn.stops and self.config.optimizer.clip == 3:
            Drawn.stops = False
            os.kill(os.getpid(), signal.SIGTERM)
        return state, {"loss": jnp.float32(math.inf if self.config.optimizer.clip == 2 else 1)}

    def refreshed(self, state: Any, number: int) -> Any:
        return state

    def evaluate(self, state: Any) -> dict[str, float]:
        return {"loss": self.config.optimizer.clip + self.config.train.seed / 10}

    def evaluated(self) -> str:
        return ""

    def save_model(self, state: Any, folder: Path) -> None:
        folder.mkdir(exist_ok=True)


@pytest.fixture(scope="module")
def first_drawn(config: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first") / "drawn"
    base = jaxretr.load_config(config, **BY_LOSS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "build", lambda config, *_: Drawn(config))
        found = jaxretr.sweep(base, grid={"train.seed": [1, 2], "optimizer.clip": [1]}, workdir=folder)
    assert [row.name for row in found.rows] == ["clip=1.0,seed=1", "clip=1.0,seed=2"]
    return folder


@pytest.fixture
def drawn(first_drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep of drawn runs: one value, and two seeds."""
    monkeypatch.setattr(loop, "build", lambda config, *_: Drawn(config))
    return Path(shutil.copytree(first_drawn, tmp_path / "drawn"))


def starts(run: Path) -> list[int]:
    return [start["from_step"] for start in RunFiles.read(run).starts]


def test_a_stopped_sweep_resumes_and_a_wider_one_trains_what_is_new(drawn: Path, config: str) -> None:
    words = ["sweep", config, "--workdir", str(drawn), "--grid", "optimizer.clip=3,2,1", "--grid", "train.seed=1,2"]
    words += ["--train.best-metric", "loss"]
    assert cli.main(words) == EXIT_AGAIN
    assert {path.parent.name for path in drawn.glob("*/config.json")} == {*NAMES[:1], *NAMES[4:]}
    # A folder that was moved is the same sweep.
    words[3] = str(drawn.rename(drawn.with_name("moved")))
    assert cli.main(words) == 0
    told = json.loads((Path(words[3]) / "sweep.json").read_text())
    assert [run["name"] for run in told["runs"]] == NAMES
    assert [starts(Path(run["folder"])) for run in told["runs"]] == [[0, 1], *[[0]] * 5]
    # A loss is better when it is lower; a run that diverges counts as it is, and the next ones go on.
    assert [run["diverged"] for run in told["runs"]] == [False, False, True, True, False, False]
    assert [run["loss"] for run in told["runs"]] == [1, 1, None, None, 1, 1]
    assert [run["best"] for run in told["runs"]] == pytest.approx([3.1, 3.2, 2.1, 2.2, 1.1, 1.2])
    assert list(told["groups"]) == ["clip=1.0", "clip=2.0", "clip=3.0"]
    assert told["groups"]["clip=1.0"] == {"mean": pytest.approx(1.15), "lowest": 1.1, "highest": 1.2}
    assert not told["tests"] and "loss is no mean" in told["untested"]


def test_the_table_says_what_the_files_and_an_evaluation_say(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_step, programs = contrastive.make_step, dict[str, Any]()

    def shared_step(*given: Any) -> Any:
        """The step of a run, compiled unless another run has compiled the same program."""
        step, compiled = make_step(*given), []

        def call(*arguments: Any) -> Any:
            if not compiled:
                lowered = step.lower(*arguments)
                text = lowered.as_text()
                if text not in programs:
                    programs[text] = lowered.compile({"xla_backend_optimization_level": 0})
                compiled.append(programs[text])
            return compiled[0](*arguments)

        return call

    monkeypatch.setattr(contrastive, "make_step", shared_step)
    words = ["sweep", config, "--grid", "optimizer.learning-rate=0.001,3e-2", "--grid", "train.seed=0,1"]
    words += ["--workdir", str(tmp_path / "dpr"), "--format"]
    assert cli.main([*words, "json"]) == 0
    assert len(programs) == 1, "a learning rate or a seed is a constant of the step"
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((tmp_path / "dpr/sweep.json").read_text())
    assert "<svg" in (tmp_path / "dpr/sweep.html").read_text()
    assert (tmp_path / "dpr/tokens").is_dir() and not list(tmp_path.glob("dpr/*/tokens"))
    values, groups = {}, {}
    for run in told["runs"]:
        files = RunFiles.read(run["folder"])
        assert files.best is not None and run["settings"].keys() == {"optimizer.learning_rate", "train.seed"}
        assert (run["best"], run["step"]) == (files.best["figures"][METRIC], files.best["step"])
        assert run["loss"] == [line["loss"] for line in files.lines if "loss" in line][-1]
        assert run["seconds"] > 0 and not run["diverged"]
        report = jaxretr.evaluate_model(run["folder"], beir=tiny.DATA, split="train", metrics=[METRIC])
        values[run["name"]] = report.systems[0].values[METRIC]
        groups.setdefault(run["group"], []).append(run)
        assert report.mean(0, METRIC) == pytest.approx(run["best"], abs=1e-6)
    of_group = {}
    for name, runs in groups.items():
        best = [run["best"] for run in runs]
        assert len(best) == 2
        expected = {"mean": pytest.approx(np.mean(best)), "lowest": min(best), "highest": max(best)}
        assert told["groups"][name] == expected
        of_group[name] = {id: np.mean([values[run["name"]][id] for run in runs]) for id in values[runs[0]["name"]]}
    first, other = sorted(of_group, key=lambda name: -told["groups"][name]["mean"])
    expected = vars(compare(of_group[first], of_group[other]))
    assert told["tests"].keys() == {other}
    test = told["tests"][other]
    assert {name: test[name] for name in expected} == pytest.approx(expected) and expected["difference"] != 0
    assert test["p_value_holm"] == test["p_value"]
    # Finished runs are read, and their models are not searched with again.
    monkeypatch.setattr("jaxretr.training.sweep.find_all", None)
    assert cli.main([*words, "markdown"]) == 0
    assert f"**{first} against the others, on 6 dev questions**" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, message",
    [
        ("--grid optimizer.learning-rat=1", "no such setting; did you mean '--optimizer.learning-rate'?"),
        ("--grid train.seed=1,x", "--train.seed: 'x' must be"),
        ("--grid train.seed=1 --grid train.seed=2", "--train.seed: given twice"),
        ("--grid train.seed=1,2 --train.seed 3", "--train.seed: given twice"),
        ("--grid train.seed=1,1", "seed=1 is there twice"),
        ("--grid train.seed=1,", "--grid train.seed=1,: give a setting and its values"),
        ("--grid train.seed=1,-1", "train.seed=-1: must be at least 0"),
        ("--grid train.batch-size=8,12", "train.batch_size=12 does not divide over 8 devices"),
        ("--grid data.split=train --grid train.bestmetric=loss", "did you mean '--train.best-metric'?"),
        ("--grid optimizer.name=adamw,lion --optimizer.b1 0.8", "optimizer.b1=0.8: is AdamW's"),
        (
            "--grid train.seed=3,2 --grid optimizer.clip=1 --optimizer.b1 0.8",
            "this folder was started with other settings (optimizer.b1)",
        ),
    ],
)
def test_what_is_wrong_anywhere_is_refused_before_anything_is_trained(
    words: str, message: str, drawn: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(drawn.iterdir())
    assert cli.main(["sweep", config, "--workdir", str(drawn), "--train.best-metric", "loss", *words.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert sorted(drawn.iterdir()) == before


def test_the_reason_why_a_mixture_has_no_paired_tests_is_true(tmp_path: Path) -> None:
    """They have dev questions, which the message denied."""
    for number in range(2):
        settings = {"data.mixture": [{"name": "a", "train": "a.jsonl", "held_out": 9}], "train.seed": number}
        (tmp_path / str(number)).mkdir()
        loop.write_config(tmp_path / str(number), jaxretr.load_config("dpr_small", **settings))
        (tmp_path / f"{number}/metrics.jsonl").touch()
    runs = [RunFiles.read(tmp_path / str(number)) for number in range(2)]
    assert _values(runs, METRIC) == ({}, "a mixture has its own dev questions for each set")


def test_names_are_safe_and_differ_where_values_do(config: str, tmp_path: Path) -> None:
    from jaxretr.training.sweep import combinations

    base = jaxretr.load_config(config)
    grid = {"optimizer.rates": [["layers=2"], ["layers=3"]], "encoder.path": ["a/b", "a_b", "../" + 60 * "x"]}
    names = [name for _, name in combinations(base, grid, tmp_path)]
    assert len(set(names)) == 6 and all(name == Path(name).name and len(name) < 150 for name in names)
    assert names[1].startswith("path=a_b,rates=layers_2-")
    with pytest.raises(UsageError, match=r"compared by train\.best_metric"):
        combinations(base, {"train.best_metric": ["mrr@10", METRIC]}, tmp_path)
    with pytest.raises(UsageError, match="unknown key 'lr'"):
        combinations(base, {"optimizer.lr": [1]}, tmp_path)


def test_a_run_that_diverged_before_its_first_evaluation_is_last_and_the_others_are_compared(tmp_path: Path) -> None:
    bests = {"rate=1": 0.3, "rate=2": None, "rate=3": 0.9}
    rows = [
        SweepRun(name, name, {}, tmp_path, best, None if best is None else 1, 1.0, 1.0, best is None)
        for name, best in bests.items()
    ]
    values = {name: {"q1": best, "q2": best} for name, best in bests.items() if best is not None}
    found = Sweep("ndcg@10", rows, values, "")
    assert list(found.groups) == ["rate=3", "rate=1", "rate=2"]
    assert [*found.tests] == ["rate=1"] and found.tests["rate=1"].mean_a == pytest.approx(0.9)
    assert json.loads(found.to_json())["groups"]["rate=2"] == {"mean": None, "lowest": None, "highest": None}
    assert "rate=3 against the others" in found.table()
