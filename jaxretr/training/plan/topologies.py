"""TPUs and GPUs by name: the speed and memory of a chip, and devices to compile for where none are present."""

import math
import re
import threading
from typing import Any, NamedTuple

import jax

from jaxretr.runtime.errors import UserError, did_you_mean, import_extra
from jaxretr.runtime.extras import requirement


class Chip(NamedTuple):
    """Speed and memory of a chip, as its maker states them."""

    tflops: float
    """Peak in bfloat16, 10^12 operations a second."""
    usable_gib: float
    """Memory that a program can use: of a TPU, the part that the compiler leaves to it; of a GPU, 95 %
    (XLA_PYTHON_CLIENT_MEM_FRACTION=.95)."""


# https://cloud.google.com/tpu/docs/v4, .../v5e, .../v5p, .../v6e ("Peak compute per chip (bf16)", "HBM capacity").
CHIPS = {
    "v4": Chip(275, 30.5),
    "v5e": Chip(197, 15.75),
    "v5p": Chip(459, 95.74),
    "v6e": Chip(918, 31.25),
    # NVIDIA's data sheets of the SXM cards: "BFLOAT16 Tensor Core" without sparsity. CUDA reports 79.1 and 141.0 GiB.
    "h100": Chip(989, 75.1),
    "h200": Chip(989, 133.9),
}
KINDS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
}
"""Key in CHIPS of each device kind, as JAX names it."""

EXAMPLES = ("v4:2x2x2", "v5e:2x4", "v5e:4x4", "v5e:8x8", "v5p:2x2x2", "v5p:4x4x4", "v6e:4x4", "h100:8", "h200:1")
_NAME = re.compile(r"(\w+):(\d+(?:x\d+)*)")

# Description of a GPU that XLA needs in order to compile for it (its GpuTargetConfigProto). The Hopper cards differ
# only in the size and speed of their memory.
_HOPPER = """
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  memory_bandwidth: {bandwidth}
  device_memory_size: {memory}
  cuda_compute_capability {{ major: 9 }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{name}"
"""
_GPUS = {
    "h100": _HOPPER.format(name="NVIDIA H100 80GB HBM3", memory=84_942_979_072, bandwidth=3_352_320_000_000),
    "h200": _HOPPER.format(name="NVIDIA H200", memory=151_397_597_184, bandwidth=4_800_000_000_000),
}

# libtpu is loaded with the first slice, and only once.
_loading = threading.Lock()


class Devices(NamedTuple):
    """Devices to compile for."""

    devices: list[jax.Device]  # pyright: ignore[reportInvalidTypeForm]
    chip: str | None
    """Name of the kind in CHIPS; None for other devices."""
    chips: int
    name: str = ""
    """Name of a slice of TPUs, or of GPUs that are not at hand; "" for the devices at hand."""

    @property
    def per_chip(self) -> int:
        """Devices that share one chip's memory; a TPU v4 without megacore has two."""
        return len(self.devices) // self.chips


def topology(name: str) -> Devices:
    """Return a slice of TPUs, or the GPUs of a host, to compile for; its devices run nothing.

    Args:
      name: kind and shape in chips, for instance "v5e:4x4"; for GPUs kind and number, "h100:8".

    Raises:
      UserError: no such slice, or its compiler (libtpu, JAX's plugin for CUDA) is not installed.
    """
    known = f"(for instance {', '.join(EXAMPLES)})"
    parts = _NAME.fullmatch(name)
    if parts is None or parts[1] not in CHIPS or (parts[1] in _GPUS and not parts[2].isdigit()):
        hint = did_you_mean(name, EXAMPLES)
        raise UserError(f"topology={name}: not a kind and a shape of TPUs, or a number of GPUs{hint}; give one {known}")
    if parts[1] in _GPUS:
        return _gpus(name, parts[1], int(parts[2]))
    import_extra("libtpu", "tpu")
    from jax.experimental import topologies

    try:
        with _loading:
            devices: Any = topologies.get_topology_desc(name, "tpu").devices
    except Exception as error:  # libtpu says by a status what it does not know.
        what = str(error).splitlines()[0].removeprefix("INVALID_ARGUMENT: ")
        raise UserError(f"topology={name}: no such slice of TPUs ({what}); give one {known}") from error
    return Devices(list(devices), parts[1], math.prod(int(size) for size in parts[2].split("x")), name)


def _gpus(name: str, kind: str, count: int) -> Devices:
    """Return GPUs of one host, connected by NVLink."""
    from jax.experimental import topologies

    jax.devices()  # JAX knows its plugins only after this call.
    try:
        with _loading:
            devices: Any = topologies.get_topology_desc(
                platform="cuda", target_config=_GPUS[kind], topology=f"1x1x{count}"
            ).devices
    except NotImplementedError as error:
        raise UserError(
            f"topology={name}: JAX's plugin for CUDA is not installed; run: pip install {requirement('cuda')}"
        ) from error
    return Devices(list(devices), kind, count, name)


def at_hand() -> Devices:
    """Return all devices that JAX finds."""
    devices = jax.devices()
    chips = {
        tuple(getattr(device, "coords", (device.id,))) for device in devices
    }  # The cores of a TPU's chip share them.
    kind = devices[0].device_kind
    return Devices(devices, KINDS.get(kind), len(chips))
