"""Requirements of a run before it runs: memory, communication and work of its programs, compiled ahead of time.

No weights, no data and no corpus come near a device: all arguments are shapes (jaxretr/training/runs/outline.py).
"""

import dataclasses
import logging
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import jax

from jaxretr.config import ArtConfig, Config, ContrastiveConfig, MlmConfig, RerankerConfig, check_numbers
from jaxretr.runtime.parallel.matmul_flops import matmul_flops
from jaxretr.runtime.parallel.mesh import DATA, make_mesh
from jaxretr.training.loop import check_batch, outline
from jaxretr.training.plan.compiled_facts import CollectivePlan, CompiledFacts, compile_facts
from jaxretr.training.plan.topologies import CHIPS, Devices, at_hand
from jaxretr.training.plan.topologies import topology as slice_of_tpus
from jaxretr.training.runs.corpus_sizes import CorpusSize, corpus_size
from jaxretr.training.runs.outline import FROZEN, OPTIMIZER, PARAMETERS, START, Outline, Planned

log = logging.getLogger(__name__)

GIB = 2**30

# With these options the TPU compiler takes a fraction of the time, and finds the memory to within some percent.
TPU_OPTIONS = {"exec_time_optimization_effort": -1.0}
# Tuning measures kernels on a GPU, and none is present.
GPU_OPTIONS = {"xla_gpu_autotune_level": 0}
# LLVM's optimisations come after everything that is read here.
CPU_OPTIONS = {"xla_backend_optimization_level": 0}


@dataclass(frozen=True)
class ProgramPlan:
    """Memory, communication and work of one program; bytes are those of one device."""

    name: str
    when: str
    groups: dict[str, int]
    """Bytes of the program's arguments, by what they are ("parameters", "corpus", ...)."""
    beside: dict[str, int]
    """Bytes that the run holds on the device meanwhile, though this program does not read them, named like `groups`."""
    temporaries: int | None
    """Bytes of temporaries, which do not all exist at the same time; None where the compiler gave up."""
    peak: int
    """Largest number of bytes of arguments, results and temporaries, and of everything else that the run holds."""
    fits: bool | None
    """Whether the program fits into a device's memory; None where that is not known."""
    collectives: tuple[CollectivePlan, ...]
    reduced_floats: int | None
    """Number of float32 elements that are summed over the devices, in whole arrays: gradients, and little else."""
    loops: int | None
    largest_array: int | None
    """Elements of the largest array."""
    aliased: int | None
    """Bytes of arguments that are overwritten by results."""
    flops: int
    """Floating-point operations of all matrix products of one call, over all devices."""
    seconds: float | None
    """Lower bound of the seconds that these take, at the chip's peak; None where that is not known."""


@dataclass(frozen=True, repr=False)
class Plan:
    """Requirements of all programs of a run on some devices."""

    config: str
    passages: int
    passages_source: str
    words: float | None
    """Mean words of a passage, from which its token ids are estimated; None: unknown, full length is assumed."""
    topology: str
    devices: int
    chips: int
    data: int
    """Devices that share the batch and the corpus's rows."""
    model: int
    """Devices that share one copy of the large matrices."""
    capacity: int | None
    """Bytes that a program can use of a device's memory."""
    tflops: float | None
    """Peak of one device in bfloat16, 10^12 operations a second; None where it is not known."""
    parameters: int
    """Number of elements of all parameters, trained and frozen, without the scorer's."""
    programs: tuple[ProgramPlan, ...]

    @property
    def fits(self) -> bool:
        """Whether no program is known not to fit."""
        return all(program.fits is not False for program in self.programs)

    def __repr__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        return f"Plan({self.config} on {self.topology}: {verdict}, {', '.join(each.name for each in self.programs)})"

    def to_json(self) -> dict[str, Any]:
        """Return everything that was measured as JSON values."""
        return {**dataclasses.asdict(self), "fits": self.fits}

    def table(self) -> str:
        """Return the plan as text, one paragraph for each program."""
        lines = [
            f"{self.config} on {self.topology}: {self.devices} devices ({self.data} share batch and corpus"
            + (f", {self.model} one copy of the model)" if self.model > 1 else ")"),
            f"parameters: {self.parameters:,}",
            f"passages: {self.passages:,} ({self.passages_source}), "
            + (
                "each as long as it may be"
                if self.words is None
                else f"{self.words:.0f} words each, so that ids are estimated"
            )
            if self.passages
            else "passages: none on the devices",
            "memory of a device: "
            + ("unknown" if self.capacity is None else f"{self.capacity / 2**30:.2f} GiB can be used"),
        ]
        for program in self.programs:
            lines += ["", *_lines_of(program, self.tflops)]
        return "\n".join(lines)


def _lines_of(program: ProgramPlan, tflops: float | None) -> list[str]:
    verdict = {True: "fits", False: "DOES NOT FIT", None: "memory unknown"}[program.fits]
    lines = [f"{program.name} ({program.when}): {verdict}"]
    rows = [(name, bytes) for name, bytes in program.groups.items()]
    rows += [(f"{name} (in addition)", bytes) for name, bytes in program.beside.items()]
    if program.temporaries is not None:
        rows.append(("temporaries", program.temporaries))
    rows.append(("peak", program.peak))
    lines += [f"  {name:<36} {bytes / 2**30:>10.4f} GiB" for name, bytes in rows]
    for collective in program.collectives:
        where = ", in a loop" if collective.in_loop else ""
        where += ", overlapped" if collective.overlapped == collective.bytes > 0 else ""
        lines.append(f"  {f'{collective.count} x {collective.kind}{where}':<36} {collective.bytes / 2**20:>10.4f} MiB")
    lines.append(f"  {'matrix products':<36} {program.flops / 1e12:>10.4f} TFLOP, all devices together")
    if program.seconds is not None:
        lines.append(f"  {'at the least':<36} {program.seconds:>10.4f} s, at {tflops:g} TFLOP/s a device")
    return lines


def plan(
    config: Config,
    topology: str | Devices | None = None,
    passages: int | CorpusSize | None = None,
    *,
    programs: Collection[str] = (),
    facts_of: Callable[[Any, dict[str, Any] | None, str], CompiledFacts] = compile_facts,
) -> Plan:
    """Compile the programs of a run without running them, and measure them.

    Args:
      config: config of the run.
      topology: devices to compile for: a slice of TPUs, such as "v5e:4x4", or a host's GPUs, such as "h100:8", none of
        which is needed (call `jaxretr.runtime.parallel.tpu_environment.compile_for_tpus` before JAX is imported); None: the
        devices at hand.
      passages: size of the corpus; None: counted in its files, or known from their names.
      programs: names of the programs to compile; all by default.
      facts_of: function (lowered program, compiler's options, name of the devices) that compiles, or knows the result.

    Raises:
      UsageError: a batch or a `mesh.model` that does not divide over the devices.
      UserError: an unknown slice, a model whose shape is not known, or a corpus whose size is not.
    """
    check_numbers(config)
    size = passages if isinstance(passages, CorpusSize) else corpus_size(config, passages)
    devices = slice_of_tpus(topology) if isinstance(topology, str) else topology or at_hand()
    mesh = make_mesh(devices.devices, model=config.mesh.model)
    check_batch(config, mesh)
    run = outline(config, mesh, size)
    chosen = [program for program in run.programs if not programs or program.name in programs]
    chip = None if devices.chip is None else CHIPS[devices.chip]
    capacity = _limit(devices) if chip is None else int(chip.usable_gib * GIB) // devices.per_chip
    tflops = None if chip is None else chip.tflops / devices.per_chip
    name = devices.name or f"{len(devices.devices)} x {devices.devices[0].device_kind}"
    compiled = tuple(_program(program, run, devices, name, capacity, tflops, facts_of) for program in chosen)
    return Plan(
        config=config.name,
        passages=size.passages,
        passages_source=size.source,
        words=size.words,
        topology=name,
        devices=len(devices.devices),
        chips=devices.chips,
        data=mesh.shape[DATA],
        model=config.mesh.model,
        capacity=capacity,
        tflops=tflops,
        parameters=sum(
            leaf.size for name in ("parameters", "frozen parameters") for leaf in jax.tree.leaves(run.resident[name])
        ),
        programs=compiled,
    )


def _limit(devices: Devices) -> int | None:
    """Return the bytes that a device at hand gives to programs; None for CPUs, which share the host's memory."""
    device = devices.devices[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    return None if not stats else stats.get("bytes_limit")


def _program(
    program: Planned,
    run: Outline,
    devices: Devices,
    target: str,
    capacity: int | None,
    tflops: float | None,
    facts_of: Callable[[Any, dict[str, Any] | None, str], CompiledFacts],
) -> ProgramPlan:
    groups = _sizes(program.groups)
    # A program may read only part of a group: a refresh reads the encoder's tokens of the corpus, not the scorer's.
    rest = {name: size - groups.get(name, 0) for name, size in _sizes(run.resident).items()}
    beside = {name: size for name, size in rest.items() if size > 0}
    traced = program.trace()
    flops = matmul_flops(traced)
    seconds = None if tflops is None else flops / (len(devices.devices) * tflops * 1e12)
    log.info("compiling %s for %d devices", program.name, len(devices.devices))
    options = {"tpu": TPU_OPTIONS, "cpu": CPU_OPTIONS}.get(devices.devices[0].platform, GPU_OPTIONS)
    facts = facts_of(traced.lower(), options, target)
    # The compiled program lacks arguments that it does not read (in a refresh, the questions' tower); the run holds
    # them all the same.
    unread = 0 if facts.arguments is None else max(0, sum(groups.values()) - facts.arguments)
    peak = facts.peak + unread + sum(beside.values())
    gave_up = facts.temporaries is None
    return ProgramPlan(
        name=program.name,
        when=program.when,
        groups=groups,
        beside=beside,
        temporaries=facts.temporaries,
        peak=peak,
        fits=False if gave_up else None if capacity is None else peak <= capacity,
        collectives=facts.collectives,
        reduced_floats=facts.reduced_floats,
        loops=facts.loops,
        largest_array=facts.largest_array,
        aliased=facts.aliased,
        flops=flops,
        seconds=seconds,
    )


def _sizes(groups: dict[str, Any]) -> dict[str, int]:
    """Return the bytes of each group on one device; groups without bytes are left out."""
    sizes = {name: sum(map(shard_bytes, jax.tree.leaves(tree))) for name, tree in groups.items()}
    return {name: size for name, size in sizes.items() if size}


def shard_bytes(array: Any) -> int:
    """Return the bytes of an array, or of its shape with a sharding, on one device."""
    return math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize


def remedy(config: Config, planned: Plan) -> str:
    """Return one line that says which settings to change for a run that does not fit."""
    worst = max((program for program in planned.programs if program.fits is False), key=lambda program: program.peak)
    ways = []
    held = {**worst.groups, **worst.beside}
    other = worst.peak - sum(held.values())
    if worst.name in ("step", "evaluation"):
        if isinstance(config, ArtConfig):
            ways += [
                f"art.chunk={max(1, config.art.chunk // 2)}",
                f"scorer.chunk={max(1, config.scorer.chunk // 2)}",
            ]
        elif isinstance(config, ContrastiveConfig):
            ways.append(f"contrastive.chunk={max(1, config.contrastive.chunk // 2)}")
        elif isinstance(config, RerankerConfig):
            ways.append(f"ranking.chunk={max(1, config.ranking.chunk // 2)}")
        elif isinstance(config, MlmConfig):
            rows = config.train.batch_size // planned.data
            ways.append(f"chunk={max(1, min(config.chunk or rows, rows) // 2)}")
        else:
            ways.append("a smaller train.batch_size")
    elif isinstance(config, ArtConfig | ContrastiveConfig):
        ways.append(f"index.encode_rows={max(1, config.index.encode_rows // 2)}")
    own = sum(held.get(name, 0) for name in (PARAMETERS, OPTIMIZER, FROZEN, START))
    scorer = held.get("scorer", 0)
    replicated = own + scorer
    more = ["more chips"]
    if replicated > max(other, sum(held.values()) - replicated):
        more.insert(0, f"mesh.model={2 * planned.model}")
        can_split = isinstance(config, ArtConfig | ContrastiveConfig) and planned.data > 1
        if can_split and not config.mesh.shard_parameters and own > scorer:
            more.insert(0, "mesh.shard_parameters")
    order = ways + more if other > sum(held.values()) / 2 else more + ways
    gib = worst.peak / GIB
    have = (planned.capacity or 0) / GIB
    return f"{worst.name} needs {gib:.2f} GiB a device and {have:.2f} can be used; try {', '.join([*order[:-2], ' or '.join(order[-2:])])}"
