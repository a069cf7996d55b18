"""`jaxretr export --to onnx|stablehlo`: the towers of a model as programs that run without this package."""

import argparse

from jaxretr.commands.model import load_model


def run(args: argparse.Namespace) -> None:
    """Loads MODEL and writes the folder."""
    encoder = load_model(args)
    if args.to == "onnx":
        from jaxretr.export.onnx_encoder import export
    else:
        from jaxretr.export.stablehlo import export
    print(f"{args.out}: {export(encoder, args.out, side=args.side, source=str(args.model))}")
