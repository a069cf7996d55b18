"""TPUs by name: what one chip can do, and slices of them to compile for with no TPU at hand."""

import math
import re
import threading
from typing import Any, NamedTuple

import jax

from jaxretr.errors import UserError, did_you_mean, import_extra


class Chip(NamedTuple):
    """What a chip can do, as its maker states it."""

    tflops: float
    """bfloat16, 10^12 a second."""
    hbm_gib: float
    usable_gib: float
    """What the compiler leaves to a program."""


# https://cloud.google.com/tpu/docs/v4, .../v5e, .../v5p, .../v6e ("Peak compute per chip (bf16)", "HBM capacity").
CHIPS = {
    "v4": Chip(275, 32, 30.5),
    "v5e": Chip(197, 16, 15.75),
    "v5p": Chip(459, 95, 95.74),
    "v6e": Chip(918, 32, 31.25),
}
KINDS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
}
"""JAX's names of the devices."""

EXAMPLES = ("v4:2x2x2", "v5e:2x4", "v5e:4x4", "v5e:8x8", "v5p:2x2x2", "v5p:4x4x4", "v6e:4x4")
_NAME = re.compile(r"(\w+):(\d+(?:x\d+)*)")

# libtpu is loaded with the first slice, and only once.
_loading = threading.Lock()


class Devices(NamedTuple):
    """Devices to compile for."""

    devices: list[jax.Device]  # pyright: ignore[reportInvalidTypeForm]
    chip: str | None
    """Name of the kind in CHIPS; None for other devices."""
    chips: int
    name: str = ""
    """Of a slice of TPUs."""

    @property
    def per_chip(self) -> int:
        """Devices that share one chip's memory: a TPU v4 without megacore has two."""
        return len(self.devices) // self.chips


def topology(name: str) -> Devices:
    """A slice of TPUs to compile for; its devices run nothing.

    Args:
      name: kind and shape in chips, for instance "v5e:4x4".

    Raises:
      UserError: no such slice, or libtpu is not installed.
    """
    known = f"(for instance {', '.join(EXAMPLES)})"
    parts = _NAME.fullmatch(name)
    if parts is None or parts[1] not in CHIPS:
        hint = did_you_mean(name, EXAMPLES)
        raise UserError(f"--topology {name}: not a kind and a shape of TPUs{hint}; give one {known}")
    import_extra("libtpu", "tpu")
    from jax.experimental import topologies

    try:
        with _loading:
            devices: Any = topologies.get_topology_desc(name, "tpu").devices
    except Exception as error:  # libtpu says by a status what it does not know.
        what = str(error).splitlines()[0].removeprefix("INVALID_ARGUMENT: ")
        raise UserError(f"--topology {name}: no such slice of TPUs ({what}); give one {known}") from error
    return Devices(list(devices), parts[1], math.prod(int(size) for size in parts[2].split("x")), name)


def at_hand() -> Devices:
    """All devices that JAX finds."""
    devices = jax.devices()
    chips = {
        tuple(getattr(device, "coords", (device.id,))) for device in devices
    }  # The cores of a TPU's chip share them.
    kind = devices[0].device_kind
    return Devices(devices, KINDS.get(kind), len(chips))
