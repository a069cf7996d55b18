"""The curves of runs as SVG: loss, metrics of the evaluations, staleness, negatives, and any others that a run logs."""

import io
import math
from collections.abc import Sequence
from typing import NamedTuple

from jaxretr.evaluate import plots
from jaxretr.training.report.run_files import RunFiles

# A field that only lines about training steps have.
_RATE = "examples_per_s"
# The order of the panels; panels that are not named come after these.
_FIRST = (
    "loss",
    "loss (evaluation)",
    "ndcg@10",
    "mrr@10",
    "recall@20",
    "recall@100",
    "acc@20",
    "mrr",
    "staleness",
    "staleness_max",
    "staleness_retrieved",
    "negatives",
)
# The most measures of one evaluation that are drawn: further ones say the same.
_MOST = 12
_SIZE = (3.6, 2.5)


Point = tuple[int, float]
"""A step, and a value."""


class Panel(NamedTuple):
    """A panel with the curves of one metric."""

    metric: str
    svg: str


def draw(runs: Sequence[RunFiles]) -> list[Panel]:
    """Draw a panel for each metric that was reported at several steps, with a line for each run that reports it.

    A name under which both training and evaluation report, such as the loss, gets a panel for each.
    """
    found: dict[str, list[list[Point]]] = {}
    for number, run in enumerate(runs):
        for name, points in _series(run).items():
            found.setdefault(name, [[] for _ in runs])[number] = points
    names = sorted((name for name, lines in found.items() if max(map(len, lines)) > 1), key=_place)
    return [Panel(name, _panel(name, found[name])) for name in names[:_MOST]]


def _series(run: RunFiles) -> dict[str, list[Point]]:
    """The points of each panel's line."""
    trained = {name for line in run.lines if _RATE in line for name in line}
    found: dict[str, list[Point]] = {}
    for line in run.lines:
        for name, value in line.items():
            if name in ("step", _RATE) or name.startswith("seconds/") or not math.isfinite(value):
                continue
            panel = f"{name} (evaluation)" if _RATE not in line and name in trained else name
            found.setdefault(panel, []).append((line["step"], value))
    return found


def _place(name: str) -> tuple[int, str]:
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)


def _panel(metric: str, lines: Sequence[Sequence[Point]]) -> str:
    plt = plots.pyplot()
    import matplotlib

    figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
    for number, points in enumerate(lines):
        if points:
            steps, values = zip(*points, strict=True)
            axes.plot(
                steps, values, color=f"C{number}", marker="o" if len(points) < 30 else None, markersize=3, linewidth=1.4
            )
    axes.set_title(plots.plain(metric), fontsize=10)
    axes.set_xlabel("step", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": f"jaxretr {metric}", "svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None}, transparent=True)
    plt.close(figure)
    text = drawn.getvalue()
    return text[text.index("<svg") :]  # Without the XML declaration, which has no place within a page.
