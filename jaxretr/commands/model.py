"""The MODEL argument of the commands."""

import argparse
from pathlib import Path

from jaxretr.errors import UserError
from jaxretr.models.combined_encoder import CombinedEncoder, load_encoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.storage.files import restore


def load_model(args: argparse.Namespace) -> DualEncoder | CombinedEncoder:
    """Loads MODEL with the options that cli.py adds for it."""
    check_finished(args.model)
    return load_encoder(
        args.model,
        passage_path=args.passage_model,
        tokenizer=args.tokenizer,
        pooling=args.pooling,
        dtype=getattr(args, "compute", "float32"),  # `export` has no --compute: it writes what is stored.
        truncate_dim=args.truncate_dim,
    )


def check_finished(model: str) -> None:
    """Raises UserError for the folder of a run that has no model yet."""
    folder = Path(model).expanduser()
    restore(folder / "model")
    if (folder / "checkpoints").is_dir() and not (folder / "model").is_dir():
        raise UserError(f"{folder}: this run has written no model yet; finish it with `jaxretr train`")
