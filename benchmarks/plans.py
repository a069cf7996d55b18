"""What ART, DPR, SPAR and DDR need on TPUs and GPUs, before and after: the table of docs/results/plans.md.

    python benchmarks/plans.py --known known.json                     # minutes a program; goes on where it was stopped

Steps and refreshes of the published recipes are compiled ahead of time, with none of the devices at hand. The table
compares with a file of an earlier version's numbers (docs/results/plans_before.json), written by --write of that version;
what it did not measure (what collectives ran beside; rounded numbers of its own table for some slices) is left out there.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from jaxretr.runtime.parallel.tpu_environment import compile_for_tpus

if __name__ == "__main__":
    compile_for_tpus()

from known_programs import KnownPrograms  # pyright: ignore[reportMissingImports]
from plan_table import SYSTEMS, config_of, plan_system  # pyright: ignore[reportMissingImports]

from jaxretr.runtime.errors import UserError
from jaxretr.training.plan.requirements import GIB, Plan

BEFORE = Path(__file__).parents[1] / "docs/results/plans_before.json"
CHOSEN = ("art", "dpr", "spar_lexical", "ddr_dam", "ddr_rem")
PLACES = ("v5e:4x4", "v5p:2x2x2", "h200:1", "h100:8")
PROGRAMS = ("step", "refresh")

HEAD = """\
| system | devices | program | TFLOP | s at peak | peak GiB a device | collectives MiB | beside compute | in a loop |
|---|---|---|---:|---:|---:|---:|---:|---:|"""


def numbers(planned: Plan) -> dict[str, dict[str, Any]]:
    """What the table has of each program of a plan."""
    return {
        program.name: {
            "tflop": program.flops / 1e12,
            "seconds": program.seconds,
            "peak_gib": program.peak / GIB,
            "capacity_gib": (planned.capacity or 0) / GIB,
            "fits": program.fits,
            "collectives_mib": sum(each.bytes for each in program.collectives) / 2**20,
            "in_loop_mib": sum(each.bytes for each in program.collectives if each.in_loop) / 2**20,
            "overlapped_mib": sum(each.overlapped for each in program.collectives) / 2**20,
            "collectives": {
                kind: sum(each.bytes for each in program.collectives if each.kind == kind) / 2**20
                for kind in sorted({each.kind for each in program.collectives})
            },
        }
        for program in planned.programs
    }


def row(system: str, place: str, program: str, before: dict[str, Any] | None, after: dict[str, Any]) -> str:
    """One line of the table; "a -> b" where a number has changed."""

    def cell(name: str, form: str) -> str:
        texts = [format(facts[name], form) for facts in (before, after) if facts is not None and name in facts]
        return texts[0] if len(set(texts)) == 1 else " -> ".join(texts)

    fits = f" of {after['capacity_gib']:.2f}" + ("" if after["fits"] else " (does not fit)")
    cells = [
        SYSTEMS[system].what,
        place,
        program,
        cell("tflop", ",.0f"),
        cell("seconds", ".3f"),
        cell("peak_gib", ".2f") + fits,
        cell("collectives_mib", ",.0f"),
        cell("overlapped_mib", ",.0f"),
        cell("in_loop_mib", ",.0f"),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default=",".join(CHOSEN), help="(default: %(default)s)")
    parser.add_argument("--topologies", default=",".join(PLACES), help="(default: %(default)s)")
    parser.add_argument("--before", default=str(BEFORE), metavar="FILE", help="an earlier version's numbers")
    parser.add_argument("--known", metavar="FILE", help="programs compiled before; those compiled now are added")
    parser.add_argument("--write", metavar="FILE", help="write the numbers there as JSON")
    args = parser.parse_args()
    known = KnownPrograms(Path(args.known) if args.known else None)
    file = Path(args.before)
    before: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    after: dict[str, Any] = {}
    print(HEAD, flush=True)
    for system in args.systems.split(","):
        for place in args.topologies.split(","):
            name = f"{system} {place}"
            try:
                after[name] = numbers(plan_system(system, config_of(system), place, PROGRAMS, known))
            except (
                UserError
            ) as error:  # A compiler that is not installed: the other devices can be planned all the same.
                print(error, file=sys.stderr)
                continue
            for program, facts in after[name].items():
                print(row(system, place, program, before.get(name, {}).get(program), facts), flush=True)
    if args.write:
        Path(args.write).write_text(json.dumps(after, indent=1) + "\n")


if __name__ == "__main__":
    main()
