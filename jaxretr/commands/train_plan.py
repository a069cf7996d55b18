"""`jaxretr train --plan`: whether a run fits, and what it costs, before anything runs."""

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING

from jaxretr import experiment
from jaxretr.errors import UserError

if TYPE_CHECKING:  # It imports JAX, which reads the environment that `run` sets.
    from jaxretr.plan.requirements import Plan, ProgramPlan


def run(args: argparse.Namespace) -> None:
    """Prints the plan.

    Raises:
      UserError: the run does not fit.
    """
    from jaxretr.parallel.tpu_environment import compile_for_tpus

    if args.topology is not None:
        compile_for_tpus()  # Before the config: it is a program, and may import JAX.
    config = experiment.load(args.config, args.overrides, args.data)
    from jaxretr.plan.corpus_sizes import corpus_size
    from jaxretr.plan.requirements import plan, remedy
    from jaxretr.plan.topologies import at_hand, topology
    from jaxretr.train import check_numbers

    check_numbers(config)
    passages = corpus_size(config, args.passages)
    devices = topology(args.topology) if args.topology is not None else at_hand()
    planned = plan(config, devices, passages, topology=args.topology or "")
    if args.format == "json":
        print(json.dumps({**dataclasses.asdict(planned), "fits": planned.fits}, indent=2))
    else:
        print(text(planned))
    if not planned.fits:
        raise UserError(f"{planned.config} does not fit on {planned.topology}: {remedy(config, planned)}")


def text(planned: "Plan") -> str:
    """The plan for people."""
    lines = [
        f"{planned.config} on {planned.topology}: {planned.devices} devices ({planned.data} share batch and corpus"
        + (f", {planned.model} one copy of the model)" if planned.model > 1 else ")"),
        f"parameters: {planned.parameters:,}",
        f"passages: {planned.passages:,} ({planned.passages_source})"
        if planned.passages
        else "passages: none on the devices",
        "memory of a device: "
        + ("unknown" if planned.capacity is None else f"{planned.capacity / 2**30:.2f} GiB can be used"),
    ]
    for program in planned.programs:
        lines += ["", *_of_program(program, planned)]
    return "\n".join(lines)


def _of_program(program: "ProgramPlan", planned: "Plan") -> list[str]:
    verdict = {True: "fits", False: "DOES NOT FIT", None: "memory unknown"}[program.fits]
    lines = [f"{program.name} ({program.when}): {verdict}"]
    rows = [(name, bytes) for name, bytes in program.groups.items()]
    rows += [(f"{name} (beside it)", bytes) for name, bytes in program.beside.items()]
    if program.temporaries is not None:
        rows.append(("temporaries", program.temporaries))
    rows.append(("peak", program.peak))
    lines += [f"  {name:<36} {bytes / 2**30:>10.4f} GiB" for name, bytes in rows]
    for collective in program.collectives:
        where = ", in a loop" if collective.in_loop else ""
        lines.append(f"  {f'{collective.count} x {collective.kind}{where}':<36} {collective.bytes / 2**20:>10.4f} MiB")
    lines.append(f"  {'matrix products':<36} {program.flops / 1e12:>10.4f} TFLOP, all devices together")
    if program.seconds is not None:
        lines.append(f"  {'at the least':<36} {program.seconds:>10.4f} s, at {planned.tflops:g} TFLOP/s a device")
    return lines
