"""The models that commands load: MODEL, and scorers."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from jaxretr.cli.parsing import given
from jaxretr.runtime.errors import UsageError

if TYPE_CHECKING:
    from jaxretr.models.any_scorer import Scorer
    from jaxretr.models.combined_encoder import CombinedEncoder
    from jaxretr.models.dual_encoder import DualEncoder


def load_model(args: argparse.Namespace) -> "DualEncoder | CombinedEncoder":
    """Load MODEL with the options of `parsing.add_model`."""
    from jaxretr.models.combined_encoder import load_encoder

    return load_encoder(args.model, **given(args, "DualEncoder.from_pretrained"))


def model_loader(args: argparse.Namespace) -> "Callable[[], DualEncoder | CombinedEncoder]":
    """Check that MODEL is not an unfinished run, and return the function that loads it."""
    from jaxretr.models.hub.dual_encoder_folder import check_finished

    check_finished(args.model)
    return lambda: load_model(args)


def scorer_loader(args: argparse.Namespace, name: str, *others: str) -> "Callable[[], Scorer] | None":
    """Return the function that loads the scorer that --NAME names; None without it.

    Args:
      name: its option.
      others: further options that have no effect without it.

    Raises:
      UsageError: an option of the scorer without --NAME, where it would be ignored.
    """
    path = getattr(args, name)
    if path is None:
        for option in (f"{name}_kind", f"{name}_max_length", *others):
            if getattr(args, option) is not None:
                raise UsageError(
                    f"--{option.replace('_', '-')} is for --{name} SCORER: give that as well, or leave it out"
                )
        return None

    def load() -> "Scorer":
        from jaxretr.models.any_scorer import load_scorer

        dtype = "auto" if args.compute in (None, "int8") else args.compute  # int8 is for encoders
        return load_scorer(path, dtype=dtype, **given(args, "load_scorer"))

    return load
