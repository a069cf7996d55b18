"""The memory of exact search: within 1.3 times the arrays that it holds, and told before it starts."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROWS, DIM, K = 150_000, 384, 100

# In a process of its own, whose memory nothing else has grown; small searches before, as any program has run some.
PROGRAM = """
import json, sys
import numpy as np
from jaxretr.runtime.parallel import memory
from jaxretr.indexes.exact import ExactIndex, search_blocks
from jaxretr.indexes.exact.footprint import estimate
from jaxretr.indexes.exact.host_search import HostSearch

path, questions, k, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rows = np.load(path, mmap_mode="r")
n, dim = rows.shape
queries = np.random.default_rng(1).standard_normal((questions, dim), dtype=np.float32)
ExactIndex(np.ones((2048, dim), np.float32)).search_rows(queries[:1], k)
for count, rounded in ((1, False), (9, False), (9, True)):  # what Numba compiles would count as the search's memory
    HostSearch(np.ones((count, dim), np.float32), k, rounded=rounded).add(np.ones((4096, dim), np.float32), 0)
slab = 32768 if how == "stream" else None
first_pass = how if how in ("int8", "bfloat16") else None
predicted = estimate(n, dim, questions=questions, k=k, ids=False, slab_rows=slab, first_pass=first_pass)
if not memory.reset_peak():
    print(json.dumps(None))
    raise SystemExit
before = memory.resident()
if slab:
    search_blocks((rows[at : at + slab] for at in range(0, n, slab)), queries, k)
else:
    index = ExactIndex(rows, first_pass=first_pass)
    built = memory.peak() - before
    index.search_rows(queries, k)
print(json.dumps([predicted.memory, memory.peak() - before, 0 if slab else built, predicted.rows]))
"""


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(path, np.random.default_rng(0).standard_normal((ROWS, DIM), dtype=np.float32))
    return path


def measured(path: Path, questions: int, how: str) -> list[int]:
    words = [sys.executable, "-c", PROGRAM, str(path), str(questions), str(K), how]
    environment = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""}
    answer = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    found = json.loads(answer.stdout.splitlines()[-1])
    if found is None:
        pytest.skip("the system does not let a process reset its peak of memory")
    return found


@pytest.mark.parametrize("questions", [1, 64, 512])
def test_an_index_from_a_memory_map_takes_what_was_said(embeddings: Path, questions: int, record_property) -> None:
    predicted, taken, built, arrays = measured(embeddings, questions, "resident")
    record_property(f"memory with {questions} questions", f"{predicted} predicted, {taken} taken, {arrays} of arrays")
    assert arrays >= ROWS * DIM * 4
    assert built < 1.1 * arrays
    assert taken < 1.3 * arrays
    assert 0.8 * taken < predicted < 1.2 * taken


def test_a_stream_holds_two_slabs(embeddings: Path) -> None:
    predicted, taken, _, arrays = measured(embeddings, 64, "stream")
    assert arrays == 2 * 32768 * DIM * 4
    assert taken < 1.6 * arrays < ROWS * DIM * 4
    assert 0.8 * taken < predicted < 1.2 * taken


def test_a_first_pass_holds_the_rounded_rows_alone(embeddings: Path) -> None:
    _, taken, built, arrays = measured(embeddings, 8, "int8")
    assert ROWS * DIM <= arrays < 1.1 * ROWS * DIM
    assert built < 0.5 * ROWS * DIM * 4 and taken < ROWS * DIM * 4
