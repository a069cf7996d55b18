"""The environment of libtpu on machines without a TPU. Imports no JAX, which reads it at its import."""

import glob
import importlib.util
import os
from pathlib import Path

_GOOGLE = "0x1ae0"
_VENDORS = "/sys/bus/pci/devices/*/vendor"
_DEVICES = "/dev/accel*"
# Variables whose presence means that the devices have been chosen, or that a TPU is present.
_CHOSEN = ("JAX_PLATFORMS", "JAX_FORCE_TPU_INIT", "COLAB_TPU_ADDR")
# Values that libtpu otherwise asks the metadata service of a TPU's machine for, and complains if there is none.
_ANSWERS = {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v5litepod-1"}


def quiet_without_tpu() -> None:
    """Keep an installed libtpu from printing errors where there is no TPU; change nothing where there may be one."""
    stated = any(name in _CHOSEN or name.startswith("TPU_") for name in os.environ)
    if not stated and importlib.util.find_spec("libtpu") is not None and not _may_have_tpu():
        os.environ.update(_ANSWERS)


def _may_have_tpu() -> bool:
    # JAX checks the ids of Google's devices as well; one that it does not know yet may be a TPU, too.
    return bool(glob.glob(_DEVICES)) or any(Path(path).read_text().strip() == _GOOGLE for path in glob.glob(_VENDORS))


def compile_for_tpus() -> None:
    """Let libtpu, or XLA for GPUs, compile without touching or waiting for chips; call it before JAX is imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    # No chip is touched, so other processes may have libtpu loaded too; its lock file is for those that use chips.
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    # Programs compiled without a client of the device can be written to the cache, but not be read from it.
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
