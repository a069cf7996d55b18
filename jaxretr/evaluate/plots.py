"""The parts that the plots of reports share: files with reproducible bytes, and curves against a metric's cut."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.evaluate.significance import bootstrap_band
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.storage.files import atomic_write

ENDINGS = (".png", ".pdf", ".svg")

# A file's metadata without the time it was written.
_UNDATED = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
# The most cuts, evenly spaced on a logarithmic axis.
_POINTS = 24
# Draws of questions: the ends of the band vary by 6% of the standard error, less than a line's width.
_RESAMPLES = 2000


def check_ending(path: str | Path) -> None:
    """Raise UsageError unless the path ends in .png, .pdf or .svg."""
    if not str(path).lower().endswith(ENDINGS):
        raise UsageError(f"plot {path}: give a name that ends in {', '.join(ENDINGS)}")


def pyplot() -> Any:
    """Import matplotlib.pyplot with the backend that draws into files.

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
    """Write the figure in the format of the path's ending, and close it."""
    import matplotlib

    form = path.suffix.lower().removeprefix(".")
    with matplotlib.rc_context({"svg.hashsalt": "jaxretr"}), atomic_write(path, "wb") as file:
        figure.savefig(file, dpi=120, format=form, metadata=_UNDATED[form])
    pyplot().close(figure)


def legend(figure: Any, grid: Any, columns: int) -> None:
    """Add a legend below all panels, with the labels of the first."""
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize="small")


def plain(name: str) -> str:
    """Return a name without markup (matplotlib reads formulas between dollars), a long path broken into lines."""
    return name.replace("$", r"\$").replace("/", "/\n" if len(name) > 16 else "/")


# ---- metrics against their cut ---------------------------------------------------------------------------------------


def deepest_cuts(names: Sequence[str]) -> dict[str, int]:
    """The largest cut of each metric that has one: {"recall": 100, ...}.

    Raises:
      UsageError: no metric has a cut.
    """
    deepest: dict[str, int] = {}
    for name in names:
        base, _, cut = name.strip().partition("@")
        if cut:
            deepest[base] = max(deepest.get(base, 0), int(cut))
    if not deepest:
        raise UsageError(
            f"a plot draws metrics against their cut, and {', '.join(names)} has none; name for instance recall@100"
        )
    return deepest


def cuts_to(deepest: int) -> list[int]:
    """The cuts from 1 to `deepest`, ascending, as evenly spaced as integers can be on a logarithmic axis."""
    return sorted({round(math.exp(at)) for at in np.linspace(0, math.log(deepest), _POINTS)})


def band(values: Mapping[str, Mapping[str, float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean and the ends of its 95% bootstrap interval at each cut, float64 [K] each."""
    of_questions = np.array([list(of_cut.values()) for of_cut in values.values()]).T  # [B, K]
    low, high = bootstrap_band(of_questions, resamples=_RESAMPLES)
    return of_questions.mean(axis=0), low, high
