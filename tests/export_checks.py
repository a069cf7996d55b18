"""What every test of an export looks at: one changed byte in any file of the folder is found, and named."""

from pathlib import Path

import numpy as np
import pytest

from jaxretr.errors import UserError
from jaxretr.export.verify import verify


def assert_each_byte_counts(folder: Path, seed: int = 7) -> None:
    """Flips one bit of one byte of each file in turn, and of manifest.json, which hashes itself, a dozen."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert {"manifest.json", "README.md"} <= {path.name for path in files}
    rng = np.random.default_rng(seed)
    for path in files:
        content = path.read_bytes()
        for at in rng.choice(len(content), 12 if path.name == "manifest.json" else 1, replace=False):
            changed = bytearray(content)
            changed[at] ^= 1 << int(rng.integers(8))
            path.write_bytes(changed)
            with pytest.raises(UserError) as caught:
                verify(folder)
            assert path.name in str(caught.value), f"seed {seed}: {path} at byte {at}: {caught.value}"
            assert "\n" not in str(caught.value)
        path.unlink()
        with pytest.raises(UserError):
            verify(folder)
        path.write_bytes(content)
    (folder / "added").write_text("")
    with pytest.raises(UserError, match="added was added"):
        verify(folder)
    (folder / "added").unlink()
    verify(folder)
