"""`jaxretr evaluate --plot`: a metric against its cut, for a run and its baselines."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxretr.commands.pictures import plain, pyplot, save
from jaxretr.errors import UsageError, UserError
from jaxretr.evaluate.measuring import Run, Values
from jaxretr.evaluate.report import Measured
from jaxretr.evaluate.significance import bootstrap_band
from jaxretr.tables import shortened

# Cuts at most, evenly spaced on a logarithmic axis.
_POINTS = 24
# Draws of questions: an end of the band wavers by 6% of the standard error, less than a line's width.
_RESAMPLES = 2000


def deepest_cuts(names: Sequence[str]) -> dict[str, int]:
    """Of each metric with a cut, without it, the largest cut: {"recall": 100, ...}.

    Raises:
      UsageError: no metric has one.
    """
    found: dict[str, int] = {}
    for name in names:
        base, _, cut = name.strip().partition("@")
        if cut:
            found[base] = max(found.get(base, 0), int(cut))
    if not found:
        raise UsageError(
            f"--plot draws a metric against its cut, and {', '.join(names)} has none; name for instance recall@100"
        )
    return found


def draw(
    systems: Sequence[Measured], values_of: Callable[[Run, Sequence[str]], Values], names: Sequence[str], path: Path
) -> None:
    """Draws a panel for each metric, with the 95% bootstrap band of the mean around each line.

    Args:
      systems: the run, then the baselines.
      values_of: measures a run by metrics.
      names: metrics; each is drawn from 1 to its largest cut, and at least to 100.
      path: its ending says the format: .png, .pdf or .svg.

    Raises:
      UserError: no run has two passages for a question.
    """
    # Past the longest ranking every line is flat.
    longest = max(len(hits) for system in systems for hits in system.run.values())
    cuts = {base: cuts_to(min(longest, max(100, cut))) for base, cut in deepest_cuts(names).items()}
    if longest < 2:
        raise UserError(f"{systems[0].path}: one passage a question makes no curve; search with a larger -k")
    plt = pyplot()
    figure, grid = plt.subplots(1, len(cuts), figsize=(4.2 * len(cuts), 3.6), squeeze=False, layout="constrained")
    labels = [plain(name) for name in shortened([system.path for system in systems])]
    for axes, (base, ks) in zip(grid[0], cuts.items(), strict=True):
        for number, (system, label) in enumerate(zip(systems, labels, strict=True)):
            values = values_of(system.run, [f"{base}@{k}" for k in ks])
            mean, low, high = band(values)
            axes.plot(ks, mean, color=f"C{number}", label=label, linewidth=1.8 if number == 0 else 1.2)
            axes.fill_between(ks, low, high, color=f"C{number}", alpha=0.18, linewidth=0)
        axes.set_xscale("log")
        ticks = [k for k in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if k <= ks[-1]]
        axes.set_xticks(ticks, [str(k) for k in ticks])
        axes.minorticks_off()
        axes.set(xlabel="k", ylabel=f"{base}@k", xlim=(1, ks[-1]))
        axes.grid(alpha=0.3)
    handles, names_drawn = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, names_drawn, loc="outside lower center", ncols=min(4, len(systems)), fontsize="small")
    save(figure, path)


def cuts_to(deepest: int) -> list[int]:
    """Cuts from 1 to `deepest`, ascending, as even as whole numbers are on a logarithmic axis."""
    return sorted({round(math.exp(at)) for at in np.linspace(0, math.log(deepest), _POINTS)})


def band(values: Mapping[str, Mapping[str, float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean and the ends of its 95% bootstrap interval at each cut, float64 [K] each."""
    of_questions = np.array([list(of_cut.values()) for of_cut in values.values()]).T  # [B, K]
    low, high = bootstrap_band(of_questions, resamples=_RESAMPLES)
    return of_questions.mean(axis=0), low, high
