"""Memory and disk space that a job needs: announced before it starts, and measured."""

import contextlib
import ctypes
import logging
import os
import shutil
import sys
from pathlib import Path

from jaxretr.runtime.errors import UserError

log = logging.getLogger(__name__)


def size(count: float) -> str:
    """Format a number of bytes for people: "1.5 GiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def resident() -> int:
    """Return the bytes of memory that this process holds now; 0 where the system does not say."""
    return _status("VmRSS")


def peak() -> int:
    """Return the most bytes of memory that this process has held since it began or since `reset_peak`."""
    if found := _status("VmHWM"):
        return found
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def reset_peak() -> bool:
    """Let `peak` count from now on; False where the system cannot do that."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def give_back() -> None:
    """Return freed memory to the system, where the C library would keep it for later; call it after a large step."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def available() -> int | None:
    """Return the bytes of memory that can be had without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None


def installed() -> int:
    """Return the bytes of memory that this process may use at most: the machine's, or its container's if less."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such limit, or "max"
            most = min(most, int(Path(limit).read_text()))
    return most


def announce(what: str, memory: int, *, disk: int = 0, folder: Path | None = None) -> None:
    """Log the memory and disk space that a job will need, and stop it if the disk has too little.

    Args:
      what: the job, for instance "195,388 passages of 384 dimensions".
      memory: bytes that the process will hold at most, in addition to what it holds now.
      disk: bytes that will be written.
      folder: folder that is written to, which may not exist yet.

    Raises:
      UserError: the disk has not enough free space.
    """
    parts = [f"{size(memory)} of memory in addition to the {size(resident())} of the program"]
    if folder is not None:
        free = shutil.disk_usage(_existing(folder)).free
        if free < disk:
            raise UserError(
                f"{folder}: {what} need {size(disk)} of disk, and {size(free)} are free; free some space or choose "
                "another place"
            )
        parts.append(f"{size(disk)} of disk ({size(free)} are free)")
    log.info("%s: about %s", what, " and ".join(parts))
    if (there := available()) is not None and memory > there:
        log.warning("%s: only %s of memory are free; the process may be killed", what, size(there))


def _existing(folder: Path) -> Path:
    folder = folder.expanduser().absolute()
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def _status(name: str) -> int:
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:"))
    except (OSError, StopIteration):
        return 0
