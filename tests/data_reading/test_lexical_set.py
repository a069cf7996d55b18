"""Query stores and lexical sets give back what was written, in little memory, and say what is wrong with damaged ones."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from jaxretr.data.lexical_set import LexicalSet, Ranking, Selection, is_lexical_set, usable_queries
from jaxretr.data.mapped_texts import QueryStore, write_texts
from jaxretr.runtime.errors import UsageError, UserError

TEXTS, OFFSETS = "queries.bin", "queries-offsets.npy"
ODD = ["plain", "", "né\u0301 日本。", "\x00\n\t\r", "😀\u200d\u2028\ufeff", "half \ud83d pair", "  spaces  ", "NaN"]


def _store(folder: Path, texts: list[str]) -> QueryStore:
    with write_texts(folder) as store:
        for text in texts:
            store.append(text)
        assert len(store) == len(texts)
    return QueryStore(folder)


# ---- queries ---------------------------------------------------------------------------------------------------------


def test_a_store_is_the_list_that_was_written(tmp_path: Path):
    store = _store(tmp_path, ODD)
    assert list(store) == ODD and len(store) == len(ODD)
    assert [store[number] for number in range(-len(ODD), len(ODD))] == ODD + ODD
    assert store[2:5] == ODD[2:5] and store[::-3] == ODD[::-3] and store[5:99] == ODD[5:]
    assert store[np.int64(3)] == ODD[3]
    for number in (len(ODD), -len(ODD) - 1):
        with pytest.raises(IndexError):
            store[number]
    assert list(_store(tmp_path / "none", [])) == []


def test_a_long_store_is_the_same_list_wherever_its_pieces_are_written(tmp_path: Path):
    texts = [f"{'ä' * (number % 7)}{number}" for number in range(150_000)]
    store = _store(tmp_path, texts)
    assert list(store) == texts and store[131_071] == texts[131_071]
    assert store.fingerprint() != _store(tmp_path / "b", [*texts[:-1], "x"]).fingerprint()
    assert store.fingerprint() == _store(tmp_path / "c", texts).fingerprint()


def test_a_query_takes_no_memory_until_it_is_asked_for(tmp_path: Path):
    texts = [f"a query of some forty characters, {number:7d}" for number in range(50_000)]
    _store(tmp_path, texts)
    tracemalloc.start()
    store = QueryStore(tmp_path)
    resident, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert resident < 50_000, "bytes in all, against 2 MB of text"
    on_disk = (tmp_path / TEXTS).stat().st_size + (tmp_path / OFFSETS).stat().st_size
    assert on_disk == sum(map(len, texts)) + 8 * (len(texts) + 1) + 128
    assert store[49_999] == texts[-1]


def test_a_failing_writer_leaves_the_old_store(tmp_path: Path):
    _store(tmp_path, ["old"])
    with pytest.raises(RuntimeError), write_texts(tmp_path) as store:
        store.append("new")
        raise RuntimeError
    assert list(QueryStore(tmp_path)) == ["old"] and len(list(tmp_path.iterdir())) == 2


def test_damaged_stores_are_named(tmp_path: Path):
    _store(tmp_path, ["one", "two"])
    for name in (TEXTS, OFFSETS):
        whole = (tmp_path / name).read_bytes()
        for content in (whole[:-1], whole + b"x" * 8, b""):
            (tmp_path / name).write_bytes(content)
            if name == OFFSETS and content.startswith(whole):
                continue  # numpy does not look behind the array
            with pytest.raises(UserError, match=rf"({name}|{TEXTS}): .*again"):
                QueryStore(tmp_path)
        (tmp_path / name).unlink()
        with pytest.raises(UserError, match=f"{name}: "):
            QueryStore(tmp_path)
        (tmp_path / name).write_bytes(whole)
    assert list(QueryStore(tmp_path)) == ["one", "two"]


# ---- sets ------------------------------------------------------------------------------------------------------------


def _ranking(name: str, found: list[int], depth: int, seed: int) -> Ranking:
    """Rows and scores of queries for which so many passages were found."""
    rng = np.random.default_rng(seed)
    rows = np.full((len(found), depth), -1, np.int32)
    scores = np.zeros((len(found), depth), np.float32)
    for number, count in enumerate(found):
        rows[number, :count] = rng.permutation(1000)[:count]
        scores[number, :count] = np.sort(rng.random(count))[::-1]
    return Ranking(name, rows, scores)


def _write(folder: Path, rankings: list[Ranking], selection: Selection, **options) -> LexicalSet:
    number = len(rankings[0].rows)
    return LexicalSet.write(
        folder,
        [f"query {n}" for n in range(number)],
        np.arange(number, dtype=np.int32) * 2,
        rankings,
        selection=selection,
        corpus_fingerprint="f" * 64,
        corpus_rows=1000,
        settings={"seed": 1},
        **options,
    )


def test_a_set_holds_the_asked_ranks_and_drops_queries_that_lack_them(tmp_path: Path):
    found = [12, 9, 8, 7, 0, 1, 12]
    ranking = _ranking("bm25", found, 12, 0)
    examples = _write(tmp_path, [ranking], Selection(3, 9, 11))
    assert examples.queries[:] == ["query 0", "query 1", "query 6"] and examples.sources.tolist() == [0, 2, 12]
    [teacher] = examples.teachers
    assert teacher.name == "bm25" and examples.corpus_fingerprint == "f" * 64 and examples.corpus_rows == 1000
    np.testing.assert_array_equal(teacher.positives, ranking.rows[[0, 1, 6], :3])
    np.testing.assert_array_equal(teacher.negatives, ranking.rows[[0, 1, 6], 8:11])
    assert teacher.negatives[1].tolist()[1:] == [-1, -1]
    np.testing.assert_array_equal(teacher.scores, ranking.scores[[0, 1, 6]][:, [0, 1, 2, 8, 9, 10]])
    assert examples.counts == {"queries": 3, "dropped": 4, "dropped_by_teacher": [4]} and examples.settings == {
        "seed": 1
    }
    assert teacher.rows.dtype == np.int32 and teacher.scores.dtype == np.float32


def test_every_teacher_must_know_a_query(tmp_path: Path):
    rankings = [_ranking("a", [5, 5, 2, 5], 5, 1), _ranking("b", [5, 1, 5, 5], 9, 2)]
    examples = _write(tmp_path, rankings, Selection(2, 4, 5))
    assert examples.queries[:] == ["query 0", "query 3"] and examples.counts["dropped_by_teacher"] == [1, 1]
    for ranking, teacher in zip(rankings, examples.teachers, strict=True):
        np.testing.assert_array_equal(teacher.rows, ranking.rows[[0, 3]][:, [0, 1, 3, 4]])
    wanted = np.array([False, True, True, True])
    assert _write(tmp_path, rankings, Selection(2, 4, 5), wanted=wanted).counts == {
        **{"queries": 1, "dropped": 2},
        "dropped_by_teacher": [1, 1],
    }


def test_rankings_that_end_before_the_ranks_are_filled_up(tmp_path: Path):
    ranking = _ranking("a", [6, 6], 6, 1)
    assert usable_queries(ranking, Selection(10, 46, 50)).tolist() == [False, False]
    examples = _write(tmp_path, [ranking], Selection(2, 6, 9))
    assert examples.teachers[0].negatives[:, 1:].tolist() == [[-1] * 3] * 2
    assert not examples.teachers[0].scores[:, 3:].any()
    with pytest.raises(UserError, match=r"no query has both a positive and a passage at ranks 46:50"):
        _write(tmp_path / "none", [ranking], Selection(10, 46, 50))


def test_a_query_takes_sixty_bytes_for_ids_and_none_of_memory(tmp_path: Path):
    examples = _write(tmp_path, [_ranking("a", [50] * 3000, 50, 1)], Selection())
    assert (tmp_path / "teacher-00.npy").stat().st_size == 60 * 3000 + 128
    mapped = [examples.sources, examples.teachers[0].rows, examples.teachers[0].scores]
    assert all(isinstance(array.base, np.memmap) for array in mapped)
    # All but what is mapped: the folder, the settings and a few objects.
    tracemalloc.start()
    LexicalSet.open(tmp_path)
    resident, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert resident < 3000 * 20


def test_damaged_sets_are_named(tmp_path: Path):
    _write(tmp_path, [_ranking("a", [9] * 4, 9, 1)], Selection(2, 4, 5))
    assert is_lexical_set(tmp_path) and not is_lexical_set(tmp_path / "nowhere")
    for name in ("sources.npy", "teacher-00.npy", "teacher-00-scores.npy", "queries.bin", "queries-offsets.npy"):
        path = tmp_path / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-4])
        with pytest.raises(UserError, match=r"again"):
            LexicalSet.open(tmp_path)
        path.unlink()
        with pytest.raises(UserError, match=name):
            LexicalSet.open(tmp_path)
        path.write_bytes(whole)
    np.save(tmp_path / "teacher-00.npy", np.zeros((4, 5), np.int32))
    with pytest.raises(UserError, match=r"teacher-00.npy: holds int32 \[4, 5\] in place of int32 \[4, 4\]"):
        LexicalSet.open(tmp_path)
    meta = json.loads((tmp_path / "meta.json").read_text())
    for changes, message in (
        ({"version": 7}, "meta.json: not the description of a jaxretr-lexical version 1"),
        ({"format": "x"}, "meta.json: not the description of a jaxretr-lexical version 1"),
        ({"corpus": None}, "has a wrong value"),
        ({"counts": {"queries": 5}}, "contains 4 queries, but meta.json states 5"),
    ):
        (tmp_path / "meta.json").write_text(json.dumps({**meta, **changes}))
        with pytest.raises(UserError, match=message):
            LexicalSet.open(tmp_path)
    (tmp_path / "meta.json").write_text("{")
    with pytest.raises(UserError, match=r"meta.json: cannot be read"):
        LexicalSet.open(tmp_path)


@pytest.mark.parametrize("ranks", [(0, 4, 5), (3, 3, 5), (3, 6, 5)])
def test_ranks_that_overlap_are_refused(ranks: tuple[int, int, int]):
    with pytest.raises(UsageError, match=r"at least 1 positive|must come after"):
        Selection(*ranks)
