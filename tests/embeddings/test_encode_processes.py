"""`jaxretr encode` as processes: killed at random moments or two at once they write the bytes of one undisturbed run."""

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import processes
import pytest
import tiny

from jaxretr.data.tokens import load_tokenizer
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, init_params
from jaxretr.runtime.parallel.hosts import EXIT_AGAIN, AskedToStop, stops_when_asked

CORPUS = Path(__file__).parents[1] / "data/wiki_qa"
SEED = 20261121
LOST_SECONDS = 3


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command line except for --out."""
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


@pytest.mark.slow
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


def changed(words: list[str], option: str, value: str) -> list[str]:
    """The command's words, with another value of an option."""
    place = words.index(option) + 1
    return [*words[:place], value, *words[place + 1 :]]


@pytest.fixture(scope="module")
def of_eight_devices(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> EmbeddingStore:
    """What one process with eight devices makes, in float32."""
    out = tmp_path_factory.mktemp("eight") / "store"
    processes.finish(processes.start([*changed(words[1:], "--dtype", "float32"), "--out", str(out)], 1, 8))
    return EmbeddingStore.open(out)


@pytest.mark.parametrize(("count", "devices"), [(2, 4), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_processes_encode_what_one_encodes(
    words: list[str], of_eight_devices: EmbeddingStore, tmp_path: Path, count: int, devices: int
):
    command = [*changed(words[1:], "--dtype", "float32"), "--out", str(tmp_path / "store")]
    outputs = processes.finish(processes.start(command, count, devices))
    found, rows = EmbeddingStore.open(tmp_path / "store"), of_eight_devices.meta.rows
    assert found.read_ids() == of_eight_devices.read_ids()
    np.testing.assert_allclose(found.rows(0, rows), of_eight_devices.rows(0, rows), rtol=1e-5, atol=1e-6)
    encoded = [int(re.search(r"encoded (\d+) passages in", stderr)[1]) for _, stderr in outputs]  # pyright: ignore
    assert sum(encoded) == rows and max(encoded) <= rows / count + 2, "each does its part"


# `python -c PROGRAM SECONDS ...`: `jaxretr ...`, where each shard takes so long.
SLOWLY = """
import sys, time
from jaxretr import cli
from jaxretr.embeddings.embedding_store import EmbeddingStore
write, pause = EmbeddingStore.write, float(sys.argv[1])
EmbeddingStore.write = lambda *shard: (time.sleep(pause), write(*shard))[1]
sys.exit(cli.main(sys.argv[2:]))
"""


def records(out: Path) -> set[Path]:
    """Those of the finished shards."""
    return set(out.glob("embeddings-*.json"))


def wait_for_a_shard(out: Path, run: list[subprocess.Popen], seconds: float = 120) -> None:
    """Waits until another shard is finished, or for so long."""
    before, began = records(out), time.monotonic()
    while time.monotonic() - began < seconds and not records(out) - before:
        assert all(process.poll() is None for process in run), processes.ended(run)
        time.sleep(0.01)


@pytest.mark.slow
def test_one_of_two_processes_killed_ten_times(words: list[str], tmp_path: Path):
    """The other ends within its time and says why; in the end the store is the one of an undisturbed run."""
    # A shard a passage, each of which takes two seconds: else all would be done after a few kills.
    arguments = [*changed(words[3:], "--shard-rows", "1"), "--out"]
    subprocess.run([*words[:3], *arguments, str(tmp_path / "whole")], check=True, capture_output=True)
    draws = random.Random(SEED)
    out, finished, longest = tmp_path / "store", [], 0.0
    for kill in range(10):
        slowly = ["-c", SLOWLY, "2", *arguments, str(out)]
        run = processes.start(slowly, 2, 1, **processes.impatient(LOST_SECONDS))
        # Some kills come while the processes start, the others once one of them has written a shard.
        wait_for_a_shard(out, run, draws.uniform(3, 8) if kill % 5 < 3 else 120)
        longest = max(longest, processes.kill_one(run, draws.randrange(2), LOST_SECONDS))
        finished.append(len(records(out)))
    print(f"seed {SEED}: shards after each kill: {finished}; the other process ended within {longest:.1f} s")
    assert len(set(finished)) > 0 and finished[-1] < 20, "no kill came while shards were written"
    processes.finish(processes.start(["-m", "jaxretr", *arguments, str(out)], 2, 1))
    assert contents(out) == contents(tmp_path / "whole")


def test_sigterm_ends_all_and_they_go_on(words: list[str], undisturbed: tuple[dict[str, bytes], float], tmp_path: Path):
    out = tmp_path / "store"
    run = processes.start(["-c", SLOWLY, "3", *words[3:], "--out", str(out)], 2, 1)
    wait_for_a_shard(out, run)
    run[1].send_signal(signal.SIGTERM)
    began = time.monotonic()
    (code, errors), (asked, _) = processes.ended(run)
    assert time.monotonic() - began < 30
    assert (code, asked) == (EXIT_AGAIN, EXIT_AGAIN)
    assert "process 1 failed: it was asked to stop (SIGTERM)" in processes.last_error(errors)
    assert 0 < len(records(out)) < 10
    processes.finish(processes.start([*words[1:], "--out", str(out)], 2, 1))
    assert contents(out) == undisturbed[0]


@pytest.mark.slow
def test_a_corpus_larger_than_memory_is_read_along_the_way(words: list[str], tmp_path: Path):
    """Nine times as many passages need no more memory; held as texts alone they would take 100 MB more."""
    program = "import sys\nfrom jaxretr import cli\nfrom jaxretr.runtime.parallel import memory\nassert cli.main(sys.argv[1:]) == 0\nprint(memory.peak())"
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


def test_a_request_to_stop_is_heard_during_garbage_collection():
    """Python prints an exception in a finalizer, and goes on."""

    class Collected:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(AskedToStop), stops_when_asked():
        Collected()
        time.sleep(10)
