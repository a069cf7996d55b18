"""Bars of what typos cost: clean against each kind, a group for each system."""

from pathlib import Path

from jaxretr.commands.pictures import plain, pyplot, save
from jaxretr.commands.typo_report import CLEAN, Report
from jaxretr.tables import shortened


def draw(report: Report, path: Path) -> None:
    """Draws a panel for each split and metric; the standard deviation over the draws stands on the bars.

    Args:
      report: the figures.
      path: its ending says the format: .png, .pdf or .svg.
    """
    plt = pyplot()
    splits = report.splits
    names = list(next(iter(splits.values())).metrics)
    systems = list(next(iter(splits.values())).metrics[names[0]].clean)
    kinds = [CLEAN, *next(iter(splits.values())).kinds]
    size = (max(4.0, 1.2 + 0.3 * len(systems) * (len(kinds) + 1)) * len(names), 3.6 * len(splits) + 0.4)
    figure, grid = plt.subplots(len(splits), len(names), figsize=size, squeeze=False, layout="constrained")
    for row, (split, figures) in zip(grid, splits.items(), strict=True):
        for axes, (metric, of_metric) in zip(row, figures.metrics.items(), strict=True):
            for place, kind in enumerate(kinds):
                means, deviations = [], []
                for system in systems:
                    if kind == CLEAN:
                        means.append(of_metric.clean[system])
                        deviations.append(float("nan"))  # Which draws nothing.
                    else:
                        found = of_metric.losses[system][kind]
                        means.append(found.comparison.mean_a)
                        deviations.append(found.deviation)
                at = [group + (place - (len(kinds) - 1) / 2) * 0.8 / len(kinds) for group in range(len(systems))]
                colour = "0.35" if kind == CLEAN else f"C{place - 1}"
                axes.bar(at, means, 0.8 / len(kinds), yerr=deviations, capsize=2, color=colour, label=plain(kind))
            axes.set_xticks(range(len(systems)), [plain(name) for name in shortened(systems)], fontsize="small")
            axes.set(ylabel=metric, title=plain(f"{split}, {figures.questions} questions"), ylim=(0, None))
            axes.grid(axis="y", alpha=0.3)
            axes.set_axisbelow(True)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(kinds), fontsize="small")
    save(figure, path)
