"""Readers of weights and sizes for `combine`, `tune` and `fuse`."""

import argparse
import math


def weight(text: str) -> float:
    """Read a weight."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"'{text}' is not a weight; give a number of at least 0, for instance 0.7")
    return value


def grid(text: str) -> str | tuple[float, ...]:
    """Read a grid of weights: its name, or the weights."""
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
