"""`jaxretr assemble`: a relevance module and a domain's encoder as one model."""

import argparse
import dataclasses

from jaxretr.commands.model import check_finished
from jaxretr.errors import UsageError
from jaxretr.models.adapter import Adapter
from jaxretr.models.dual_encoder import DualEncoder


def run(args: argparse.Namespace) -> None:
    """Loads both parts and writes the model."""
    for part in (args.rem, args.dam):
        check_finished(part)
    domain = DualEncoder.from_pretrained(args.dam)
    adapter = Adapter.from_pretrained(args.rem, bert=domain.config.bert)
    if adapter.encoder is None:
        settings = dataclasses.replace(domain.config, pooling=args.pooling or "mean", normalise=args.normalise)
        adapter = dataclasses.replace(adapter, encoder=dataclasses.replace(settings, adapter=adapter.shape))
    elif args.pooling is not None or args.normalise:
        raise UsageError(f"{args.rem}: says how it pools and normalises; leave --pooling and --normalise out")
    model = adapter.put_into(domain)
    model.save(args.out)
    config = model.config
    print(
        f"{args.out}: {adapter.size:,} parameters of adapters in the encoder of {args.dam}, {config.pooling} pooling, "
        f"{config.embedding_size} dimensions"
    )
