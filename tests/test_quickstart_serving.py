"""`make serve`: a model and an index that are made once, and the page on them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import tiny

from jaxretr.assets import ENCODER_SMALL
from jaxretr.indexes.index import SearchOptions
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.models.combined_encoder import load_encoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.quickstart import serving as quickstart_serving

ROOT = Path(__file__).parents[1]


@pytest.fixture
def tiny_encoder(tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DualEncoder:
    """In place of the one that is shipped."""
    encoder = DualEncoder.from_pretrained(tiny_models / "encoder", pooling="mean", max_passage_length=32)
    encoder.save(tmp_path / "small")
    monkeypatch.setattr(quickstart_serving, "ENCODER_SMALL", tmp_path / "small")
    return encoder


def test_the_index_is_made_once_and_searched(tiny_encoder: DualEncoder, tmp_path: Path, monkeypatch: Any) -> None:
    model, live = quickstart_serving.prepare(tmp_path / "serve", tmp_path / "no run", tiny.DATA)
    index = LiveIndex.open(live, background=False)
    (hits,) = index.search(load_encoder(model).encode_queries(["who wrote it"]), 3, SearchOptions())
    assert len(hits) == 3 and all(index.documents([hit.id for hit in hits]))
    index.close()
    monkeypatch.setattr(quickstart_serving, "encode", lambda *_, **__: pytest.fail("encoded again"))
    assert quickstart_serving.prepare(tmp_path / "serve", tmp_path / "no run", tiny.DATA) == (model, live)


def test_the_quickstarts_own_model_is_taken_if_it_is_finished(tiny_encoder: DualEncoder, tmp_path: Path) -> None:
    run = tmp_path / "quickstart"
    tiny_encoder.save(run / "art")
    unfinished = quickstart_serving.prepare(tmp_path / "serve", run, tiny.DATA)
    assert unfinished[0] == tmp_path / "small"
    (run / "results.json").write_text("{}")
    assert quickstart_serving.prepare(tmp_path / "serve", run, tiny.DATA) == (run / "art", unfinished[1])


def test_the_shipped_encoder_pools_and_scales_as_it_was_trained() -> None:
    config = DualEncoder.from_pretrained(ENCODER_SMALL).config
    assert (config.pooling, config.normalise, config.shared) == ("mean", True, True)


def test_make_serve_answers_with_the_page(tmp_path: Path) -> None:
    """The recipe as it stands, with an environment in which everything is installed."""
    for path in (ROOT / "Makefile", ROOT / "pyproject.toml", *ROOT.glob("requirements*.txt")):
        shutil.copy(path, tmp_path)
    bin = tmp_path / ".venv/bin"
    bin.mkdir(parents=True)
    for name, words in (("python", '"$@"'), ("jaxretr", '-m jaxretr "$@"')):
        (bin / name).write_text(f"#!/bin/sh\nexec {sys.executable} {words}\n")
        (bin / name).chmod(0o755)
    for name in (".venv/bin/uv", ".venv/.installed", ".venv/.installed-serve"):
        (tmp_path / name).touch()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAXRETR_CACHE": str(tmp_path / "c")}
    process = subprocess.Popen(
        ["make", "serve", "SERVE=--port 0"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stderr.readline, "")), daemon=True)
    reader.start()
    try:
        url = found(lambda: next((json.loads(each)["url"] for each in lines if '"url"' in each), None), process, lines)
        page = urllib.request.urlopen(f"{url}/", timeout=10).read().decode()
        assert "<html" in page
        found(lambda: fetched(f"{url}/ready"), process, lines)
        answer = json.loads(fetched(f"{url}/v1/quickstart/search?q=who+wrote+hamlet&k=3") or "{}")
        assert [len(result["hits"]) for result in answer["results"]] == [3]
        assert answer["results"][0]["hits"][0]["text"]
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def fetched(url: str) -> str | None:
    try:
        return urllib.request.urlopen(url, timeout=30).read().decode()
    except OSError:
        return None


def found(look: Any, process: subprocess.Popen[str], lines: list[str], seconds: float = 560) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if (value := look()) is not None:
            return value
        time.sleep(0.2)
    raise AssertionError("".join(lines[-20:]))
