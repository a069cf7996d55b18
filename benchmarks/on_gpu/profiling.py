"""Where the time of one call goes: the kernels that the device ran, summed by the part of the program that they come from."""

import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

MOST = 40


class Taken(NamedTuple):
    """Kernels of one name in one part of the program."""

    scope: str
    """The named scopes around the operation, as far as the compiler kept them."""
    kernel: str
    milliseconds: float
    count: int


def kernels(call: Callable[[], Any]) -> list[Taken]:
    """The kernels of one call that took the longest, longest first; empty where the device reports none."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(call())
        sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0])
        for file in Path(folder).rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
                if not plane.name.startswith("/device:"):
                    continue
                for line in plane.lines:
                    if "Stream" not in line.name:
                        continue
                    for event in line.events:
                        facts = dict(event.stats)
                        scope = str(facts.get("name") or facts.get("tf_op") or facts.get("hlo_op") or "")
                        entry = sums[scope[-90:], event.name[:80]]
                        entry[0] += event.duration_ns / 1e6
                        entry[1] += 1
    ordered = sorted(sums.items(), key=lambda item: -item[1][0])
    return [Taken(*names, round(taken, 3), count) for names, (taken, count) in ordered[:MOST]]
