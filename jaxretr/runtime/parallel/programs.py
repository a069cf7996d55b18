"""Compiled programs: XLA's options for them, several compiled side by side, and their number for the log."""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, update_wrapper
from typing import Any

import jax

log = logging.getLogger(__name__)

# Both double or triple the time to compile a model on NVIDIA GPUs, and its products run no faster: Triton's products are
# timed against cuBLAS in hundreds of forms, and every fusion is compiled and timed a second time as a Triton kernel.
_CUDA = {"xla_gpu_enable_triton_gemm": False, "xla_gpu_experimental_enable_fusion_autotuner": False}

# XLA releases Python's lock while it compiles.
_THREADS = 8


def device_jit(function: Callable[..., Any], **settings: Any) -> Any:
    """`jax.jit` of a program that no other one calls, with XLA's options for the devices of this process.

    Args:
      settings: as those of `jax.jit`.

    Returns:
      The compiled function, with all methods of one. JAX refuses to call it inside another one on GPUs.
    """
    return _DeviceJit(function, settings)


class _DeviceJit:
    """A compiled function that asks for the devices when it is first used: importing a module must not start them."""

    def __init__(self, function: Callable[..., Any], settings: Mapping[str, Any]):
        self._function, self._settings = function, settings
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._jitted(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_jitted":
            self._jitted = jax.jit(self._function, compiler_options=compiler_options(), **self._settings)
            return self._jitted
        return getattr(self._jitted, name)


@cache
def compiler_options() -> dict[str, bool] | None:
    """XLA's options for the programs of this process; None: its defaults.

    Those that the user gives in XLA_FLAGS are left to them.
    """
    return (accepted(_CUDA) or None) if is_cuda(jax.devices()[0]) else None


def is_cuda(device: Any) -> bool:
    """Whether a device is an NVIDIA GPU, at hand or to compile for."""
    return device.platform == "gpu" and "rocm" not in device.client.platform_version.lower()


def accepted(options: Mapping[str, bool]) -> dict[str, bool]:
    """Return the options that this version of XLA knows and that XLA_FLAGS does not name."""
    flags = os.environ.get("XLA_FLAGS", "")
    probe = jax.jit(lambda x: x).lower(jax.ShapeDtypeStruct((), "float32"))
    chosen = {}
    for name, value in options.items():
        if name in flags:
            continue
        try:
            probe.compile({name: value})
        except jax.errors.JaxRuntimeError:
            log.info("this version of XLA does not know %s, which saves time to compile: it is left out", name)
        else:
            chosen[name] = value
    return chosen


@cache
def pallas_triton() -> Any:
    """Pallas' backend for Triton, in which our kernels for NVIDIA GPUs are written; None, said once, where JAX has none.

    JAX has announced to remove it. Every kernel has a form without it, which XLA compiles.
    """
    try:
        from jax.experimental.pallas import triton

        _ = triton.load, triton.store, triton.dot, triton.CompilerParams
    except (ImportError, AttributeError) as error:
        log.info("JAX %s has no Triton in Pallas (%s): kernels for NVIDIA GPUs are left to XLA", jax.__version__, error)
        return None
    return triton


def compile_all(program: Any, shapes: Iterable[tuple[Any, ...]]) -> None:
    """Compile a program for all these arguments side by side; later calls with such arguments compile nothing.

    Args:
      program: a function compiled by `device_jit` or `jax.jit`.
      shapes: the arguments of each: arrays, or ShapeDtypeStructs with the arrays' shardings.
    """
    lowered = [program.lower(*arguments) for arguments in shapes]
    if not lowered:
        return
    with ThreadPoolExecutor(min(_THREADS, len(lowered)), "compile") as pool:
        list(pool.map(lambda each: each.compile(), lowered))


def compile_ahead(program: Any, arguments: Callable[[], tuple[Any, ...]]) -> Callable[[], None]:
    """Begin to compile a program in a thread, so that the ones that are needed before it are compiled beside it.

    On CPUs nothing is begun: XLA and the programs that run meanwhile need their cores themselves. Neither is it with
    several processes, which tune a program together.

    Args:
      program: as in `compile_all`.
      arguments: function that returns arguments of its first call, or their shapes; called in the thread.

    Returns:
      A function that waits until it is compiled. What fails is left to the call, which then fails with the same error.
    """
    if not _compiles_ahead():
        return lambda: None

    def compiled() -> None:
        try:
            program.lower(*arguments()).compile()
        except Exception as error:
            log.debug("not compiled ahead: %s", error)

    thread = threading.Thread(target=compiled, name="compile")
    thread.start()
    return thread.join


def _compiles_ahead() -> bool:
    return jax.default_backend() != "cpu" and jax.process_count() == 1


# ---- how many --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Programs:
    """Number of the programs that JAX needed.

    Attributes:
      compiled: those that XLA compiled.
      cached: those that were read from the cache on disk.
      seconds: the time of both; of programs that were compiled side by side, the sum.
    """

    compiled: int = 0
    cached: int = 0
    seconds: float = 0.0

    def __sub__(self, earlier: "Programs") -> "Programs":
        seconds = self.seconds - earlier.seconds
        return Programs(self.compiled - earlier.compiled, self.cached - earlier.cached, seconds)

    def __str__(self) -> str:
        many = "program" if self.compiled == 1 else "programs"
        return f"{self.compiled} {many} compiled and {self.cached} read from the cache in {self.seconds:.1f} s"


_lock = threading.Lock()
_counted = Programs()


def programs() -> Programs:
    """The programs that this process has needed since this module was imported."""
    return _counted


def _count(compiled: int = 0, cached: int = 0, seconds: float = 0.0) -> None:
    global _counted
    with _lock:
        _counted = Programs(_counted.compiled + compiled, _counted.cached + cached, _counted.seconds + seconds)


def _on_duration(event: str, duration_secs: float, **_: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":  # also of a program that is in the cache
        _count(compiled=1, seconds=duration_secs)


def _on_event(event: str, **_: Any) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        _count(compiled=-1, cached=1)


jax.monitoring.register_event_duration_secs_listener(_on_duration)
jax.monitoring.register_event_listener(_on_event)
