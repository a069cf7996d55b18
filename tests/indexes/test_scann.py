"""The ScaNN index: exact scores, recall that was promised, ids and files that last, and a way out without ScaNN."""

import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jaxretr import ExactIndex, ScannIndex
from jaxretr.indexes.certified import process as scann_process
from jaxretr.indexes.certified import worker as scann_worker
from jaxretr.indexes.certified.build import plan_of
from jaxretr.indexes.certified.exact_scores import OnePass
from jaxretr.indexes.certified.scann_engine import ScannEngine
from jaxretr.indexes.certified.upkeep import verify
from jaxretr.indexes.recall import recall_bounds, table
from jaxretr.runtime.errors import UserError

PROBLEM = scann_process.scann_problem()
needs_scann = pytest.mark.skipif(PROBLEM is not None, reason=f"ScaNN: {PROBLEM}")

SEED = 3
N, DIM, LEAVES = 3000, 16, 40


def vectors(n: int, seed: int, length: float = 1.0) -> np.ndarray:
    """Clustered like embeddings, of lengths that differ."""
    centres = np.random.default_rng(SEED).standard_normal((60, DIM))
    rng = np.random.default_rng(seed)
    rows = centres[rng.integers(60, size=n)] + 0.6 * rng.standard_normal((n, DIM))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows * rng.uniform(0.8, 1.2, (n, 1)) * length).astype(np.float32)


PASSAGES, QUESTIONS = vectors(N, 1), vectors(800, 2)
IDS = [f"p {row}\n" if row % 7 == 0 else f"p{row}" for row in range(N)]


def exact_ids(passages: np.ndarray, ids: list[str], questions: np.ndarray, k: int = 10) -> list[set[str]]:
    found = np.argsort(-(questions @ passages.T), axis=1, kind="stable")[:, :k]
    return [{ids[row] for row in rows} for rows in found]


def recall(index: ScannIndex, passages: np.ndarray, ids: list[str], target: float | None = None) -> float:
    questions = vectors(400, 77)  # not those of the build
    found = index.search(questions, 10, target_recall=target)[1]
    pairs = zip(found, exact_ids(passages, ids, questions), strict=True)
    return float(np.mean([len(set(names) & wanted) / 10 for names, wanted in pairs]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved index with a tree, for three targets."""
    path = tmp_path_factory.mktemp("scann") / "index"
    built = ScannIndex.build(PASSAGES, IDS, target_recall=(0.8, 0.9, 0.97), questions=QUESTIONS, num_leaves=LEAVES)
    built.save(path)
    return path


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "moved" / "index"))


# ---- searching -------------------------------------------------------------------------------------------------------


@needs_scann
def test_scores_are_exact_and_results_look_like_exact_searchs(folder: Path) -> None:
    index = ScannIndex.load(folder)
    scores, ids = index.search(QUESTIONS[:50], 7)
    same, _ = ExactIndex(PASSAGES, IDS).search(QUESTIONS[:50], 7)
    assert scores.shape == same.shape == (50, 7) and scores.dtype == same.dtype == np.float32
    assert all(len(names) == 7 for names in ids)
    row_of = {name: row for row, name in enumerate(IDS)}
    found = PASSAGES[[[row_of[name] for name in names] for names in ids]].astype(np.float64)
    products = np.einsum("bkd,bd->bk", found, QUESTIONS[:50].astype(np.float64))
    np.testing.assert_allclose(scores, products, rtol=1e-5, atol=1e-6)  # float32 sums of 16 products
    assert (np.diff(scores, axis=1) <= 0).all()
    # One question, many, none, and any number of threads: the same answers.
    for threads in (1, 3):
        np.testing.assert_allclose(index.search(QUESTIONS[:50], 7, threads=threads)[0], scores, rtol=1e-5)
    assert index.search(QUESTIONS[0:1], 7)[1] == ids[:1]
    assert index.search(QUESTIONS[:0], 7)[0].shape == (0, 7)


@needs_scann
@pytest.mark.parametrize("target", [0.8, 0.9, 0.97])
def test_targets_are_reached_on_questions_of_neither_half(folder: Path, target: float) -> None:
    index = ScannIndex.load(folder)
    assert all(setting.reached for setting in index.facts.settings)
    # Of 400 questions the mean recall has a standard error of about .01.
    assert recall(index, PASSAGES, IDS, target) >= target - 0.02


@needs_scann
def test_a_higher_target_takes_more_work(folder: Path) -> None:
    low, _, high = ScannIndex.load(folder).facts.settings
    # Of leaves and candidates one is more; which of them it is, the timing decides.
    assert low.leaves < high.leaves or low.candidates < high.candidates
    assert high.leaves * high.candidates < LEAVES * N


def test_a_target_that_is_given_twice_counts_once() -> None:
    index = ScannIndex.build(PASSAGES[:300], questions=QUESTIONS, target_recall=(0.9, 0.8, 0.9))
    assert [setting.target for setting in index.facts.settings] == [0.9, 0.8]
    for wrong in ("0.9", ["0.9"], (0.9, None), (), 0, 1.5, float("nan")):
        with pytest.raises(UserError, match="give a share above 0"):
            ScannIndex.build(PASSAGES[:300], questions=QUESTIONS, target_recall=wrong)  # pyright: ignore


@needs_scann
def test_more_results_than_the_leaves_hold(folder: Path) -> None:
    """A question gets its k passages, or all that there are, however few leaves were searched."""
    index = ScannIndex.load(folder)
    scores, rows = index.searcher.search(QUESTIONS[:3], 1000, 1, 1000, 1)
    expected, _ = ExactIndex(PASSAGES).search(QUESTIONS[:3], 1000)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
    assert all(len(set(found)) == 1000 for found in rows.tolist())
    assert index.search(QUESTIONS[:2], N + 5)[0].shape == (2, N)


@needs_scann
@pytest.mark.parametrize(("k", "leaves"), [(10, 6), (100, 6), (300, 1)], ids=["k", "more", "short"])
def test_measuring_finds_what_a_search_finds(folder: Path, k: int, leaves: int) -> None:
    """It reads the vectors in their order, a block at a time; with rows that changed, and where leaves hold too few."""
    index = ScannIndex.load(folder)
    index.delete(IDS[5:8])
    index.add(vectors(40, 12), [f"new{row}" for row in range(40)])
    expected = index.searcher.search(QUESTIONS[:30], k, leaves, 50, 1)
    found = index.searcher.search(QUESTIONS[:30], k, leaves, 50, 1, OnePass(index.rows))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    np.testing.assert_array_equal(found[1], expected[1])


@needs_scann
def test_vectors_of_any_length() -> None:
    """Lengths of a thousand, and of a thousandth: codes are made to their measure."""
    for length in (1e3, 1e-3):
        passages, questions = vectors(2000, 5, length), vectors(400, 6)
        index = ScannIndex.build(passages, questions=questions, target_recall=0.9, num_leaves=20)
        assert index.facts.settings[0].candidates < 200
        assert recall(index, passages, [str(row) for row in range(2000)]) >= 0.88


@needs_scann
def test_without_a_tree() -> None:
    index = ScannIndex.build(PASSAGES, IDS, target_recall=0.95, questions=QUESTIONS)
    assert (index.facts.kind, index.facts.leaves) == ("flat", 1)
    assert index.facts.settings[0].candidates < 200
    assert recall(index, PASSAGES, IDS) >= 0.93


def test_few_passages_are_all_scored(tmp_path: Path) -> None:
    index = ScannIndex.build(PASSAGES[:300], IDS[:300], questions=QUESTIONS)
    index.save(tmp_path / "index")
    index = ScannIndex.load(tmp_path / "index")
    scores, ids = index.search(QUESTIONS[:20], 9)
    expected, names = ExactIndex(PASSAGES[:300], IDS[:300]).search(QUESTIONS[:20], 9)
    assert ids == names
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    index.delete([names[0][0]])
    assert index.search(QUESTIONS[:1], 1)[1] == [[names[0][1]]]


# ---- the folder ------------------------------------------------------------------------------------------------------


@needs_scann
def test_moved_folder_gives_the_same_and_verifies(folder: Path, copy: Path) -> None:
    before, after = (ScannIndex.load(path).search(QUESTIONS, 10) for path in (folder, copy))
    assert before[1] == after[1]
    np.testing.assert_array_equal(before[0], after[0])
    said = verify(copy)
    assert "recall on 400 questions as certified" in said
    assert str(folder) not in "".join(path.read_text() for path in copy.glob("*.pb*txt"))
    assert [json.loads(line) for line in (copy / "ids.jsonl").read_text().splitlines()] == IDS
    assert not list(copy.glob("*.pkl"))


@needs_scann
def test_certificate_says_what_is_true(folder: Path) -> None:
    index = ScannIndex.load(folder)
    assert index.certificate is not None and index.questions is not None
    assert (index.certificate.of, index.certificate.questions, index.certificate.rows) == ("questions", 400, N)
    mine = index.questions.vectors[index.questions.certify]
    tuning = index.questions.vectors[index.questions.tune]
    assert not {row.tobytes() for row in mine} & {row.tobytes() for row in tuning}
    expected = exact_ids(PASSAGES, IDS, mine)
    for line in index.certificate.lines:
        found = index.search(mine, 10, target_recall=line.target)[1]
        share = np.mean([len(set(names) & wanted) / 10 for names, wanted in zip(found, expected, strict=True)])
        measured = line.recalls[0]
        assert measured.k == 10 and abs(measured.recall - share) < 1e-3  # a tie at rank 10
        assert measured.low < measured.recall < measured.high
        assert line.p50_ms <= line.p99_ms
        assert f"{measured.recall:.4f}" in table(index.certificate)


@needs_scann
def test_one_changed_byte_is_found(folder: Path, copy: Path) -> None:
    for path in sorted(copy.iterdir()):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(UserError, match=path.name):
            verify(copy)
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    verify(copy)


@needs_scann
def test_a_certificate_of_something_else_is_found(copy: Path) -> None:
    """Files that fit their hashes, but a recall or neighbours that nobody measured."""
    index = ScannIndex.load(copy)
    assert index.certificate is not None and index.questions is not None
    lines = tuple(
        replace(line, recalls=tuple(replace(found, recall=0.5) for found in line.recalls))
        for line in index.certificate.lines
    )
    honest, index.certificate = index.certificate, replace(index.certificate, lines=lines)
    index.save(copy)
    with pytest.raises(UserError, match=r"instead of 0\.5000"):
        verify(copy)
    index.certificate = honest
    index.questions = replace(index.questions, neighbours=index.questions.neighbours[::-1])
    index.save(copy)
    with pytest.raises(UserError, match="not those that were noted"):
        verify(copy)


class _Harm:
    def __reduce__(self):
        return os.mkdir, ("harmed",)


@needs_scann
def test_no_pickle_is_read(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy / "scann_docids.pkl").write_bytes(pickle.dumps(_Harm()))
    monkeypatch.chdir(tmp_path)
    assert len(ScannIndex.load(copy).search(QUESTIONS[:1], 3)[1][0]) == 3
    assert not (tmp_path / "harmed").exists()
    with pytest.raises(UserError, match=r"scann_docids.pkl was added"):
        verify(copy)


@needs_scann
def test_other_folders_are_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("ten years")
    with pytest.raises(UserError, match="else than a ScaNN index"):
        ScannIndex.load(folder).save(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "ten years"


# ---- changing --------------------------------------------------------------------------------------------------------


@needs_scann
def test_a_tenth_deleted_and_added_keeps_the_recall(copy: Path) -> None:
    index = ScannIndex.load(copy)
    assert index.certificate is not None
    before = [line.recalls[0].recall for line in index.certificate.lines]
    rng = np.random.default_rng(SEED)
    gone = set(rng.choice(N, N // 10, replace=False).tolist())
    new, names = vectors(N // 10, 9), [f"new{row}" for row in range(N // 10)]
    index.delete([IDS[row] for row in gone])
    assert index.add(new, names) == 0
    assert index.certificate.stale and "STALE" in table(index.certificate)
    kept = [row for row in range(N) if row not in gone]
    passages, ids = np.concatenate([PASSAGES[kept], new]), [IDS[row] for row in kept] + names
    # What is in memory, and what is read again, says the same.
    in_memory = index.search(QUESTIONS, 10)
    index.certify()
    index.save(copy)
    index = ScannIndex.load(copy)
    assert index.rows.ids == ids
    again = index.search(QUESTIONS, 10)
    assert in_memory[1] == again[1]
    np.testing.assert_array_equal(in_memory[0], again[0])
    found = {name for row in again[1] for name in row}
    assert found & set(names) and not found & {IDS[row] for row in gone}
    assert index.certificate is not None and not index.certificate.stale
    # 400 questions before and after; the certificate's standard error is .005 to .01.
    for old, line in zip(before, index.certificate.lines, strict=True):
        assert line.recalls[0].recall >= old - 0.02
        assert recall(index, passages, ids, line.target) >= line.target - 0.02
    assert index.changed_share == pytest.approx(0.2)
    verify(copy)


@needs_scann
def test_adding_a_known_id_replaces_it(copy: Path) -> None:
    index = ScannIndex.load(copy)
    # As long as passages get, and in the direction of the questions: these must be the best.
    far = 1.2 * QUESTIONS[:2] / np.linalg.norm(QUESTIONS[:2], axis=1, keepdims=True)
    assert index.add(far, [IDS[5], "fresh"]) == 1
    assert len(index) == N + 1
    index.save(copy)
    for each in (index, ScannIndex.load(copy)):
        scores, ids = each.search(QUESTIONS[:2], 1, target_recall=0.97)
        assert ids == [[IDS[5]], ["fresh"]]
        np.testing.assert_allclose(scores[:, 0], (far * QUESTIONS[:2]).sum(axis=1), rtol=1e-5)
    index.update(-far, [IDS[5], "fresh"])
    assert not {IDS[5], "fresh"} & {name for row in index.search(QUESTIONS[:2], 5)[1] for name in row}


@needs_scann
def test_a_folder_that_another_process_replaced_is_not_mixed_with_the_old_one(copy: Path) -> None:
    index, other = ScannIndex.load(copy), ScannIndex.load(copy)
    before = index.search(QUESTIONS[:5], 5)
    other.delete(before[1][0])
    other.save(copy)
    assert index.search(QUESTIONS[:5], 5)[1] == before[1]
    for call in (lambda: index.add(PASSAGES[:1], ["x"]), lambda: index.save(copy)):
        with pytest.raises(UserError, match="was replaced"):
            call()


@needs_scann
def test_rebalancing_learns_the_passages_that_there_are(copy: Path) -> None:
    index = ScannIndex.load(copy)
    moved = vectors(N // 2, 11) * np.float32(-1)  # where no leaf is
    index.add(moved, [f"m{row}" for row in range(N // 2)])
    index.delete(IDS[: N // 3])
    index.rebalance(num_leaves=30)
    assert (index.facts.leaves, index.facts.changed) == (30, 0)
    passages, ids = np.concatenate([PASSAGES[N // 3 :], moved]), index.rows.ids
    index.save(copy)
    index = ScannIndex.load(copy)
    assert recall(index, passages, ids, 0.97) >= 0.95
    verify(copy)


# ---- questions and targets -------------------------------------------------------------------------------------------


@needs_scann
def test_without_questions_passages_stand_in_and_the_certificate_says_so(caplog: pytest.LogCaptureFixture) -> None:
    index = ScannIndex.build(PASSAGES, IDS, num_leaves=LEAVES, target_recall=0.9)
    assert index.certificate is not None and index.questions is not None
    assert index.certificate.of == "passages" and "stood in" in table(index.certificate)
    assert "real questions find less" in caplog.text
    # A passage is not its own neighbour.
    own = index.questions.own_ids[index.questions.tuning :]
    assert all(name not in names for name, names in zip(own, index.questions.neighbours, strict=True))


@needs_scann
def test_a_target_that_is_not_certain_is_said(caplog: pytest.LogCaptureFixture) -> None:
    index = ScannIndex.build(PASSAGES, IDS, num_leaves=LEAVES, target_recall=0.999, questions=QUESTIONS[:20])
    assert "recall@10 of 0.999 is not reached for certain" in caplog.text
    assert not index.facts.settings[0].reached
    assert index.certificate is not None and "not reached" in table(index.certificate)


def test_bounds_of_recall() -> None:
    # Wilson's interval of 95 of 100, from its formula.
    shares = np.array([1.0] * 95 + [0.0] * 5)
    np.testing.assert_allclose(recall_bounds(shares), (0.8883, 0.9785), atol=1e-4)
    # Questions whose recalls differ less than yes and no say more; one that is always 1 proves little.
    assert recall_bounds(np.full(100, 0.95) + np.tile([-0.05, 0.05], 50))[0] > 0.93
    assert recall_bounds(np.ones(20))[0] < 0.9 < recall_bounds(np.ones(200))[0]
    # 95%: so often it holds the true mean. Of 400 intervals, 20 +- 4.4 miss it; the seed is 0.
    rng = np.random.default_rng(0)
    bounds = [recall_bounds(rng.binomial(10, 0.9, 200) / 10) for _ in range(400)]
    assert 5 <= sum(not low <= 0.9 <= high for low, high in bounds) <= 36


# ---- bad input -------------------------------------------------------------------------------------------------------

NAN = np.where(np.arange(DIM) == 3, np.nan, np.ones((1200, DIM))).astype(np.float32)


@needs_scann
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"passages": NAN}, "row 0 contains NaN"),
        ({"passages": PASSAGES[0]}, r"expected numbers \[rows, dimensions\]"),
        ({"passages": PASSAGES[:0]}, "there are none to index"),
        ({"ids": ["a"] * N}, "is at rows 0 and 1"),
        ({"ids": IDS[:-1]}, f"{N - 1} ids for {N}"),
        ({"questions": QUESTIONS[:, :5]}, "5 columns, but the index has 16"),
        ({"questions": QUESTIONS[:1]}, "1 is too few"),
        ({"target_recall": 1.5}, "above 0 and at most 1"),
        ({"k": 0}, "k=0: must be at least 1"),
        ({"target_recall": True}, "above 0 and at most 1"),
        ({"seed": -1}, "seed=-1: must be at least 0"),
        ({"workdir": "nowhere/at/all"}, "nowhere/at/all: .*as workdir="),
        ({"num_leaves": "9"}, "num_leaves='9': give a whole number"),
        ({"num_leaves": N + 1}, f"num_leaves={N + 1} must be from 1"),
        ({"num_leaves": 100, "train_size": 300}, "too few to learn 100 leaves"),
    ],
)
def test_bad_input_of_build(arguments: dict, message: str) -> None:
    given = {"passages": PASSAGES, "questions": QUESTIONS, **arguments}
    with pytest.raises(UserError, match=message):
        ScannIndex.build(given.pop("passages"), **given)


@needs_scann
def test_bad_input_of_an_index(folder: Path, copy: Path) -> None:
    index = ScannIndex.load(folder)
    for call, message in [
        (lambda: index.search(QUESTIONS[:, :3]), "3 columns, but the index has 16"),
        (lambda: index.search(NAN[:1]), "NaN"),
        (lambda: index.search(QUESTIONS, 0), "k=0"),
        (lambda: index.search(QUESTIONS, target_recall=0.5), "was built for 0.8, 0.9, 0.97"),
        (lambda: index.search(QUESTIONS, threads=0), "threads=0"),
        (lambda: index.delete(["nobody"]), "'nobody' is not in the index"),
        (lambda: index.delete(IDS[0]), "is a single one; give a list"),
        (lambda: index.delete([IDS[0], IDS[0]]), "is at rows 0 and 1"),
        (lambda: index.delete(IDS), "no passage would be left"),
        (lambda: index.update(PASSAGES[:1], ["nobody"]), "'nobody' is not in the index"),
        (lambda: index.add(NAN[:1], ["x"]), "NaN"),
        (lambda: index.add(PASSAGES[:2], ["x", "x"]), "ids must differ"),
        (lambda: index.add(PASSAGES[:2]), "give one for each"),
    ]:
        with pytest.raises(UserError, match=message):
            call()
    assert len(index) == N and not index.facts.changed
    (copy / scann_worker.CODES).unlink()
    with pytest.raises(UserError, match=r"hashed_dataset.npy: cannot be read"):
        ScannIndex.load(copy)
    with pytest.raises(UserError, match="cannot be read"):
        ScannIndex.load(copy / "nowhere")


# ---- without ScaNN ---------------------------------------------------------------------------------------------------


@needs_scann
def test_without_scann_a_folder_is_searched_exactly(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scann_process, "scann_problem", lambda: "it is not installed")
    index = ScannIndex.load(folder)
    assert "searched exactly" in caplog.text
    scores, ids = index.search(QUESTIONS[:9], 6)
    expected, names = ExactIndex(PASSAGES, IDS).search(QUESTIONS[:9], 6)
    assert ids == names
    np.testing.assert_array_equal(scores, expected)
    for call in (lambda: ScannIndex.build(PASSAGES), lambda: index.delete(IDS[:1]), lambda: verify(folder)):
        with pytest.raises(UserError, match=r"pip install 'jaxretr\[scann\]'"):
            call()


@pytest.mark.parametrize(
    ("code", "message"),
    [("import os; os.abort()", "signal 6"), ("raise ImportError('libc is old')", "libc is old")],
)
def test_a_broken_wheel_is_noticed(code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends another process, not this one; and what a working installation had noted does not count."""
    (tmp_path / "scann").mkdir()
    (tmp_path / "scann/__init__.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("JAXRETR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delitem(__import__("sys").modules, "scann", raising=False)
    problem = scann_process.scann_problem.__wrapped__()
    assert problem is not None and message in problem
    assert not (tmp_path / "cache").exists()


@needs_scann
def test_the_self_test_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRETR_CACHE", str(tmp_path))
    assert scann_process.scann_problem.__wrapped__() is None
    monkeypatch.setattr(scann_process, "run_worker", lambda job: pytest.fail("tested again"))
    assert scann_process.scann_problem.__wrapped__() is None


# ---- memory ----------------------------------------------------------------------------------------------------------


@needs_scann
@pytest.mark.parametrize(
    ("rows", "dim", "leaves", "sample"),
    [(10_000, 64, 150, 6000), (160_000, 96, 400, 160_000), (20_000, 700, 20, 20_000)],
    ids=["codes", "tree", "codebook"],
)
def test_memory_of_training_is_as_predicted(
    rows: int, dim: int, leaves: int, sample: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each case is one of the steps that takes the most."""
    engine, vectors = ScannEngine(), tmp_path / "vectors.npy"
    # The loop is compiled in each run, as in the first one of an installation: reading it would take less.
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    np.save(vectors, np.random.default_rng(0).standard_normal((rows, dim), dtype=np.float32))
    training = engine.train(vectors, tmp_path, leaves=leaves, sample=sample, seed=0)
    coding = engine.encode(vectors, tmp_path, tmp_path, tree=True)
    assert max(training, coding) == pytest.approx(engine.training_bytes(sample, dim, leaves), rel=0.2)


def test_a_plan_holds_less_than_the_corpus_takes() -> None:
    """Training holds a share of a large corpus; 1.3 times its vectors and codes is allowed."""
    for rows, dim in [(1_000_000, 384), (5_000_000, 768), (20_000_000, 768)]:
        plan = plan_of(rows, dim, None, None)
        assert ScannEngine().training_bytes(plan.train_rows, dim, plan.leaves) < 1.3 * 4.25 * rows * dim
        assert plan.memory() < 1.3 * 4.25 * rows * dim
