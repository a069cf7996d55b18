"""FAISS as the engine of the certified index: what holds with ScaNN holds with it, and it trusts no file."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_scann import DIM, IDS, LEAVES, PASSAGES, QUESTIONS, N, recall, vectors

from jaxretr import ExactIndex, ScannIndex
from jaxretr.indexes.certified import process as scann_process
from jaxretr.indexes.certified import worker
from jaxretr.indexes.certified.engines import engine_of, working_engine
from jaxretr.indexes.certified.faiss_engine import CENTRES, CODEBOOK, FaissEngine
from jaxretr.indexes.certified.layout import read_facts
from jaxretr.indexes.certified.upkeep import update, verify
from jaxretr.indexes.recall import table
from jaxretr.runtime.errors import UsageError, UserError

pytest.importorskip("faiss")

TARGETS = (0.8, 0.9, 0.97)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved index with a tree, for three targets."""
    path = tmp_path_factory.mktemp("faiss") / "index"
    built = ScannIndex.build(
        PASSAGES, IDS, target_recall=TARGETS, questions=QUESTIONS, num_leaves=LEAVES, engine="faiss"
    )
    built.save(path)
    return path


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "moved" / "index"))


def found_by(index: ScannIndex, questions: np.ndarray, k: int = 10) -> list[list[str]]:
    return index.search(questions, k, target_recall=TARGETS[-1])[1]


def test_targets_are_reached_with_exact_scores_and_the_engine_is_stated(folder: Path) -> None:
    index = ScannIndex.load(folder)
    assert index.facts.engine == "faiss" and "FAISS" in repr(index)
    assert index.certificate is not None and "FAISS with a tree of 40 leaves" in table(index.certificate)
    assert "faiss-cpu" in index.certificate.versions and "scann" not in index.certificate.versions
    for target in TARGETS:
        # Of 400 questions the mean recall has a standard error of about .01.
        assert recall(index, PASSAGES, IDS, target) >= target - 0.02
    scores, ids = index.search(QUESTIONS[:50], 7, threads=1)
    row_of = {name: row for row, name in enumerate(IDS)}
    found = PASSAGES[[[row_of[name] for name in names] for names in ids]].astype(np.float64)
    products = np.einsum("bkd,bd->bk", found, QUESTIONS[:50].astype(np.float64))
    np.testing.assert_allclose(scores, products, rtol=1e-5, atol=1e-6)  # float32 sums of 16 products
    assert index.search(QUESTIONS[:50], 7, threads=3)[1] == ids
    # More than the leaves hold: all rows, each once; and a question that likes none better.
    everything, names = index.search(QUESTIONS[:2], N)
    assert everything.shape == (2, N) and all(sorted(each) == sorted(IDS) for each in names)
    assert index.search(np.zeros((1, DIM), np.float32), 3)[0].tolist() == [[0, 0, 0]]


def test_the_files_are_arrays_that_can_be_moved_and_verified(copy: Path) -> None:
    names = {path.name for path in copy.iterdir()}
    assert {CENTRES, CODEBOOK, worker.CODES, worker.TOKENS} <= names and worker.CONFIG not in names
    assert "recall on 400 questions as certified" in verify(copy)
    codebook = np.load(copy / CODEBOOK)
    np.save(copy / CODEBOOK, codebook * np.float32(1.5))
    with pytest.raises(UserError, match=f"{CODEBOOK} was changed"):
        verify(copy)


def test_removed_and_replaced_passages_are_found_as_they_are(copy: Path) -> None:
    index = ScannIndex.load(copy)
    before = found_by(index, QUESTIONS[:20])
    gone = sorted({name for names in before for name in names[:3]})
    index.delete(gone)
    fresh = vectors(300, 9)
    index.add(fresh, [f"n{row}" for row in range(300)])
    index.update(-PASSAGES[:1], IDS[:1])
    for current in (index, _saved(index, copy)):
        names = found_by(current, QUESTIONS[:20], 200)
        assert not {*gone} & {name for each in names for name in each}
        kept = [row for row, name in enumerate(IDS) if name not in gone]
        now = np.concatenate([np.where(np.arange(N)[:, None] == 0, -PASSAGES, PASSAGES)[kept], fresh])
        assert recall(current, now, [*(IDS[row] for row in kept), *(f"n{row}" for row in range(300))], 0.97) > 0.94
    with pytest.raises(UserError, match="is not in the index"):
        index.delete(gone[:1])


def _saved(index: ScannIndex, folder: Path) -> ScannIndex:
    index.save(folder)
    return ScannIndex.load(folder)


def test_an_update_measures_again_and_keeps_the_engine(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "gone.txt").write_text("p1\np2\n")
    done = update(copy, delete=tmp_path / "gone.txt", rebalance=True)
    facts, names = read_facts(copy)
    assert (facts.engine, facts.rows, facts.changed) == ("faiss", N - 2, 0) and CENTRES in names
    assert done.certificate is not None and not done.certificate.stale and done.certificate.engine == "faiss"
    verify(copy)


@pytest.mark.parametrize(("dim", "length"), [(7, 1.0), (24, 1000.0), (24, 1e-3)], ids=["odd", "long", "short"])
def test_without_a_tree_in_any_dimensions_and_of_any_length(dim: int, length: float) -> None:
    rng = np.random.default_rng(SEED := 5)
    passages = (rng.standard_normal((1500, dim)) * length).astype(np.float32)
    questions = rng.standard_normal((600, dim)).astype(np.float32)
    index = ScannIndex.build(passages, questions=questions, target_recall=0.9, engine="faiss", seed=SEED)
    assert index.facts.kind == "flat" and index.facts.code_size == -(-dim // 4)
    assert index.certificate is not None and index.facts.settings[0].reached
    # 300 questions of ten neighbours each: two standard errors are about .02.
    assert index.certificate.lines[0].recalls[0].recall >= 0.88
    assert index.facts.settings[0].candidates < 500, "the codes say nothing"


def test_few_passages_need_no_engine(tmp_path: Path) -> None:
    index = ScannIndex.build(PASSAGES[:500], engine="faiss")
    index.save(tmp_path / "small")
    assert ScannIndex.load(tmp_path / "small").facts.kind == "exact"
    assert index.certificate is not None and "every passage is scored" in table(index.certificate)


def test_lists_and_numbers_of_numpy_make_the_same_folder(tmp_path: Path) -> None:
    """Numbers come from an array or a table of settings; the save of a long build must not fail for them."""
    index = ScannIndex.build(PASSAGES[:500].tolist(), engine="faiss", k=np.int64(5), seed=np.int32(0))
    index.save(tmp_path / "of_numpy")
    ScannIndex.build(PASSAGES[:500], engine="faiss", k=5).save(tmp_path / "of_python")
    facts, expected = (read_facts(tmp_path / name) for name in ("of_numpy", "of_python"))
    assert facts == expected
    index.delete(id for id in ["3", "4"])
    index.update(PASSAGES[:1], (id for id in ["5"]))
    assert len(ScannIndex.load(tmp_path / "of_numpy")) - len(index) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (worker.TOKENS, np.full(N, LEAVES, np.int32), "names leaves that are not in"),
        (worker.TOKENS, np.full(N, -1, np.int32), "names leaves that are not in"),
        (CENTRES, np.zeros((LEAVES, 1), np.float32), "does not fit|is not of"),
        (CENTRES, np.full((LEAVES, DIM), np.nan, np.float32), "or NaN"),
        (CODEBOOK, np.zeros((2, 16, 2), np.float32), "is not of 16 dimensions"),
        (CODEBOOK, np.array([{}], object), "cannot be read"),
    ],
    ids=["leaf", "negative", "centres", "nan", "codebook", "pickle"],
)
def test_a_damaged_folder_is_refused_before_faiss_sees_it(
    name: str, content: np.ndarray, message: str, copy: Path
) -> None:
    np.save(copy / name, content, allow_pickle=True)
    with pytest.raises(UserError, match=message):
        ScannIndex.load(copy).search(QUESTIONS[:1])


def test_without_faiss_a_folder_is_searched_exactly(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    index = ScannIndex.load(folder)
    assert "searched exactly, since FAISS cannot be used here" in caplog.text
    scores, ids = index.search(QUESTIONS[:9], 6)
    expected, names = ExactIndex(PASSAGES, IDS).search(QUESTIONS[:9], 6)
    assert ids == names
    np.testing.assert_array_equal(scores, expected)
    for call in (
        lambda: ScannIndex.build(PASSAGES, engine="faiss"),
        lambda: index.delete(IDS[:1]),
        lambda: verify(folder),
        lambda: update(folder, delete=["p1"]),
    ):
        with pytest.raises(UserError, match=r"pip install 'jaxretr\[export\]'"):
            call()


def test_the_engine_that_works_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scann_process, "scann_problem", lambda: "it is not installed")
    chosen = working_engine()
    assert chosen is not None and chosen.name == "faiss"
    assert working_engine("scann") is None
    monkeypatch.setattr(FaissEngine, "problem", lambda self: "neither")
    assert working_engine() is None
    with pytest.raises(UsageError, match="there are scann and faiss"):
        engine_of("annoy")  # pyright: ignore[reportArgumentType]


_MEASURED = """
import sys
from pathlib import Path
import faiss
from jaxretr.indexes.certified.faiss_engine import FaissEngine


def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))


folder, before = Path(sys.argv[1]), peak()
FaissEngine().train(folder / "vectors.npy", folder, leaves=150, sample=30_000, seed=0)
FaissEngine().encode(folder / "vectors.npy", folder, folder, tree=True)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
def test_memory_of_training_is_no_more_than_predicted(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((40_000, 128), dtype=np.float32)
    np.save(tmp_path / "vectors.npy", rows)
    done = subprocess.run([sys.executable, "-c", _MEASURED, tmp_path], capture_output=True, text=True, check=True)
    predicted = FaissEngine().training_bytes(30_000, 128, 150)
    # Of 136 MB, 64 are for FAISS itself, which was loaded before.
    assert 0.3 * predicted < int(done.stdout) <= predicted
