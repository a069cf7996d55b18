"""The MODEL argument of the commands."""

import argparse
from collections.abc import Callable

from jaxretr.models.combined_encoder import CombinedEncoder, load_encoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.formats.dual_encoder_folder import check_finished


def load_model(args: argparse.Namespace) -> DualEncoder | CombinedEncoder:
    """Loads MODEL with the options that cli.py adds for it."""
    return load_encoder(
        args.model,
        passage_path=args.passage_model,
        tokenizer=args.tokenizer,
        pooling=args.pooling,
        query_prompt=args.query_prompt,
        passage_prompt=args.passage_prompt,
        dtype=getattr(args, "compute", "float32"),  # `export` has no --compute: it writes what is stored.
        truncate_dim=args.truncate_dim,
    )


def model_loader(args: argparse.Namespace) -> Callable[[], DualEncoder | CombinedEncoder]:
    """Checks that MODEL is not an unfinished run, and returns what loads it."""
    check_finished(args.model)
    return lambda: load_model(args)
