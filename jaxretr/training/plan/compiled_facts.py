"""Memory, communication and work of a compiled program, and a file with those of programs compiled earlier.

Compiling one step for a slice of TPUs takes minutes, and lowering it seconds. A program whose lowered text was compiled
before, by the same compiler with the same options, therefore need not be compiled again.
"""

import dataclasses
import hashlib
import json
import re
import threading
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from jaxretr.runtime.storage.files import atomic_write
from jaxretr.training.plan.compiled_text import Program

# "Used 20.1G of 15.75G hbm", or "required for HLO temporaries (300.00G)".
_EXHAUSTED = re.compile(r"(?:Used |required for [\w ]+\()([\d.]+)([KMGT]?)")


@dataclass(frozen=True)
class CollectivePlan:
    """The collectives of one kind in a program."""

    kind: str
    count: int
    bytes: int
    """Bytes of the whole arrays that are reduced or gathered, on one device."""
    in_loop: bool
    """Whether they are in the body of a loop; each is then counted once, however often the loop runs."""
    overlapped: int = 0
    """Bytes among these that are sent while loops, branches or matrix products run."""


@dataclass(frozen=True)
class CompiledFacts:
    """Memory, communication and size of a compiled program, on one device. Where the compiler gave up for want of
    memory only `peak` is known."""

    peak: int
    """Largest number of bytes of arguments, results and temporaries at any time."""
    arguments: int | None = None
    """Bytes of the arguments that the program reads."""
    temporaries: int | None = None
    """Bytes of the temporaries, which do not all exist at the same time."""
    aliased: int | None = None
    """Bytes of arguments that are overwritten by results."""
    collectives: tuple[CollectivePlan, ...] = ()
    reduced_floats: int | None = None
    """Number of float32 elements that are summed over the devices, in whole arrays: gradients, and little else."""
    loops: int | None = None
    largest_array: int | None = None
    """Elements of the largest array."""


class KnownPrograms:
    """Facts of programs by their fingerprints; with a file, those of earlier processes as well.

    Args:
      file: JSON, read if it is there; None keeps nothing.
    """

    def __init__(self, file: Path | None = None):
        self._file = file
        self._facts: dict[str, CompiledFacts] = {}
        self._lock = threading.Lock()
        self.compiled: list[str] = []
        """Programs that this process compiled because the file lacked them, as "TARGET FINGERPRINT"."""
        if file is not None and file.is_file():
            self._facts = {
                key: CompiledFacts(
                    **{**facts, "collectives": tuple(CollectivePlan(**each) for each in facts["collectives"])}
                )
                for key, facts in json.loads(file.read_text()).items()
            }

    def facts(self, lowered: Any, options: dict[str, Any] | None, target: str) -> CompiledFacts:
        """Return the facts of a program, which is compiled now if it has not been before.

        Args:
          lowered: the program, as jax.stages.Lowered.
          options: options of the compiler; None: its defaults.
          target: name of the devices that it is compiled for, which the program's text does not tell.
        """
        if self._file is None:
            return compile_facts(lowered, options)
        key = fingerprint(lowered, options, target)
        if key not in self._facts:
            facts = compile_facts(lowered, options)
            with self._lock, atomic_write(self._file) as out:
                self._facts[key] = facts
                self.compiled.append(f"{target} {key}")
                json.dump(
                    {name: dataclasses.asdict(known) for name, known in sorted(self._facts.items())}, out, indent=1
                )
                out.write("\n")
        return self._facts[key]


def fingerprint(lowered: Any, options: dict[str, Any] | None, target: str) -> str:
    """Return a hash of a program's text without places in source files, its target, the compiler and its options."""
    try:
        compiler = f"libtpu {metadata.version('libtpu')}"
    except metadata.PackageNotFoundError:
        compiler = ""
    words = json.dumps([target, f"jaxlib {metadata.version('jaxlib')}", compiler, options], sort_keys=True)
    return hashlib.sha256(f"{words}\n{lowered.as_text()}".encode()).hexdigest()


def compile_facts(lowered: Any, options: dict[str, Any] | None) -> CompiledFacts:
    """Compile a program, and read its memory and its text.

    Args:
      lowered: the program, as jax.stages.Lowered.
      options: options of the compiler; None: its defaults.
    """
    try:
        compiled = lowered.compile(options)
    except jax.errors.JaxRuntimeError as error:
        used = _EXHAUSTED.search(str(error))
        if "RESOURCE_EXHAUSTED" not in str(error) or used is None:
            raise
        return CompiledFacts(_bytes(used[1], used[2]))
    memory, text = compiled.memory_analysis(), Program(compiled.as_text())
    return CompiledFacts(
        peak=memory.peak_memory_in_bytes,
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        collectives=_collectives(text),
        reduced_floats=sum(
            array.elements * (op.devices if kind == "reduce-scatter" else 1)
            for kind in ("all-reduce", "reduce-scatter")
            for op in text.of_kind(kind)
            for array in op.results
            if array.dtype == "f32"
        ),
        loops=text.loops,
        largest_array=max(array.elements for array in text.arrays),
    )


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * 1024 ** " KMGT".index(unit or " "))


def _collectives(text: Program) -> tuple[CollectivePlan, ...]:
    counts, sizes, overlapped = Counter(), Counter(), Counter()
    for collective in text.collectives:
        key = collective.kind, collective.in_loop
        counts[key] += 1
        sizes[key] += collective.bytes
        overlapped[key] += collective.bytes * collective.overlapped
    return tuple(CollectivePlan(key[0], counts[key], sizes[key], key[1], overlapped[key]) for key in sorted(counts))
