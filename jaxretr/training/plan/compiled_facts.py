"""Memory, communication and work of a compiled program."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import jax

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


def compile_facts(lowered: Any, options: dict[str, Any] | None, target: str) -> CompiledFacts:
    """Compile a program, and read its memory and its text.

    Args:
      lowered: the program, as jax.stages.Lowered.
      options: options of the compiler; None: its defaults.
      target: name of the devices that it is compiled for, which the program's text does not tell.
    """
    try:
        compiled = lowered.compile(options)
    except jax.errors.JaxRuntimeError as error:
        used = _EXHAUSTED.search(str(error))
        if "RESOURCE_EXHAUSTED" not in str(error) or used is None:
            raise
        return CompiledFacts(_bytes(used[1], used[2]))
    memory, text = compiled.memory_analysis(), Program(compiled.as_text())
    # On CPUs XLA's peak lacks the temporaries, which a program holds there from beginning to end.
    on_cpu = any(device.platform == "cpu" for device in jax.tree.leaves(compiled.output_shardings)[0].device_set)
    return CompiledFacts(
        peak=memory.peak_memory_in_bytes + (memory.temp_size_in_bytes if on_cpu else 0),
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
