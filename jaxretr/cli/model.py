"""The MODEL argument of the commands."""

import argparse
from collections.abc import Callable

from jaxretr.cli.parsing import OF_MODEL
from jaxretr.models.combined_encoder import CombinedEncoder, load_encoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.hub.dual_encoder_folder import check_finished


def load_model(args: argparse.Namespace) -> DualEncoder | CombinedEncoder:
    """Load MODEL with the options that cli.py adds for it."""
    given = {name: getattr(args, name) for name in OF_MODEL}
    return load_encoder(
        args.model,
        passage_path=given.pop("passage_model"),
        **given,
        dtype=getattr(args, "compute", "float32"),  # `export` has no --compute: it writes the stored numbers.
    )


def model_loader(args: argparse.Namespace) -> Callable[[], DualEncoder | CombinedEncoder]:
    """Check that MODEL is not an unfinished run, and return the function that loads it."""
    check_finished(args.model)
    return lambda: load_model(args)
