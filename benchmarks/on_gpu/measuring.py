"""Compiling, timing in turns within a budget, and lines of a report that survive whatever happens next."""

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from on_gpu.profiling import kernels

Call = Callable[[], Any]


class Part:
    """One part of the benchmark while it runs, in a process of its own.

    Attributes:
      size: 1, or what an earlier try that ran out of memory was halved to.
      toy: tiny shapes, for a CPU.
      torch: the peers' module, or None where PyTorch does not run on the device.
      profile: reports the kernels of one call of each case, too.
      compile_only: times nothing.
    """

    def __init__(
        self,
        report: Path,
        budget: float,
        *,
        size: float,
        toy: bool,
        torch: Any,
        profile: bool = False,
        compile_only: bool = False,
    ):
        self._report, self._end = report, time.monotonic() + budget
        self.size, self.toy, self.torch, self.profile = size, toy, torch, profile
        self.compile_only = compile_only

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self._end - time.monotonic()

    def scaled(self, full: int, toy: int, multiple: int = 1) -> int:
        """A size that memory limits: the full one times `size`, or the toy one; a multiple of something."""
        wanted = toy if self.toy else int(full * self.size)
        return max(multiple, wanted // multiple * multiple)

    def say(self, what: str) -> None:
        """A line of progress."""
        print(f"    {what} ({max(0.0, self.left):.0f} s left)", flush=True)

    def report(self, case: str, **facts: Any) -> None:
        """Writes one measurement down; a later one of the same case replaces it."""
        with self._report.open("a") as file:
            file.write(json.dumps({"case": case, **facts}) + "\n")

    def compiled(self, case: str, jitted: Any, *arguments: Any) -> tuple[Any, float]:
        """As `compiled`; that and how long the case compiled is known even if the time runs out before it is measured."""
        self.report(case, compiling=max(0.0, self.left))
        self.say(f"{case}: compiling")
        program, seconds = compiled(jitted, *arguments)
        self.report(case, compile=seconds)
        self.say(f"{case}: compiled in {seconds:.0f} s")
        return program, seconds

    def compare(
        self, case: str, ours: Call, peer: Callable[[], Call] | None, *, share: float = 1.0, **facts: Any
    ) -> dict[str, list[float]]:
        """Times ours, then ours and the peer in turns, and reports both.

        Args:
          case: its name in the report.
          ours: runs once and waits for the end; compiled already.
          peer: makes the same for PyTorch, or None where there is none.
          share: of the time that is left, which this case may take.
          facts: of the case, for the report.
        """
        if self.compile_only:
            if "compile" in facts:
                self.report(case, compile=facts["compile"])
            return {}
        limit = self.left * share
        ours()  # The first run of a compiled program loads it.
        taken = {"ours": repeat(ours, limit * (0.3 if peer else 0.8))}
        if self.profile:
            try:
                facts["kernels"] = kernels(ours)
            except Exception as error:  # The times are worth having without it.
                facts["kernels_error"] = first_line(error)
        self.report(case, ours=summary(taken["ours"]), **facts)
        self.say(f"{case}: {statistics.median(taken['ours']):.4g} s")
        if peer is None:
            return taken
        try:
            theirs = peer()
            theirs()
            theirs()
            taken = in_turns({"ours": ours, "torch": theirs}, limit * 0.4)
        except Exception as error:  # PyTorch's own errors of memory and of kernels: ours has been reported.
            self.report(case, ours=summary(taken["ours"]), torch_error=first_line(error), **facts)
            self.say(f"{case}: PyTorch failed: {first_line(error)}")
            return taken
        ratios = [b / a for a, b in zip(taken["ours"], taken["torch"], strict=True)]
        self.report(
            case,
            ours=summary(taken["ours"]),
            torch=summary(taken["torch"]),
            ratio=summary(ratios),
            **facts,
        )
        self.say(f"{case}: PyTorch {statistics.median(taken['torch']):.4g} s")
        return taken


def compiled(jitted: Any, *arguments: Any) -> tuple[Any, float]:
    """A jitted function compiled for these arguments, and the seconds that it took."""
    began = time.perf_counter()
    program = jitted.lower(*arguments).compile()
    return program, time.perf_counter() - began


def waits(call: Call) -> Call:
    """The same call, which ends when the device is done."""
    return lambda: jax.block_until_ready(call())


def repeat(call: Call, limit: float, least: int = 3, most: int = 20) -> list[float]:
    """Seconds of each of some runs: at least three, and no more than fit into the limit."""
    return in_turns({"": call}, limit, least, most)[""]


def in_turns(calls: Mapping[str, Call], limit: float, least: int = 3, most: int = 20) -> dict[str, list[float]]:
    """The same of several, round by round."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    began = time.monotonic()
    for number in range(most):
        spent = time.monotonic() - began
        if number >= least and spent * (number + 1) / number > limit:
            break
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def summary(values: list[float]) -> dict[str, float]:
    """Median, least, greatest, and how many."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": len(values)}


def first_line(error: BaseException) -> str:
    """What an error says, short enough for a table."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300]
