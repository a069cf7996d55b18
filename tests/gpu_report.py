"""What `make test-gpu` leaves behind: a short report, complete after each test, for a machine that is at hand for minutes."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import pytest

SLOWEST = 10


class Report:
    """A plugin of pytest that writes what failed and why, what was skipped and why, and what took longest.

    Args:
      path: of the file, in Markdown.
    """

    def __init__(self, path: Path):
        self._path, self._began = path, time.monotonic()
        self._failed: dict[str, str] = {}
        self._skipped: Counter[str] = Counter()
        self._passed: set[str] = set()
        self._measured: list[str] = []
        self._seconds: Counter[str] = Counter()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)
            self._measured += [f"{name}: {value}" for name, value in report.user_properties]
        self._note(report)
        self._write()

    def pytest_sessionfinish(self) -> None:
        self._write()

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.failed:
            self._passed.discard(report.nodeid)
            crash = getattr(report.longrepr, "reprcrash", None)
            said = crash.message if crash else str(report.longrepr)
            self._failed[report.nodeid] = " ".join(said.split())[:400]
        elif report.skipped:
            reason: Any = report.longrepr
            self._skipped[reason[2] if isinstance(reason, tuple) else str(reason)] += 1

    def _write(self) -> None:
        devices = jax.devices()
        counts = f"{len(self._passed)} passed, {len(self._failed)} failed, {self._skipped.total()} skipped"
        sections = {
            "Failed": [f"{test}: {why}" for test, why in self._failed.items()],
            "Skipped": [f"{count} x {reason}" for reason, count in self._skipped.most_common()],
            "Measured": self._measured,
            "Seconds": [f"{seconds:.1f} {test}" for test, seconds in self._seconds.most_common(SLOWEST)],
        }
        lines = [
            f"{counts} in {time.monotonic() - self._began:.0f} s; "
            f"{len(devices)} x {devices[0].device_kind}, jax {jax.__version__}"
        ]
        for title, entries in sections.items():
            if entries:
                lines += ["", f"## {title}", "", *(f"- {entry}" for entry in entries)]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text("\n".join(lines) + "\n")
