"""kill -9 at every place of `fault_points`: nothing acknowledged is lost, nothing is half there, and it goes on."""

from pathlib import Path

import processes
import pytest
from crashing import WRITES, expected_after
from live_folders import assert_searches_equal, document, in_sqlite, model, open_live, put

from jaxretr.indexes.live import fault_points
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.indexes.live.reindex import Reindexing, forget, other_space
from jaxretr.indexes.live.verifying import verify

OF_SCANN = [point for point in fault_points.POINTS if point.startswith("certificate")]
POINTS = [point for point in fault_points.POINTS if point not in OF_SCANN]


def crash(root: Path, *words: str) -> Path:
    """Runs crashing.py; no process takes the memory or the time of JAX's devices."""
    here = Path(__file__).parent
    [run] = processes.start([str(here / "crashing.py"), str(root), *words], 1, 1, cwd=here)
    [(output, _)] = processes.finish([run], timeout=300)
    assert "all were killed" in output
    return root


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return crash(tmp_path_factory.mktemp("crashed"), *POINTS)


def acknowledged(folder: Path) -> int:
    return len(Path(f"{folder}.acknowledged").read_text().splitlines())


def reopened(folder: Path) -> LiveIndex:
    """With the model that the folder has; a folder whose creation was killed gets one."""
    return open_live(folder, None if (folder / "live.sqlite").exists() and in_tables(folder) else "small")


def in_tables(folder: Path) -> bool:
    try:
        in_sqlite(folder)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("point", POINTS)
def test_nothing_acknowledged_is_lost_and_nothing_is_half_there(crashed: Path, point: str) -> None:
    folder = crashed / point
    index = reopened(folder)
    name, texts, _ = in_sqlite(folder)
    done = acknowledged(folder)
    # The write that was under way is there as a whole, or not at all.
    possible = [list(expected_after(count).items()) for count in (done, min(done + 1, len(WRITES)))]
    assert list(texts.items()) in possible, f"{done} writes were acknowledged"
    if point in ("commit.done", "commit.published"):
        assert list(texts.items()) == possible[1], "it was committed"
    assert name == ("large" if point in ("switch.done",) else "small")
    assert_searches_equal(index, folder)
    if texts:
        verify(folder)
    # And it goes on: writes, a snapshot, and the move that was begun, or its end.
    put(index, [document("after", 9), document("d50", 9)])
    assert index.upkeep.compact()
    if (other := other_space(index)) is not None and not other.was_active:
        Reindexing(index, model(other.model)).run()
        assert index.view.space.model == "large"
    forget(index)
    assert_searches_equal(index, folder)
    index.close()
    again = open_live(folder, None)
    assert_searches_equal(again, folder)
    verify(folder)
    again.close()
    assert len(list((folder / "snapshots").iterdir())) == 1, "what the killed process left is gone"


def test_killed_while_it_certifies_it_certifies_again(tmp_path: Path) -> None:
    root = crash(tmp_path, "scann", *OF_SCANN)
    for point in OF_SCANN:
        index = open_live(root / point, None)
        certificate = index.facts()["certificate"]
        noted = point == "certificate.noted"
        assert certificate["changes_when_measured"] == (3 if noted else 0)
        assert certificate["changes_since"] == (0 if noted else 3)
        index.upkeep.certify()
        assert index.facts()["certificate"]["changes_since"] == 0
        index.close()
