"""The processes of a distributed run, one per host or GPU: how they join, compare their inputs, and notice a lost one.

They talk through the key-value store of JAX's coordinator, which is the first process. It needs no device and no
collective, so that it also works where these would hang: a host that runs another program, or none any more.
"""

import atexit
import contextlib
import hashlib
import importlib.metadata
import itertools
import json
import os
import platform
import signal
import socket
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np
from jax._src import (
    api,  # its handler for the end of a process has no public name yet either
    distributed,  # its client's key-value store has no public name yet
)
from jax.experimental import multihost_utils

from jaxretr.runtime.errors import UserError

# Variables that a launcher sets when the process is one of several; without any of these a single process is assumed.
_COORDINATOR_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "COORDINATOR_ADDRESS")

# Seconds that the processes wait for one another at the beginning, unless JAXRETR_JOIN_SECONDS is set.
_JOIN_SECONDS = 300

# Seconds after which a process that gives no sign of life is given up, unless JAXRETR_LOST_SECONDS is set.
_LOST_SECONDS = 30

# Exit code (EX_TEMPFAIL) of a run that is not finished and that the same command resumes: it was asked to stop and has
# saved everything, or another process was lost or did not come.
EXIT_AGAIN = 75

# Packages on which the numbers of a step, or the programs' collectives, depend.
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "orbax-checkpoint", "transformers")

_FACTS, _ALIVE = "jaxretr/facts", "jaxretr/alive"

# Numbers of the comparisons, which all processes make in the same order.
_visits = itertools.count()


def init_distributed() -> bool:
    """Join the other processes when the environment asks for it; further calls do nothing.

    JAXRETR_DISTRIBUTED=1 leaves the detection of the cluster (TPU pod, Slurm, Open MPI, Kubernetes) to JAX. Elsewhere
    set JAX_COORDINATOR_ADDRESS (or COORDINATOR_ADDRESS) to host:port, JAX_NUM_PROCESSES and JAX_PROCESS_ID, as the
    commands' options --coordinator, --processes and --process-id do. Must be called before anything asks JAX for its
    devices.

    From then on every process shows the others that it lives. If one does not for JAXRETR_LOST_SECONDS, the others log
    this and end with `EXIT_AGAIN`.

    Returns:
      True when this process is (now) part of a distributed run.

    Raises:
      UserError: the other processes could not be joined, or a variable is not a number.
    """
    if jax.distributed.is_initialized():
        return True
    address = next((os.environ[name] for name in _COORDINATOR_VARIABLES if os.environ.get(name)), None)
    if address is None and os.environ.get("JAXRETR_DISTRIBUTED", "0") != "1":
        return False
    join, lost = _seconds("JAXRETR_JOIN_SECONDS", _JOIN_SECONDS), _seconds("JAXRETR_LOST_SECONDS", _LOST_SECONDS)
    try:
        processes, process = (
            int(os.environ[name]) if name in os.environ else None for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
        )
        waited = threading.Timer(join, _not_joined, [join])
        waited.daemon = True
        waited.start()
        try:
            jax.distributed.initialize(
                coordinator_address=address,
                num_processes=processes,
                process_id=process,
                # Longer than our own limits: JAX aborts the process with a stack trace in place of a message.
                initialization_timeout=join + 15,
                heartbeat_timeout_seconds=lost + 15,
            )
        finally:
            waited.cancel()
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"joining the distributed run failed ({reason}); check JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and "
            "JAX_PROCESS_ID, or unset them and JAXRETR_DISTRIBUTED to run on this machine alone"
        ) from error
    watch = _Watch(lost)
    watch.start()
    # JAX's handler waits for the others, and the watch must see them meanwhile; but an interpreter that ends while the
    # watch is in a call of the coordinator's client aborts the process. Handlers run in the reverse of this order.
    clean_up = getattr(api, "clean_up", None)
    if clean_up is not None:
        atexit.unregister(clean_up)
    atexit.register(watch.end)
    if clean_up is not None:
        atexit.register(clean_up)
    return True


def _not_joined(seconds: int) -> None:
    _end_at_once(
        f"joining the distributed run failed: not all processes have come within {seconds} seconds "
        "(JAXRETR_JOIN_SECONDS); see which was not started, and start all of them again",
        EXIT_AGAIN,
    )


def agree(what: str, facts: Mapping[str, str]) -> None:
    """Compare facts that must be the same on all hosts; return at once where there is one process.

    Args:
      what: name of the place in the program; all processes come to the same places.
      facts: name -> value, of any length.

    Raises:
      UserError: a process differs from most, or has not come here in time; the message names the fact and the process.
    """
    if jax.process_count() == 1:
        return
    digests = {name: hashlib.sha256(value.encode()).hexdigest() for name, value in facts.items()}
    mine = json.dumps({"host": socket.gethostname(), "facts": digests})
    client, place = _client(), f"{_FACTS}/{what}/{next(_visits)}"
    client.key_value_set(f"{place}/{jax.process_index()}", mine)
    wanted, until = jax.process_count(), time.monotonic() + _seconds("JAXRETR_JOIN_SECONDS", _JOIN_SECONDS)
    found: dict[int, dict[str, Any]] = {}
    while len(found) < wanted:
        entries = client.key_value_dir_get(f"{place}/")
        found = {int(key.rsplit("/", 1)[1]): json.loads(value) for key, value in entries}
        if len(found) < wanted:
            if time.monotonic() > until:
                missing = sorted(set(range(wanted)) - found.keys())
                raise UserError(
                    f"process {', '.join(map(str, missing))} of {wanted} has not come to {what}; see what it printed, and "
                    "start all of them again"
                )
            time.sleep(0.1)
    _compare(what, found)


def _compare(what: str, found: Mapping[int, Mapping[str, Any]]) -> None:
    for name in sorted({name for each in found.values() for name in each["facts"]}):
        values = {process: each["facts"].get(name) for process, each in sorted(found.items())}
        usual = Counter(values.values()).most_common(1)[0][0]
        others = [process for process, value in values.items() if value != usual]
        if others:
            named = ", ".join(f"process {process} ({found[process]['host']})" for process in others[:4])
            more = f" and {len(others) - 4} more" if len(others) > 4 else ""
            raise UserError(
                f"{what}: {named}{more} has another {name} than the rest; start all processes with the same one"
            )


def program_facts() -> dict[str, str]:
    """Return facts that all hosts must share: a hash of this package's code, and versions of the packages it uses."""
    root = Path(__file__).parents[2]
    code = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        code.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    versions = {f"version of {name}": importlib.metadata.version(name) for name in _PACKAGES}
    return {"code of jaxretr": code.hexdigest(), "version of Python": platform.python_version(), **versions}


def fingerprint(tree: Any) -> str:
    """Return checksums of a tree's arrays, to compare hosts by; they are no protection against deliberate forgery."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return json.dumps([[str(path), str(x.dtype), list(x.shape), _checksum(x)] for path, x in leaves])


def _checksum(x: Any) -> int:
    # Viewed as bytes without a copy: NumPy's view of a bfloat16 array is not a buffer.
    return zlib.crc32(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)


def wait_for_all(what: str) -> None:
    """Return when all processes of the run have come here; `what` names the place, and all must give the same."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


class AskedToStop(SystemExit):
    """SIGTERM has come to this process, and the others do not know of it."""

    exit_code = EXIT_AGAIN

    def __init__(self):
        super().__init__(EXIT_AGAIN)

    def __str__(self) -> str:
        return "it was asked to stop (SIGTERM)"


# Functions that the garbage collector calls, JAX's among them: Python prints an exception in them, and goes on.
_UNHEARD = ("__del__", "_xla_gc_callback")


@contextlib.contextmanager
def stops_when_asked() -> Iterator[None]:
    """End a block with `AskedToStop` when SIGTERM comes, for work that has nothing to save before it ends.

    In a distributed run JAX would note the signal and continue.
    """

    def ask(number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_name not in _UNHEARD:
            frame = frame.f_back
        if frame is not None:
            again = threading.Timer(0.05, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        signal.signal(signal.SIGTERM, earlier)  # A second one ends the process at once.
        raise AskedToStop

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = signal.signal(signal.SIGTERM, ask)
    # JAX's handler is not one of Python's, and cannot be restored.
    earlier = signal.SIG_DFL if earlier is None else earlier
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)


@contextlib.contextmanager
def together() -> Iterator[bool]:
    """`init_distributed` for a block that all processes run: if it fails in one of them, the others end as well.

    Without this they would wait for it in their next collective. Yields whether the run is distributed.
    """
    joined = init_distributed()
    try:
        yield joined
    except BaseException as error:
        # All processes of a training run that was asked to stop end after the same step.
        all_end = (
            isinstance(error, SystemExit) and not isinstance(error, AskedToStop) and error.code in (None, 0, EXIT_AGAIN)
        )
        if joined and jax.process_count() > 1 and not all_end:
            _tell(error)
        raise


def is_of_collective(error: BaseException | None) -> bool:
    """Whether an error, or what led to it, may be one of processes talking to each other."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        # A collective's failure is a ValueError where its result is fetched.
        if isinstance(error, jax.errors.JaxRuntimeError) or any(name in str(error) for name in _TRANSPORTS):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False


def _tell(error: BaseException) -> None:
    """Tell the other processes that this one has failed, and let it end without waiting for them."""
    if is_of_collective(error):
        # Probably because another process has died: the watch will know in a moment, and reports it better.
        time.sleep(_seconds("JAXRETR_LOST_SECONDS", _LOST_SECONDS) + 2 * _pause())
    code = getattr(error, "exit_code", 1)
    reason = " ".join(str(error).split())[:500] or type(error).__name__
    with contextlib.suppress(Exception):  # the coordinator may have ended
        _Watch.stopped.set()
        _client().key_value_set(
            f"{_ALIVE}/{distributed.global_state.process_id}", f"{_FAILED}{code} {reason}", allow_overwrite=True
        )
        if distributed.global_state.process_id == 0:
            # When this process ends, the store ends as well: the others can read it until then.
            time.sleep(4 * _pause())

    def end() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    # Before JAX's own, which waits for the others for minutes.
    atexit.register(end)


_FAILED = "failed: "

# Words in the errors of collectives and of the coordinator.
_TRANSPORTS = ("Gloo ", "NCCL", "coordination service", "CoordinationService")


def _pause() -> float:
    """Return the seconds between two signs of life: more with many processes, to spare the coordinator."""
    return max(1.0, distributed.global_state.num_processes / 50)


class _Watch(threading.Thread):
    """Shows that this process lives, and ends it when another one no longer does.

    A collective that waits for a lost process cannot be interrupted, and neither can the main thread that waits for the
    collective, so the process ends from here. Everything that was saved is complete.
    """

    # JAX's own heartbeats do not suffice: they abort with a stack trace (134) that names no process, a callback for them
    # in Python fails in jaxlib 0.10 (std::bad_cast), and they do not tell why a process failed that still lives.
    stopped = threading.Event()

    def __init__(self, lost: int):
        super().__init__(name="jaxretr-watch", daemon=True)
        self._lost = lost

    def end(self) -> None:
        """Let the thread end, and wait for it for some seconds."""
        self.stopped.set()
        self.join(5)

    def run(self) -> None:
        """Exchange signs of life until the process ends."""
        client, me, count = _client(), distributed.global_state.process_id, 0
        # process -> (its last sign of life, when that was new)
        seen: dict[int, tuple[str, float]] = {}
        while not self.stopped.wait(_pause() if count else 0):
            count += 1
            try:
                client.key_value_set(f"{_ALIVE}/{me}", str(count), allow_overwrite=True)
                said = {int(key.rsplit("/", 1)[1]): value for key, value in client.key_value_dir_get(f"{_ALIVE}/")}
            except Exception:  # the coordinator is gone, and JAX itself ends the process; or the process is ending
                return
            now = time.monotonic()
            for process, value in sorted(said.items()):
                if value.startswith(_FAILED) and process != me:
                    # This one may be about to fail for the same reason, and then says so itself.
                    if not self.stopped.wait(_pause()):
                        code, _, reason = value.removeprefix(_FAILED).partition(" ")
                        leave(f"process {process} failed: {reason}", int(code))
                    return
                if process not in seen or seen[process][0] != value:
                    seen[process] = value, now
                elif process != me and now - seen[process][1] > self._lost:
                    leave(f"process {process} has given no sign of life for {self._lost} seconds")


def leave(why: str, code: int = EXIT_AGAIN) -> None:
    """End this process at once, without waiting, since another one is lost or has failed with this code."""
    again = "restart all processes: the run resumes from what was saved"
    _end_at_once(f"{why}; {again if code == EXIT_AGAIN else f'fix that, and {again}'}", code)


def _end_at_once(message: str, code: int) -> None:
    print(f"jaxretr: error: {message}", file=sys.stderr, flush=True)
    os._exit(code)


def _client() -> Any:
    return distributed.global_state.client


def _seconds(name: str, default: int) -> int:
    stated = os.environ.get(name, "")
    try:
        seconds = int(stated) if stated else default
    except ValueError:
        seconds = 0
    if seconds < 1:
        raise UserError(f"{name}={stated}: give a whole number of seconds, at least 1")
    return seconds
