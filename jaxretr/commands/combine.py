"""`jaxretr combine`: several models as one, or other weights for a combined one."""

import argparse
from collections.abc import Sequence

from jaxretr.commands.model import check_finished
from jaxretr.config import EncodeDtype
from jaxretr.errors import UsageError, UserError
from jaxretr.models.combined_encoder import CombinedEncoder, load_encoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.formats.combined_folder import check_replaceable


def run(args: argparse.Namespace) -> None:
    """Loads the models and writes them as one."""
    check_replaceable(args.out)
    encoder = load_models(args.models, args.how, args.truncate_dim)
    further = len(encoder.parts) - 1
    if len(args.weights) != further:
        raise UsageError(
            f"{len(args.weights)} weights for {further} models besides the first; give --weight once for each of them"
        )
    encoder = encoder.with_weights([1.0, *args.weights])
    encoder.save(args.out)
    weighted = " + ".join(
        f"{weight:g} {name}" for weight, name in zip(encoder.config.weights, encoder.names, strict=True)
    )
    print(f"{args.out}: {weighted}, {encoder.config.how}, {encoder.config.embedding_size} dimensions")


def load_models(
    models: Sequence[str],
    how: str | None,
    sizes: Sequence[int | None] | None = None,
    compute: EncodeDtype = "float32",
) -> CombinedEncoder:
    """Loads several dual encoders as one with the weights 1, or one combined encoder with its own.

    Args:
      models: as the user named them.
      how: None: as the combined model says, else "concatenate".
      sizes: how many dimensions to keep of each model; None: all of them.
      compute: of the matmuls, as `DualEncoder` takes it.
    """
    for model in models:
        check_finished(model)
    if len(models) == 1:
        encoder = load_encoder(models[0], dtype=compute)
        if not isinstance(encoder, CombinedEncoder):
            raise UsageError(f"{models[0]}: is a single model; name the one to combine it with as well")
        if sizes is not None:
            raise UsageError("--truncate-dim cuts models that are being combined; name them, not the combined one")
        if how in (None, encoder.config.how):
            return encoder
        return CombinedEncoder(encoder.parts, encoder.config.weights, how, names=encoder.names)  # pyright: ignore[reportArgumentType]
    if sizes is not None and len(sizes) != len(models):
        raise UsageError(
            f"--truncate-dim gives {len(sizes)} sizes for {len(models)} models; give one for each, or 'all'"
        )
    parts = []
    for model, size in zip(models, sizes or [None] * len(models), strict=True):
        part = load_encoder(model, truncate_dim=size, dtype=compute)
        if not isinstance(part, DualEncoder):
            raise UserError(f"{model}: is a combined model already; name its parts, {model}/part-0 and so on")
        parts.append(part)
    return CombinedEncoder(parts, [1.0] * len(parts), how or "concatenate", names=models)  # pyright: ignore[reportArgumentType]
