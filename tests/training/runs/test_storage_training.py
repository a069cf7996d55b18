"""A training run whose folder is in a bucket: what is there, going on with it, and what a damaged one does."""

import json
import logging
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import buckets
import jax
import numpy as np
import processes
import pytest
import tiny
from safetensors.numpy import load, save

from jaxretr import cli
from jaxretr.config import ContrastiveConfig
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.storage.paths import as_path, filesystem
from jaxretr.training.loop import train

STEPS = 6

# What does not depend on the kind of bucket is looked at in one.
only_s3 = pytest.mark.parametrize("server", ["s3"], indirect=True)


@pytest.fixture(scope="module", params=[pytest.param("s3", marks=pytest.mark.slow), "gs"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[buckets.Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXRETR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield from buckets.serving(request.param)


def config(models: Path, **changes: dict[str, object]) -> ContrastiveConfig:
    return tiny.contrastive_config(models, train={"steps": STEPS, "keep": 2}, **changes)


@pytest.fixture(scope="module")
def local(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run on a disk."""
    folder = tmp_path_factory.mktemp("local")
    train(config(tiny_models), folder)
    return folder


@pytest.fixture(scope="module")
def workdir(server: buckets.Server, tiny_models: Path) -> str:
    """A whole run in a bucket."""
    train(config(tiny_models), as_path(f"{server.scheme}://bucket/runs/whole"))
    return f"{server.scheme}://bucket/runs/whole"


def weights(content: dict[str, bytes]) -> dict[str, np.ndarray]:
    return load(content["model/model.safetensors"])


def results(lines: str) -> list[dict[str, float]]:
    """Those of metrics.jsonl, without how long they took."""
    timings = ("examples_per_s", "seconds/")
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(timings)} for line in lines.splitlines()]


def test_the_bucket_holds_what_a_folder_does(workdir: str, local: Path) -> None:
    content = buckets.objects(workdir)
    for name, value in weights(content).items():
        np.testing.assert_array_equal(value, load((local / "model/model.safetensors").read_bytes())[name], err_msg=name)
    for name in ("config.json", "best.json", "model/jaxretr.json"):
        assert json.loads(content[name]) == json.loads((local / name).read_text()), name
    assert results(content["metrics.jsonl"].decode()) == results((local / "metrics.jsonl").read_text())
    checkpoints = {name.split("/")[1] for name in content if name.startswith("checkpoints/")}
    assert checkpoints == {path.name for path in (local / "checkpoints").iterdir()}
    assert {f"checkpoints.sha256/{step}.json" for step in checkpoints} <= content.keys()
    assert any(name.startswith("tensorboard/events") for name in content)
    assert not any(name.startswith(("tokens/", "data/")) for name in content), "token stores stay on the disk"
    assert not any(".part" in name for name in content)


def test_another_config_is_refused(workdir: str, tiny_models: Path) -> None:
    before = buckets.objects(workdir)
    with pytest.raises(UsageError) as error:
        train(config(tiny_models, optimizer={"learning_rate": 0.5}), as_path(workdir))
    assert str(error.value).startswith(
        f"{workdir}/config.json: this folder was started with other settings (optimizer.learning_rate)"
    )
    assert buckets.objects(workdir) == before


PROGRAM = """
import sys
from pathlib import Path
import buckets, test_storage_training as tests
from jaxretr.runtime.storage.paths import as_path
from jaxretr.training.loop import train
train(tests.config(Path(sys.argv[1])), as_path(sys.argv[2]))
"""


def test_a_killed_run_ends_as_an_undisturbed_one(
    server: buckets.Server, workdir: str, tiny_models: Path, tmp_path: Path
) -> None:
    folder = f"{server.scheme}://bucket/runs/killed"
    words = ["-c", PROGRAM, str(tiny_models), folder]
    begin = {**server.environment, "JAXRETR_CACHE": str(tmp_path / "one")}
    [process] = processes.start(words, 1, 8, **begin)
    try:
        while not filesystem(folder).exists(f"{folder}/checkpoints/4/commit_success.txt"):
            assert process.poll() is None, process.stderr and process.stderr.read()[-3000:]
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert "model/jaxretr.json" in buckets.objects(folder)
    # On another machine: nothing of the first one's disk is there.
    processes.finish(processes.start(words, 1, 8, **{**begin, "JAXRETR_CACHE": str(tmp_path / "two")}))

    found, expected = buckets.objects(folder), buckets.objects(workdir)
    for name, value in weights(expected).items():
        np.testing.assert_array_equal(weights(found)[name], value, err_msg=name)  # bit for bit
    assert json.loads(found["best.json"]) == json.loads(expected["best.json"])
    lines = [json.loads(line) for line in found["metrics.jsonl"].decode().splitlines()]
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == list(range(1, STEPS + 1)), "each step is reported once"


def test_a_damaged_checkpoint_is_set_aside(
    server: buckets.Server, workdir: str, tiny_models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, folder = filesystem(workdir), f"{server.scheme}://bucket/runs/damaged"
    for name, content in buckets.objects(workdir).items():
        store.pipe_file(f"{folder}/{name}", content)
    largest = max(store.find(f"{folder}/checkpoints/{STEPS}"), key=store.size)
    store.pipe_file(largest, store.cat_file(largest)[:-1])
    # And one whose writing was cut short, which is none.
    store.pipe_file(f"{folder}/checkpoints/99/state/manifest.ocdbt", b"")
    with caplog.at_level(logging.WARNING):
        train(config(tiny_models), as_path(folder))
    assert f"{folder}/checkpoints/{STEPS}: " in caplog.text and "was changed" in caplog.text
    found = buckets.objects(folder)
    assert any(name.startswith(f"checkpoints.damaged/{STEPS}-") for name in found)
    assert f"checkpoints/{STEPS}/commit_success.txt" in found, "the steps were run again"
    for name, value in weights(buckets.objects(workdir)).items():
        np.testing.assert_array_equal(weights(found)[name], value, err_msg=name)


@only_s3
def test_a_step_that_failed_is_kept_and_replayed(
    server: buckets.Server, tiny_models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from jaxretr.training.runs.contrastive import ContrastiveRun

    folder, step = f"{server.scheme}://bucket/runs/failed", ContrastiveRun.step

    def broken(run: ContrastiveRun, state: object, number: int, batch: object) -> object:
        state, metrics = step(run, state, number, batch)
        return state, {**metrics, "loss": jax.numpy.float32(float("nan") if number == 4 else metrics["loss"])}

    with monkeypatch.context() as patch:
        patch.setattr(ContrastiveRun, "step", broken)
        with pytest.raises(UserError, match=f"^{folder}: the loss of step 5 is nan .*kept in {folder}/failed"):
            train(config(tiny_models), as_path(folder))
    assert {"failed/step-5.npz", "failed/step-5.json"} <= buckets.objects(folder).keys()
    # On another machine.
    monkeypatch.setenv("JAXRETR_CACHE", os.environ["JAXRETR_CACHE"] + "-other")
    assert cli.main(["debug", "replay", folder]) == 0
    assert "the batch of step 5 is the one that failed" in capsys.readouterr().out


def test_commands_take_a_model_and_a_store_in_a_bucket(
    server: buckets.Server, workdir: str, local: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, queries = str(tiny.DATA / "corpus.jsonl"), str(tiny.DATA / "queries.jsonl")
    runs = []
    for model, out in ((workdir, f"{server.scheme}://bucket/store"), (str(local), str(tmp_path / "store"))):
        runs.append(tmp_path / f"{len(runs)}.trec")
        encode = ["encode", model, "--corpus", corpus, "--out", out, "--shard-rows", "8"]
        assert cli.main(encode) == 0, capsys.readouterr().err
        assert cli.main(encode) == 0, "a second time nothing is left to do"
        search = ["search", model, "--index", out, "--queries", queries, "-k", "5", "--out", str(runs[-1])]
        assert cli.main(search) == 0, capsys.readouterr().err
        assert cli.main(["verify", out]) == 0
        assert cli.main(["data", "inspect", out]) == 0
        said = capsys.readouterr().out
        assert f"{out}: intact; 20 passages in 3 shards" in said and "embedding store" in said
    assert runs[0].read_text() == runs[1].read_text()


@only_s3
def test_an_exact_index_in_a_bucket_is_searched(server: buckets.Server, workdir: str, tmp_path: Path) -> None:
    from jaxretr.indexes.exact import ExactIndex
    from jaxretr.models.dual_encoder import DualEncoder

    encoder = DualEncoder.from_pretrained(workdir)
    ExactIndex(encoder.encode_passages(["a", "b"]), ["A", "B"]).save(tmp_path / "index")
    store = filesystem(workdir)
    for path in (tmp_path / "index").iterdir():
        store.put_file(str(path), f"{server.scheme}://bucket/index/{path.name}")
    words = ["search", workdir, "--index", f"{server.scheme}://bucket/index", "-k", "2"]
    out = tmp_path / "run.trec"
    assert cli.main([*words, "--queries", str(tiny.DATA / "queries.jsonl"), "--out", str(out)]) == 0
    assert {line.split()[2] for line in out.read_text().splitlines()} == {"A", "B"}


def test_a_model_is_fetched_once_and_again_when_it_has_changed(server: buckets.Server, workdir: str) -> None:
    from jaxretr.models.dual_encoder import DualEncoder

    folder, store = f"{server.scheme}://bucket/models/one", filesystem(workdir)
    for name, content in buckets.objects(f"{workdir}/model").items():
        store.pipe_file(f"{folder}/{name}", content)
    first = DualEncoder.from_pretrained(folder).encode_queries(["who"])
    server.asked.clear()
    np.testing.assert_array_equal(DualEncoder.from_pretrained(folder).encode_queries(["who"]), first)
    # Google is asked about an object by the same name, without alt=media.
    fetched = "alt=media" if server.scheme == "gs" else "GET /bucket/models/one/model.safetensors"
    assert not [line for line in server.asked if fetched in line]
    tensors = {name: value * 2 for name, value in load(store.cat_file(f"{folder}/model.safetensors")).items()}
    store.pipe_file(f"{folder}/model.safetensors", save(tensors))
    assert not np.array_equal(DualEncoder.from_pretrained(folder).encode_queries(["who"]), first)
    assert [line for line in server.asked if fetched in line]


@pytest.mark.parametrize("what", ["nothing there", "no model yet", "half a model"])
def test_a_model_that_is_not_there(server: buckets.Server, workdir: str, what: str) -> None:
    from jaxretr.models.dual_encoder import DualEncoder

    folder, store = f"{server.scheme}://bucket/models/{what.replace(' ', '-')}", filesystem(workdir)
    expected = "no such folder in this bucket"
    if what == "no model yet":
        store.pipe_file(f"{folder}/checkpoints/0/commit_success.txt", b"")
        expected = "this run has written no model yet"
    if what == "half a model":
        store.pipe_file(f"{folder}/model/model.safetensors", b"0000")
        expected = "config.json"
    with pytest.raises(UserError, match=expected):
        DualEncoder.from_pretrained(folder)


@only_s3
def test_two_processes_write_one_run(server: buckets.Server, workdir: str, tiny_models: Path, tmp_path: Path) -> None:
    folder = f"{server.scheme}://bucket/runs/two"
    variables = {**server.environment, "JAXRETR_CACHE": str(tmp_path)}
    processes.finish(processes.start(["-c", PROGRAM, str(tiny_models), folder], 2, 4, **variables))
    found = buckets.objects(folder)
    assert any("ocdbt.process_1" in name for name in found), "each process writes its part of a checkpoint"
    for name, value in weights(buckets.objects(workdir)).items():
        np.testing.assert_allclose(weights(found)[name], value, rtol=2e-3, atol=1e-5, err_msg=name)
    # What two processes wrote, one goes on with.
    shutil.rmtree(tmp_path)
    assert train(config(tiny_models), as_path(folder)) == json.loads(found["best.json"])["figures"]
