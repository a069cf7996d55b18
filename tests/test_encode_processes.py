"""`jaxretr encode` as processes: killed at random moments or two at once they write the bytes of one undisturbed run."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest
import tiny

from jaxretr.data.tokens import load_tokenizer
from jaxretr.encoding_store import EmbeddingStore
from jaxretr.models.dual_encoder import DualEncoder, DualEncoderConfig, init_params

CORPUS = Path(__file__).parent / "data/wiki_qa"
SEED = 20261121


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command line but for --out."""
    folder = tmp_path_factory.mktemp("encode_kills")
    tiny.write_models(folder)
    config = DualEncoderConfig(tiny.BERT, max_question_length=16, max_passage_length=48)
    DualEncoder(config, init_params(config, 0), load_tokenizer(folder / "encoder_tokenizer")).save(folder / "model")
    command = [sys.executable, "-m", "jaxretr", "encode", str(folder / "model"), "--corpus", str(CORPUS)]
    return [*command, "--shard-rows", "2", "--dtype", "int8", "--compute", "float32"]


@pytest.fixture(scope="module")
def undisturbed(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], float]:
    """The files of a run that nobody killed, and its seconds."""
    out = tmp_path_factory.mktemp("undisturbed") / "store"
    began = time.monotonic()
    subprocess.run([*words, "--out", str(out)], check=True, capture_output=True)
    return contents(out), time.monotonic() - began


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_killed_at_ten_random_moments_the_store_is_the_same_to_the_byte(
    words: list[str], undisturbed: tuple[dict[str, bytes], float], tmp_path: Path
):
    wanted, seconds = undisturbed
    moments = random.Random(SEED)
    out, finished = tmp_path / "store", set()
    for _ in range(10):
        process = subprocess.Popen([*words, "--out", str(out)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        # Half of the kills while it starts, half after the first file has appeared: that is where the writing is.
        if moments.random() < 0.5:
            time.sleep(moments.uniform(0, seconds))
        else:
            before = set(out.glob("embeddings-*")) if out.exists() else set()
            while process.poll() is None and not set(out.glob("embeddings-*")) - before:
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        finished.add(len(list(out.glob("embeddings-*.json"))))
    print(f"seed {SEED}: shards finished after the kills: {sorted(finished)}")
    assert len(finished) > 1, "no kill came while shards were written"
    subprocess.run([*words, "--out", str(out)], check=True, capture_output=True)
    assert contents(out) == wanted


def test_two_processes_encode_one_store(words: list[str], undisturbed: tuple[dict[str, bytes], float], tmp_path: Path):
    outputs = processes.finish(processes.start([*words[1:], "--out", str(tmp_path / "store")], 2, 1))
    assert contents(tmp_path / "store") == undisturbed[0]
    shards = EmbeddingStore.open(tmp_path / "store").meta.shards
    assert shards > 4
    # The first says what was made, and each encoded its half.
    assert [" shards; " in stdout for stdout, _ in outputs] == [True, False]
    assert all("encoded 10 passages in" in stderr for _, stderr in outputs), outputs


def test_a_corpus_larger_than_memory_is_read_along_the_way(words: list[str], tmp_path: Path):
    """Nine times as many passages need no more memory; held as texts alone they would take 100 MB more."""
    program = "import sys\nfrom jaxretr import cli, memory\nassert cli.main(sys.argv[1:]) == 0\nprint(memory.peak())"
    peaks = []
    for count in (3_000, 27_000):
        corpus = tmp_path / f"{count}.jsonl"
        with open(corpus, "w", encoding="utf-8") as file:
            for row in range(count):
                file.write(f'{{"_id": "{row}", "text": "{row} {"words " * 700}"}}\n')
        command = [sys.executable, "-c", program, "encode", words[4], "--corpus", str(corpus), "--shard-rows", "1000"]
        done = subprocess.run(
            [*command, "--out", str(tmp_path / f"{count}")], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout.splitlines()[-1]))
    grown = (peaks[1] - peaks[0]) / 2**20
    print(f"peaks of {peaks[0] / 2**20:.0f} and {peaks[1] / 2**20:.0f} MiB")
    assert grown < 60, "8 bytes a passage are kept, and what the allocator makes of it"
