"""Compiled programs on disk, which later processes read. Imports no JAX.

JAX reads and writes the entries. A damaged entry, or one that cannot be written, costs a warning and a compilation.
"""

import contextlib
import hashlib
import logging
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from jaxretr.runtime.parallel.machine import cpuinfo_line
from jaxretr.runtime.storage.paths import cache_root

log = logging.getLogger(__name__)

# Limit for all entries of one kind of processor; those that were not read for longest are removed.
LIMIT_BYTES = 4 << 30
# An entry that fills the disk would be cut off, and this library's own files matter more.
FREE_BYTES = 1 << 30
# Programs that compile faster than this are not worth a file.
_MIN_SECONDS = 0.5

_FOLDER, _SECONDS = "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


def keep_programs() -> None:
    """Let JAX keep compiled programs in $JAXRETR_CACHE/xla or ~/.cache/jaxretr/xla; calling it again changes nothing.

    The user's own settings hold: JAX_COMPILATION_CACHE_DIR names another folder, JAX_ENABLE_COMPILATION_CACHE=false
    keeps nothing, and the configuration of a JAX that is already imported stays as it is. Nothing is kept if the folder
    cannot be written or the disk is nearly full.
    """
    if _is_settled():
        return
    # Programs for a CPU contain its instructions, and a home directory may be shared by machines that lack them.
    folder = cache_root() / "xla" / f"{platform.machine()}-{_cpu()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            return
        trim(folder, LIMIT_BYTES)
        if shutil.disk_usage(folder).free < FREE_BYTES:
            log.warning("%s: less than 1 GiB is free there; compiled programs are not kept", folder)
            return
    except OSError:
        return
    _set(folder)


def _is_settled() -> bool:
    if _FOLDER in os.environ or os.environ.get("JAX_ENABLE_COMPILATION_CACHE", "").lower() in (
        "0",
        "false",
        "no",
        "off",
    ):
        return True
    if (jax := sys.modules.get("jax")) is None:
        return False
    return jax.config.jax_compilation_cache_dir is not None or not jax.config.jax_enable_compilation_cache


def _set(folder: Path) -> None:
    if (jax := sys.modules.get("jax")) is None:
        # JAX reads the environment when it is imported: not every command needs it.
        os.environ[_FOLDER] = str(folder)
        os.environ.setdefault(_SECONDS, str(_MIN_SECONDS))
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if _SECONDS not in os.environ:
        jax.config.update(_SECONDS.lower(), _MIN_SECONDS)


@contextlib.contextmanager
def keep_short_programs() -> Iterator[None]:
    """Keep programs that are compiled inside the block, however quickly: for many that every start needs."""
    import jax

    before = getattr(jax.config, _SECONDS.lower())
    jax.config.update(_SECONDS.lower(), 0.0)
    try:
        yield
    finally:
        jax.config.update(_SECONDS.lower(), before)


def trim(folder: Path, limit: int) -> None:
    """Remove the files and folders that were used longest ago until the rest has at most `limit` bytes."""
    entries = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError, ValueError):  # another process has removed it, or is making it
            of_files = [file.stat() for file in ([path] if path.is_file() else path.iterdir())]
            used = max(max(stat.st_atime_ns, stat.st_mtime_ns) for stat in of_files)
            entries.append((used, sum(stat.st_size for stat in of_files), path))
    excess = sum(size for _, size, _ in entries) - limit
    for _, size, path in sorted(entries):
        if excess <= 0:
            return
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        excess -= size


def _cpu() -> str:
    """Return a short name of the CPU's instruction set."""
    flags = cpuinfo_line("flags", "Features").rstrip("\n") or platform.processor()
    return hashlib.sha256(flags.encode()).hexdigest()[:8]
