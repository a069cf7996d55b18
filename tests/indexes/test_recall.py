"""Certificates of every kind of index: what their files hold, those of older versions, and what people read."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxretr.indexes import recall

RECALL = {"k": 10, "recall": 0.97, "low": 0.96, "high": 0.98}
LINE: dict[str, Any] = {
    **{"target": 0.95, "tuned_k": 10, "reached": True, "recalls": [RECALL]},
    **{"batch_per_second": 1234.5, "single_per_second": 500.0, "p50_ms": 2.0, "p99_ms": 3.25},
}
COMMON = {
    **{"questions": 200, "of": "passages", "rows": 3000, "dim": 16, "seed": 0, "model": None, "machine": "one"},
    **{"threads": 2, "versions": {"numpy": "2.3"}, "stale": False},
}
FILTER = {
    **{"target": 0.95, "share": 0.5, "leaves": 7, "random": RECALL, "related": RECALL, "unrelated": RECALL},
    **{"ms": 0.5, "exact_ms": 9.0},
}
OLDER = {**COMMON, "lines": [LINE | {"leaves": 5, "candidates": 40}], "leaves": 40, "train_rows": 1500}
KINDS = {
    "certified": OLDER | {"engine": "faiss", "filters": [FILTER]},
    "exact": OLDER
    | {"lines": [LINE | {"leaves": 0, "candidates": 3000}], "train_rows": 0, "engine": "scann", "filters": []},
    "database": {**COMMON, "lines": [LINE | {"width": 64}], "index": "HNSW, m 16"},
    "older": OLDER,
}
SAID = {
    "certified": [
        "FAISS with a tree of 40 leaves",
        "| leaves | candidates |",
        "| 5 | 40 |",
        "| 50.0% |",
        "(0.9600 to 0.9800)",
    ],
    "exact": ["every passage is scored", "| - | 3000 |"],
    "database": ["16 dimensions; HNSW, m 16 (seed 0)", "| width |", "| 64 | 1,234 |"],
    "older": ["ScaNN with a tree of 40 leaves", "With a filter every allowed passage is scored."],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_read_and_written_unchanged(kind: str, tmp_path: Path) -> None:
    """Each kind of index has its own keys, and none of another kind's."""
    (tmp_path / recall.CERTIFICATE).write_text(json.dumps(KINDS[kind]))
    certificate = recall.read(tmp_path)
    recall.write(tmp_path, certificate)
    assert json.loads((tmp_path / recall.CERTIFICATE).read_text()) == KINDS[kind]
    assert recall.read(tmp_path) == certificate
    text = (tmp_path / recall.TABLE).read_text()
    assert all(part in text for part in SAID[kind])
    assert ("With a filter" in text) == (kind in ("certified", "older"))
