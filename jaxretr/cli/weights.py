"""Options about weights that `combine`, `tune` and `fuse` share."""

import argparse
import math
from collections.abc import Callable

MODEL = "a run directory, or any folder or hub name of a model with both towers"


def add_how(add: Callable[..., argparse.Action]) -> None:
    """Add --how."""
    add(
        "--how",
        choices=("concatenate", "sum"),
        help="how vectors are combined; a sum keeps their size (default: concatenate, or a combined model's own)",
    )


def add_grid(add: Callable[..., argparse.Action], default: str | None = "log") -> None:
    """Add --grid."""
    add(
        "--grid",
        type=_grid_of,
        default=default,
        metavar="GRID",
        help="log: search for the maximum in steps of 2, then of 2^(1/4); paper: .1, .2, ... 1 and their reciprocals; "
        "or weights separated by commas (default: log)",
    )


def weight(text: str) -> float:
    """Read a weight."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"'{text}' is not a weight; give a number of at least 0, for instance 0.7")
    return value


def _grid_of(text: str) -> str | tuple[float, ...]:
    if text in ("log", "paper"):
        return text
    weights = [weight(part) for part in text.split(",")]
    if not all(weights):
        raise argparse.ArgumentTypeError(
            "a weight of 0 is the first model alone, which is always measured; leave it out"
        )
    return tuple(sorted(set(weights)))


def sizes(text: str) -> tuple[int | None, ...]:
    """Read numbers of dimensions, one per model."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part == "all" or (part.isdecimal() and int(part)) for part in parts):
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a list of dimensions; give one per model, for instance 256,all"
        )
    return tuple(None if part == "all" else int(part) for part in parts)
