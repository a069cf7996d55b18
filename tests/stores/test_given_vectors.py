"""A store of vectors that were made elsewhere: it is read as one that was encoded, and bad input is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxretr.errors import UsageError, UserError
from jaxretr.stores.given_vectors import store_vectors

FACTS: dict[str, Any] = {"model": "m", "model_fingerprint": "f", "texts_fingerprint": "t", "shard_rows": 3}


def test_the_store_holds_the_vectors_in_their_order(tmp_path: Path) -> None:
    vectors, ids = np.arange(14, dtype=np.float32).reshape(7, 2), list("abcdefg")
    for _ in range(2):  # A second call finds a complete store.
        store = store_vectors(tmp_path / "store", vectors, ids, **FACTS)
        assert store.meta.shards == 3 and store.read_ids() == ids
        np.testing.assert_array_equal(store.rows(0, 7), vectors)


def test_bad_vectors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ids: 1 for 2 vectors"):
        store_vectors(tmp_path / "few", np.eye(2, dtype=np.float32), ["a"], **FACTS)
    with pytest.raises(UserError, match=r"row 1: .*float32"):
        store_vectors(tmp_path / "nan", np.array([[1], [np.nan]], np.float32), ["a", "b"], **FACTS)
