"""`jaxretr.combine`: several models as one, or other weights for a combined one (SPAR)."""

from collections.abc import Sequence
from pathlib import Path

from jaxretr.config import EncodeDtype
from jaxretr.models.combined_encoder import CombinedEncoder, How, load_encoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.hub.combined_folder import check_replaceable
from jaxretr.runtime.errors import UsageError, UserError, check_list


def combine(
    models: Sequence[str | Path],
    weights: Sequence[float],
    *,
    out: str | Path | None = None,
    how: How | None = None,
    truncate_dims: Sequence[int | None] | None = None,
) -> CombinedEncoder:
    """Combine dual encoders into one whose scores are s_1 + w_2 s_2 + ... (Chen et al. 2022, section 4.2).

    Args:
      models: the base and further models, each a run directory, or any folder or hub name of a model with both towers; or
        one combined model. Given other weights, its corpus need not be encoded again.
      weights: query-side weight of each model but the first, whose weight is 1.
      out: a new or empty folder, or an older combined model, to save the model to.
      how: how vectors are combined; a sum keeps their size; by default concatenate, or a combined model's own.
      truncate_dims: keep the first dimensions of each model, for models trained with Matryoshka losses; 'all' (None) keeps
        all.

    Raises:
      UsageError: the numbers of models, weights and dimensions do not fit.
      UserError: a model cannot be read or combined, or `out` cannot be replaced.
    """
    for name, values in (("models", models), ("weights", weights), ("truncate_dims", truncate_dims or ())):
        check_list(name, values)
    if out is not None:
        check_replaceable(out)
    encoder = load_models(models, how, truncate_dims)
    further = len(encoder.parts) - 1
    if len(weights) != further:
        raise UsageError(
            f"{len(weights)} weights for {further} models besides the first; give one for each of them as weights="
        )
    encoder = encoder.with_weights([1.0, *weights])
    if out is not None:
        encoder.save(out)
    return encoder


def load_models(
    models: Sequence[str | Path],
    how: str | None,
    sizes: Sequence[int | None] | None = None,
    dtype: EncodeDtype = "float32",
) -> CombinedEncoder:
    """Load several dual encoders as one with the weights 1, or one combined encoder with its own.

    Args:
      how: "concatenate" or "sum"; None: that of the combined model, otherwise "concatenate".
      sizes: number of dimensions to keep of each model; None: all.
    """
    if len(models) == 1:
        encoder = load_encoder(models[0], dtype=dtype)
        if not isinstance(encoder, CombinedEncoder):
            raise UsageError(f"{models[0]}: is a single model; name the one to combine it with as well")
        if sizes is not None:
            raise UsageError("truncate_dims= cuts models that are being combined; name them, not the combined one")
        if how in (None, encoder.config.how):
            return encoder
        return CombinedEncoder(encoder.parts, encoder.config.weights, how, names=encoder.names)  # pyright: ignore[reportArgumentType]
    if sizes is not None and len(sizes) != len(models):
        raise UsageError(
            f"truncate_dims= gives {len(sizes)} sizes for {len(models)} models; give one for each, or 'all'"
        )
    parts = []
    for model, size in zip(models, sizes or [None] * len(models), strict=True):
        part = load_encoder(model, truncate_dim=size, dtype=dtype)
        if not isinstance(part, DualEncoder):
            raise UserError(f"{model}: is a combined model already; name its parts, {model}/part-0 and so on")
        parts.append(part)
    return CombinedEncoder(parts, [1.0] * len(parts), how or "concatenate", names=[str(model) for model in models])  # pyright: ignore[reportArgumentType]
