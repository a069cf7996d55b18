"""What this machine and this installation offer: devices, versions, caches, extras, what is slow, and what prevents work."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any

import tabulate

from jaxretr.runtime.errors import UserError, reason
from jaxretr.runtime.extras import EXTRAS, is_installed, requirement
from jaxretr.runtime.parallel import machine, memory
from jaxretr.runtime.storage.paths import cache_root
from jaxretr.version import __version__

# Packages whose versions the table shows even if they are the pinned ones.
_SHOWN = ("python", "jaxretr", "jax", "flax", "numpy", "transformers")
# Variables that limit the threads of numpy's BLAS and of compiled loops.
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
_LITTLE_DISK = 1 << 30

Rows = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Examination:
    """What was found; each row of a table is a record.

    Attributes:
      devices: JAX's devices by kind, with the bytes of memory of each.
      versions: required packages with the installed and the pinned version.
      processor: what of this processor the library uses, and what for.
      caches: folders of files that can be made again, with their bytes and how to empty them.
      extras: each extra, whether it is installed, and how to install it.
      slow: what makes work slower than it could be, each with its remedy.
      problems: what prevents work, each with its remedy.
    """

    devices: Rows
    versions: Rows
    processor: Rows
    caches: Rows
    extras: Rows
    slow: list[str]
    problems: list[str]

    def to_json(self) -> str:
        """Everything as JSON, sizes in bytes."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    def table(self) -> str:
        """The same for people, without versions that need no attention."""
        notable = [each for each in self.versions if each["package"] in _SHOWN or each["installed"] != each["pinned"]]
        tables: dict[str, Any] = vars(self) | {"versions": notable}
        parts = []
        for title, rows in tables.items():
            if title in ("slow", "problems"):
                lines = rows or ["none"]
            else:
                shown = [{name: _for_people(name, value) for name, value in row.items()} for row in rows]
                lines = tabulate.tabulate(shown, headers="keys", tablefmt="plain", disable_numparse=True).splitlines()
            if title == "versions" and (more := len(self.versions) - len(notable)):
                lines.append(f"and {more} more as pinned")
            parts.append("\n  ".join([title, *lines]))
        return "\n\n".join(parts)


def _for_people(name: str, value: Any) -> Any:
    return memory.size(value) if name in ("memory", "size") and value is not None else value


def examine() -> Examination:
    """Look at this machine and this installation; what fails is told in the answer, and nothing is changed."""
    problems: list[str] = []
    versions = _versions(problems)
    devices, encoding = _devices(problems)
    slow = [*_slow_threads(), *_slow_folders(problems), *_unused_gpu(devices)]
    return Examination(devices, versions, _processor(encoding), _caches(), _extras(), slow, problems)


def _versions(problems: list[str]) -> Rows:
    rows: Rows = [
        {"package": "python", "installed": platform.python_version(), "pinned": "3.11 or newer"},
        {"package": "jaxretr", "installed": __version__, "pinned": ""},
    ]
    try:
        required = importlib.metadata.requires("jaxretr") or []
    except importlib.metadata.PackageNotFoundError:  # imported from a folder
        required = []
    for line in required:
        if (pinned := re.fullmatch(r"([\w.-]+)==([^\s;]+)", line)) is None:  # one of an extra
            continue
        try:
            installed = importlib.metadata.version(pinned[1])
        except importlib.metadata.PackageNotFoundError:
            installed = ""
            problems.append(f"{pinned[1]} is not installed; run: pip install {pinned[0]}")
        rows.append({"package": pinned[1], "installed": installed, "pinned": pinned[2]})
    return rows


def _devices(problems: list[str]) -> tuple[Rows, dict[str, str]]:
    """JAX's devices by kind, and what encodes with `--compute auto` and float32."""
    try:
        import jax

        counts: dict[tuple[str, str, int | None], int] = {}
        for device in jax.devices():
            most = memory.installed() if device.platform == "cpu" else (device.memory_stats() or {}).get("bytes_limit")
            kind = machine.cpu_name() if device.platform == "cpu" else device.device_kind
            counts[device.platform, kind, most] = counts.get((device.platform, kind, most), 0) + 1
    except Exception as error:  # Whatever a plugin for an accelerator raises.
        remedy = "unset JAX_PLATFORMS, or install the extra for this machine's devices (cuda, tpu)"
        stated = os.environ.get("JAX_PLATFORMS", "")
        problems.append(f"JAX finds no device (JAX_PLATFORMS={stated}: {reason(error)}); {remedy}")
        return [], {}
    rows = [{"backend": b, "number": n, "kind": k, "memory": most} for (b, k, most), n in counts.items()]
    from jaxretr.models.encode import fastest_dtype
    from jaxretr.models.engine_choice import prefers_blas

    try:
        float32 = "numpy's BLAS" if prefers_blas() else "XLA's programs"
    except UserError as error:
        problems.append(str(error))
        return rows, {}
    fastest = fastest_dtype()
    auto = f"{fastest}, {float32 if fastest == 'float32' else 'XLA'}"
    return rows, {"encoding, --compute auto": auto, "encoding, --compute float32": float32}


def _processor(encoding: dict[str, str]) -> Rows:
    flags = machine.cpu_flags()
    features = (
        ("AVX2", "avx2", "without AVX-512: numpy's BLAS encodes float32, faster there than XLA"),
        ("AVX-512", "avx512f", "XLA encodes float32"),
        ("AVX-512 BF16", "avx512_bf16", "bfloat16 in encoding, some 2 times as fast as float32"),
        ("AMX BF16", "amx_bf16", "bfloat16 in encoding and exact search, some 8 times as fast"),
    )
    rows: Rows = [
        {"what": name, "here": "yes" if flag in flags else "no", "used for": use} for name, flag, use in features
    ]
    rows.append({"what": "threads", "here": str(machine.cpu_threads()), "used for": "compiled programs, BLAS, loops"})
    return [*rows, *({"what": what, "here": engine, "used for": "BERT's layers"} for what, engine in encoding.items())]


def _caches() -> Rows:
    from huggingface_hub import constants

    known = {
        "compiled programs": _programs() or cache_root() / "xla",
        "copies of buckets' files": cache_root() / "buckets",
        "Hugging Face's models and data": constants.HF_HUB_CACHE,
        "ir_datasets' collections": os.environ.get("IR_DATASETS_HOME") or Path.home() / ".ir_datasets",
    }
    rows = []
    for use, folder in known.items():
        paths = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
        count = sum(os.lstat(path).st_size for path in paths if not os.path.islink(path))
        emptied = f"rm -r {shlex.quote(str(folder))}" if count else ""
        rows.append({"for": use, "folder": str(folder), "size": count, "empty by": emptied})
    return rows


def _extras() -> Rows:
    found = [(name, is_installed(name)) for name in EXTRAS]
    return [
        {
            "extra": name,
            "here": "yes" if here else "no",
            "for": EXTRAS[name].purpose,
            "install by": "" if here else f"pip install {requirement(name)}",
        }
        for name, here in found
    ]


def _programs() -> Path | None:
    """The folder that JAX keeps compiled programs in, or None where it keeps none."""
    try:
        import jax
    except ImportError:
        return None
    config: Any = jax.config
    folder = config.jax_compilation_cache_dir if config.jax_enable_compilation_cache else None
    return None if folder is None else Path(folder)


def _slow_threads() -> list[str]:
    threads, there, quota = machine.cpu_threads(), os.cpu_count() or 1, machine.cpu_quota()
    lines = []
    if threads < there:
        lines.append(
            f"{threads} of {there} processors may be used; ask for more where the process starts (taskset, Slurm)"
        )
    if quota is not None and quota < threads:
        lines.append(
            f"{threads} threads share the time of {quota:g} processors, the container's limit; raise it, or start with "
            f"taskset -c 0-{max(int(quota) - 1, 0)}"
        )
    for name in _THREADS:
        if (stated := os.environ.get(name, "")).isdigit() and int(stated) < threads:
            lines.append(f"{name}={stated}: fewer than the {threads} threads that may run; unset it")
    return lines


def _slow_folders(problems: list[str]) -> list[str]:
    lines = []
    if _programs() is None:
        off = os.environ.get("JAX_ENABLE_COMPILATION_CACHE")
        why = f"JAX_ENABLE_COMPILATION_CACHE={off}" if off else f"{cache_root()} cannot be written or is nearly full"
        remedy = "unset it" if off else "set JAXRETR_CACHE to another folder"
        lines.append(f"compiled programs are not kept, and every start compiles ({why}); {remedy}")
    try:
        temporary = tempfile.gettempdir()
        if (free := shutil.disk_usage(temporary).free) < _LITTLE_DISK:
            what = f"{temporary}: {memory.size(free)} are free for temporary files"
            lines.append(f"{what} (models for buckets and hubs, ScaNN's); set TMPDIR to another folder")
    except OSError as error:
        problems.append(f"temporary files cannot be written ({reason(error)}); set TMPDIR to another folder")
    return lines


def _unused_gpu(devices: Rows) -> list[str]:
    if not Path("/proc/driver/nvidia/version").exists() or any(row["backend"] in ("cuda", "gpu") for row in devices):
        return []
    remedy = (
        "unset JAX_PLATFORMS, or update its driver" if is_installed("cuda") else f"pip install {requirement('cuda')}"
    )
    return [f"this machine has an NVIDIA GPU that JAX does not use; run: {remedy}"]
