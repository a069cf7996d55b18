"""What is said to libtpu on machines with and without a TPU."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxretr.runtime.parallel import tpu_environment


@pytest.mark.parametrize(
    ("environment", "vendor", "device", "installed", "quiet"),
    [
        ({}, "0x8086", False, True, True),
        ({}, "0x1ae0", False, True, False),  # a chip of Google's
        ({}, "0x8086", True, True, False),  # its device, where /sys is not to be seen
        ({"TPU_NAME": "v5e"}, "0x8086", False, True, False),
        ({"JAX_PLATFORMS": "tpu,cpu"}, "0x8086", False, True, False),
        ({}, "0x8086", False, False, False),
    ],
)
def test_libtpu_is_kept_quiet_only_where_no_tpu_can_be(
    environment: dict[str, str],
    vendor: str,
    device: bool,
    installed: bool,
    quiet: bool,
    tmp_path: Path,
    monkeypatch: Any,
):
    (tmp_path / "vendor").write_text(f"{vendor}\n")
    if device:
        (tmp_path / "accel0").touch()
    before = dict(environment)
    monkeypatch.setattr(tpu_environment, "_VENDORS", str(tmp_path / "vendor"))
    monkeypatch.setattr(tpu_environment, "_DEVICES", str(tmp_path / "accel*"))
    monkeypatch.setattr(tpu_environment, "os", SimpleNamespace(environ=environment))
    find = SimpleNamespace(util=SimpleNamespace(find_spec=lambda _: object() if installed else None))
    monkeypatch.setattr(tpu_environment, "importlib", find)
    tpu_environment.quiet_without_tpu()
    assert environment == (
        {**before, "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v5litepod-1"} if quiet else before
    )
