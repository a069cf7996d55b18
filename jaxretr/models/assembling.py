"""`jaxretr.assemble`: a relevance module in the encoder of a domain, as one model (DDR)."""

import dataclasses
from pathlib import Path

from jaxretr.config import Pooling
from jaxretr.models.adapter import Adapter
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.hub.dual_encoder_folder import check_finished, check_new_model
from jaxretr.runtime.errors import UsageError


def assemble(
    rem: str | Path,
    dam: str | Path,
    *,
    out: str | Path | None = None,
    pooling: Pooling | None = None,
    normalise: bool = False,
) -> DualEncoder:
    """Insert a relevance module (REM) into the encoder of a domain (DAM); the result is an ordinary model.

    Args:
      rem: adapters: a run that trained them, a model that contains them, or a folder of adapters, also in PEFT's or
        adapter-transformers' layout.
      dam: the domain's encoder: a masked language modelling run, or a folder or hub name of a BERT.
      out: a new or empty folder, or an older model, to save the model to.
      pooling: pooling for adapters in other layouts, which do not state it; by default mean, as in DDR.
      normalise: normalise embeddings to unit length, for the same adapters, as DDR does for Chinese.

    Raises:
      UserError: one of the two cannot be read, or they do not fit together.
      UsageError: `pooling` or `normalise` for adapters that state them.
    """
    for part in (rem, dam):
        check_finished(part)
    if out is not None:
        check_new_model(out, rem, dam)
    domain = DualEncoder.bare(dam)
    adapter = Adapter.from_pretrained(rem, backbone=domain.config.backbone)
    if adapter.encoder is None:
        settings = dataclasses.replace(domain.config, pooling=pooling or "mean", normalise=normalise)
        adapter = dataclasses.replace(adapter, encoder=dataclasses.replace(settings, adapter=adapter.shape))
    elif pooling is not None or normalise:
        raise UsageError(f"{rem}: states its pooling and normalisation; leave pooling= and normalise= out")
    model = adapter.put_into(domain)
    if out is not None:
        model.save(out)
    return model
