"""The page's script for Ray Data: two workers fill one store; killed and started again it is that of `jaxretr encode`."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny

from jaxretr.data.tokens import load_tokenizer
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, init_params

pytest.importorskip("ray", reason="ray is missing; install it with: pip install 'ray[data]'")

PAGE = Path(__file__).parents[2] / "docs/past_one_machine.md"
SHARD_ROWS = 2


@pytest.mark.slow
def test_workers_of_ray_fill_the_store_of_encode(tmp_path: Path):
    tiny.write_models(tmp_path)
    config = DualEncoderConfig(tiny.BERT, max_question_length=16, max_passage_length=48)
    DualEncoder(config, init_params(config, 0), load_tokenizer(tmp_path / "encoder_tokenizer")).save(tmp_path / "model")
    shutil.copy(tiny.DATA / "corpus.jsonl", tmp_path / "corpus.jsonl")
    [script] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    script = script.replace("/shared", str(tmp_path)).replace("shards=[]", f"shard_rows={SHARD_ROWS}, shards=[]")
    (tmp_path / "fill.py").write_text(script)
    fill, store = [sys.executable, str(tmp_path / "fill.py")], tmp_path / "store"

    env = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    killed = subprocess.Popen(fill, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path, env=env)
    began = time.monotonic()
    while not list(store.glob("embeddings-*.json")) and time.monotonic() - began < 180:
        assert killed.poll() is None, "it ended without a shard"
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    ended = subprocess.run(fill, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]

    command = [sys.executable, "-m", "jaxretr", "encode", "model", "--corpus", "corpus.jsonl", "--out", "whole"]
    command += ["--shard-rows", str(SHARD_ROWS), "--compute", "bfloat16"]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    wanted, found = (
        {each.name: each.read_bytes() for each in (tmp_path / name).iterdir()} for name in ("whole", "store")
    )
    assert found.pop("meta.json") != wanted.pop("meta.json"), "the model's name is its path"
    assert len(wanted) == 22 and found == wanted
