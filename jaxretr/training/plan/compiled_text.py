"""Reads the text of a compiled program: its collectives and where they are, and the size of its arrays."""

import math
import re
from dataclasses import dataclass

_COLLECTIVES = (
    "all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute|collective-broadcast"
)
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_CALLED = re.compile(r"(?:condition|body|to_apply|calls|true_computation|false_computation)=%?([\w.-]+)")
_CALLED_LISTS = re.compile(r"(?:branch_computations|called_computations)=\{([^}]*)\}")
_LOOP = re.compile(r" while\(.*condition=%?([\w.-]+), body=%?([\w.-]+)")
# The "-done" half of an asynchronous collective is left out, as it is the same collective.
_COLLECTIVE = re.compile(rf"= (.*?) ({_COLLECTIVES})(-start)?\(")
_STARTED = re.compile(r"(%?[\w.-]+) = .*-start\(")
_DONE = re.compile(r"-done\(")
# Loops, branches and matrix products, which GPUs have in fusions and custom calls of such names.
_WORK = re.compile(r" (?:while|conditional|dot|convolution)\(|%(?:gemm_fusion|cublas|cudnn|convolution)[\w.-]* = ")
_COPY = re.compile(r"= (.*?) copy(?:-start)?\(")
_GROUPS = re.compile(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\])")
_ARRAY = re.compile(r"\b(pred|bf16|[fsu]\d+)\[([\d,]*)\]")


@dataclass(frozen=True)
class Array:
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * max(1, int("".join(filter(str.isdigit, self.dtype)) or 8) // 8)


@dataclass(frozen=True)
class Collective:
    """One collective operation.

    Attributes:
      kind: "all-reduce", "all-gather", ...
      results: the arrays that a device has afterwards.
      in_loop: whether it is in the body of a loop.
      devices: number of devices in a group.
      overlapped: whether a loop, a conditional or a matrix product stands between its start and its end, or it is
        spread over other work.
    """

    kind: str
    results: tuple[Array, ...]
    in_loop: bool
    devices: int = 1
    overlapped: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the whole arrays that are reduced or gathered."""
        factor = self.devices if self.kind == "reduce-scatter" else 1
        return factor * sum(array.bytes for array in self.results)


class Program:
    """A compiled program.

    Attributes:
      computations: lines of each computation by its name, in the text's order; the program itself is the last.
      loops: number of while loops.
      collectives: all collectives, in the text's order.
    """

    def __init__(self, text: str):
        self.text = text
        self.computations = computations = dict[str, list[str]]()
        name = ""
        for line in text.splitlines():
            if head := _HEAD.match(line):
                name = head[1]
                computations[name] = []
            elif name:
                computations[name].append(line)
        calls = {name: {called for line in lines for called in _called(line)} for name, lines in computations.items()}
        loops = [loop for lines in computations.values() for line in lines for loop in _LOOP.findall(line)]
        self.loops = len(loops)
        inside: set[str] = set()
        waiting = [name for loop in loops for name in loop]
        while waiting:
            name = waiting.pop()
            if name not in inside:
                inside.add(name)
                waiting.extend(calls[name])
        self.collectives = [
            Collective(found[2], _results(found), name in inside, _group_size(line), _overlaps(line, lines[number:]))
            for name, lines in computations.items()
            for number, line in enumerate(lines)
            if (found := _COLLECTIVE.search(line)) and not _goes_on(line, lines)
        ]

    def of_kind(self, kind: str) -> list[Collective]:
        return [collective for collective in self.collectives if collective.kind == kind]

    def copies(self, elements: int) -> list[Array]:
        """Return the arrays of at least so many elements that are copied, as they could not be overwritten in place."""
        copied = [arrays(found)[0] for found in _COPY.findall(self.text)]
        return [array for array in copied if array.elements >= elements]

    @property
    def arrays(self) -> set[Array]:
        """Shapes and types of all arrays of the program, also of those that exist only within one fused loop."""
        return set(arrays(self.text))


def arrays(text: str) -> list[Array]:
    """Return the arrays that a type, or a whole program, names."""
    return [Array(dtype, tuple(map(int, filter(None, dims.split(","))))) for dtype, dims in _ARRAY.findall(text)]


def _goes_on(line: str, computation: list[str]) -> bool:
    """Whether an instruction only continues a collective that was started elsewhere.

    TPUs can spread a collective over other work: a chain of pieces from AsyncCollectiveStart to AsyncCollectiveDone.
    """
    return "chain_id=" in line and not any("AsyncCollectiveStart" in other for other in computation)


def _overlaps(line: str, following: list[str]) -> bool:
    """Whether other work of some size is done between the start of a collective, in `line`, and its end."""
    if "chain_id=" in line and any("AsyncCollectiveStart" in other for other in following):
        return True
    started = _STARTED.search(line)
    if started is None:
        return False
    done = next((place for place, other in enumerate(following) if _DONE.search(other) and started[1] in other), 0)
    return any(_WORK.search(other) for other in following[:done])


def _results(found: re.Match[str]) -> tuple[Array, ...]:
    """Return the arrays that a collective produces, without the operands, which some asynchronous ones name first."""
    named = arrays(found[1])
    if found[3] and found[2] in ("all-gather", "reduce-scatter", "collective-permute"):
        named = [array for array in named if array.dtype != "u32" or array.shape]
        named = named[len(named) // 2 :]
    return tuple(named)


def _group_size(line: str) -> int:
    found = _GROUPS.search(line)
    if found is None:
        return 1
    return int(found[2]) if found[2] else found[1].count(",") + 1


def _called(line: str) -> list[str]:
    listed = [name.strip(" %") for names in _CALLED_LISTS.findall(line) for name in names.split(",")]
    return [*_CALLED.findall(line), *listed]
