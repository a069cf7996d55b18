"""What every test of an export looks at: one changed byte in any file of the folder is found, and named."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jaxretr.exports.exporting import verify
from jaxretr.runtime.errors import UserError


def each_changed_byte(folder: Path, sealed: str, seed: int = 7) -> Iterator[tuple[Path, int]]:
    """Flips one bit of one byte of each file in turn, and of `sealed`, which hashes itself, a dozen.

    Yields:
      The file, and which byte is another one until the next is asked for.
    """
    rng = np.random.default_rng(seed)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for at in rng.choice(len(content), 12 if path.name == sealed else 1, replace=False):
            changed = bytearray(content)
            changed[at] ^= 1 << int(rng.integers(8))
            path.write_bytes(changed)
            yield path, int(at)
        path.write_bytes(content)


def assert_each_byte_counts(folder: Path, seed: int = 7) -> None:
    """Changes bytes in, removes and adds files; each is found."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert {"manifest.json", "README.md"} <= {path.name for path in files}
    for path, at in each_changed_byte(folder, "manifest.json", seed):
        with pytest.raises(UserError) as caught:
            verify(folder)
        assert path.name in str(caught.value), f"seed {seed}: {path} at byte {at}: {caught.value}"
        assert "\n" not in str(caught.value)
    for path in files:
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(UserError):
            verify(folder)
        path.write_bytes(content)
    (folder / "added").write_text("")
    with pytest.raises(UserError, match="added was added"):
        verify(folder)
    (folder / "added").unlink()
    verify(folder)
