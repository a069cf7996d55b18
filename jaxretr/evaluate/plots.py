"""Plots of reports: metrics against their cut, and bars of what typos cost. The same report gives the same bytes."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxretr.errors import UsageError, UserError
from jaxretr.evaluate.significance import bootstrap_band
from jaxretr.storage.files import atomic_write
from jaxretr.tables import shortened

if TYPE_CHECKING:
    from jaxretr.evaluate.report import Report
    from jaxretr.evaluate.typo_report import TypoReport

ENDINGS = (".png", ".pdf", ".svg")

# A file's metadata without the time it was written.
_UNDATED = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
# Cuts at most, evenly spaced on a logarithmic axis.
_POINTS = 24
# Draws of questions: the ends of the band vary by 6% of the standard error, less than a line's width.
_RESAMPLES = 2000


def check_ending(path: str | Path) -> None:
    """Raises UsageError unless the path ends in .png, .pdf or .svg."""
    if not str(path).lower().endswith(ENDINGS):
        raise UsageError(f"plot {path}: give a name that ends in {', '.join(ENDINGS)}")


def pyplot() -> Any:
    """matplotlib.pyplot with the backend that draws into files.

    Raises:
      UserError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise UserError(f"plots need matplotlib ({error}); run: pip install matplotlib") from error

    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def save(figure: Any, path: Path) -> None:
    """Writes the figure in the format of the path's ending, and closes it."""
    import matplotlib

    form = path.suffix.lower().removeprefix(".")
    with matplotlib.rc_context({"svg.hashsalt": "jaxretr"}), atomic_write(path, "wb") as file:
        figure.savefig(file, dpi=120, format=form, metadata=_UNDATED[form])
    pyplot().close(figure)


def plain(name: str) -> str:
    """A name without markup (matplotlib reads formulas between dollars), a long path broken into lines."""
    return name.replace("$", r"\$").replace("/", "/\n" if len(name) > 16 else "/")


# ---- metrics against their cut ---------------------------------------------------------------------------------------


def deepest_cuts(names: Sequence[str]) -> dict[str, int]:
    """The largest cut of each metric that has one: {"recall": 100, ...}.

    Raises:
      UsageError: no metric has a cut.
    """
    found: dict[str, int] = {}
    for name in names:
        base, _, cut = name.strip().partition("@")
        if cut:
            found[base] = max(found.get(base, 0), int(cut))
    if not found:
        raise UsageError(
            f"a plot draws metrics against their cut, and {', '.join(names)} has none; name for instance recall@100"
        )
    return found


def draw_curves(report: "Report", path: Path) -> None:
    """Draws a panel for each metric with a cut, with the 95% bootstrap band of the mean around each line.

    Each metric is drawn from 1 to its largest cut, and at least to 100.

    Args:
      report: the metrics of a run and its baselines.
      path: a .png, .pdf or .svg.

    Raises:
      UsageError: no metric has a cut, or another ending.
      UserError: no run has two passages for a question.
    """
    check_ending(path)
    # Past the longest ranking every line is flat.
    longest = max(len(hits) for system in report.systems for hits in system.run.values())
    cuts = {base: cuts_to(min(longest, max(100, cut))) for base, cut in deepest_cuts(report.metrics).items()}
    if longest < 2:
        raise UserError(f"{report.systems[0].path}: one passage per question makes no curve; search with a larger -k")
    plt = pyplot()
    figure, grid = plt.subplots(1, len(cuts), figsize=(4.2 * len(cuts), 3.6), squeeze=False, layout="constrained")
    labels = [plain(name) for name in report.names]
    for axes, (base, ks) in zip(grid[0], cuts.items(), strict=True):
        for number, (system, label) in enumerate(zip(report.systems, labels, strict=True)):
            mean, low, high = band(report.measure(system.run, [f"{base}@{k}" for k in ks], "the run"))
            axes.plot(ks, mean, color=f"C{number}", label=label, linewidth=1.8 if number == 0 else 1.2)
            axes.fill_between(ks, low, high, color=f"C{number}", alpha=0.18, linewidth=0)
        axes.set_xscale("log")
        ticks = [k for k in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if k <= ks[-1]]
        axes.set_xticks(ticks, [str(k) for k in ticks])
        axes.minorticks_off()
        axes.set(xlabel="k", ylabel=f"{base}@k", xlim=(1, ks[-1]))
        axes.grid(alpha=0.3)
    handles, drawn = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, drawn, loc="outside lower center", ncols=min(4, len(labels)), fontsize="small")
    save(figure, path)


def cuts_to(deepest: int) -> list[int]:
    """Cuts from 1 to `deepest`, ascending, as evenly spaced as integers can be on a logarithmic axis."""
    return sorted({round(math.exp(at)) for at in np.linspace(0, math.log(deepest), _POINTS)})


def band(values: Mapping[str, Mapping[str, float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean and the ends of its 95% bootstrap interval at each cut, float64 [K] each."""
    of_questions = np.array([list(of_cut.values()) for of_cut in values.values()]).T  # [B, K]
    low, high = bootstrap_band(of_questions, resamples=_RESAMPLES)
    return of_questions.mean(axis=0), low, high


# ---- what typos cost -------------------------------------------------------------------------------------------------


def draw_typos(report: "TypoReport", path: Path) -> None:
    """Draws a panel for each split and metric: for each system a bar of clean questions and one of each kind of typos.

    Error bars show the standard deviation over the draws.

    Args:
      report: the metrics with and without typos.
      path: a .png, .pdf or .svg.

    Raises:
      UsageError: another ending.
    """
    check_ending(path)
    plt = pyplot()
    splits = report.splits
    first = next(iter(splits.values()))
    systems = list(next(iter(first.metrics.values())).clean)
    bars = 1 + len(first.kinds)
    size = (max(4.0, 1.2 + 0.3 * len(systems) * (bars + 1)) * len(first.metrics), 3.6 * len(splits) + 0.4)
    figure, grid = plt.subplots(len(splits), len(first.metrics), figsize=size, squeeze=False, layout="constrained")
    for row, (name, split) in zip(grid, splits.items(), strict=True):
        for axes, (metric, of_metric) in zip(row, split.metrics.items(), strict=True):
            # NaN: without draws there is no error bar.
            heights = {"clean": [(of_metric.clean[system], math.nan) for system in systems]}
            for kind in split.kinds:
                found = [of_metric.losses[system][kind] for system in systems]
                heights[kind] = [(each.comparison.mean_a, each.deviation) for each in found]
            for place, (kind, of_systems) in enumerate(heights.items()):
                means, deviations = zip(*of_systems, strict=True)
                at = [group + (place - (bars - 1) / 2) * 0.8 / bars for group in range(len(systems))]
                colour = f"C{place - 1}" if place else "0.35"
                axes.bar(at, means, 0.8 / bars, yerr=deviations, capsize=2, color=colour, label=plain(kind))
            axes.set_xticks(range(len(systems)), [plain(name) for name in shortened(systems)], fontsize="small")
            axes.set(ylabel=metric, title=plain(f"{name}, {split.questions} questions"), ylim=(0, None))
            axes.grid(axis="y", alpha=0.3)
            axes.set_axisbelow(True)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=bars, fontsize="small")
    save(figure, path)
