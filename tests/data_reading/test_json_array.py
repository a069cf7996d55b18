"""JSON arrays larger than the memory: read block by block, and never taken for whole when they are cut."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxretr.data import text_rows
from jaxretr.runtime.errors import UserError

VALUES = st.recursive(
    st.sampled_from([1, -2.5e10, 1e-7, True, None, "", "é\n日本", '\\" ,]}', "x" * 30, 2**70]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["k", 'q"', "é"]), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(
    array=st.lists(st.dictionaries(st.just("row"), VALUES, min_size=1) | VALUES, max_size=5),
    indent=st.sampled_from([None, 1]),
    block=st.sampled_from([1, 2, 3, 7, 50]),
    cut=st.floats(0.01, 0.99),
)
def test_an_array_is_read_in_blocks_of_any_size(array, indent, block, cut, tmp_path_factory):
    path = tmp_path_factory.mktemp("array") / "a.json"
    text = json.dumps(array, ensure_ascii=indent is None, indent=indent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_rows, "_BLOCK_BYTES", block)
        path.write_text("\ufeff" + text + "\n")
        found = list(text_rows.json_array(path))
        # A download that was cut short is an error, wherever that happened, and never a shorter set.
        path.write_text(text[: max(1, int(cut * len(text)))])
        with pytest.raises(UserError, match=r"a\.json:\d+: broken JSON array"):
            list(text_rows.json_array(path))
    assert [row for _, row in found if isinstance(row, dict)] == [row for row in array if isinstance(row, dict)]
    assert len(found) == len(array)
    lines = text.split("\n")
    # With an indent of 1 the elements are what begins at that indent and closes no other.
    begins = [n for n, line in enumerate(lines, start=1) if line[:1] == " " and line[1:2] not in (" ", "]", "}")]
    assert [line for line, _ in found] == (begins if indent else [1] * len(array))


def test_bytes_that_are_no_text_are_named_by_line(tmp_path, monkeypatch):
    monkeypatch.setattr(text_rows, "_BLOCK_BYTES", 5)
    path = tmp_path / "a.json"
    for content in (b'[{"a": 1},\n{"a": "\xff"}]', b'[{"a": 1},\n{"a": "\xc3'):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.json:2: not valid UTF-8 \(byte 0x.*; convert the file"):
            list(text_rows.json_array(path))
