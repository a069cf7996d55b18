"""`jaxretr export`: a model, its encoder, or a corpus's embeddings in another library's layout."""

import argparse

from jaxretr.commands import export_options
from jaxretr.commands.model import load_model
from jaxretr.export.folder import check_arguments, check_free, export


def run(args: argparse.Namespace) -> None:
    """Looks at the options and lets the target's module do it."""
    export_options.settle(args)
    if args.to == "scann":
        from jaxretr.commands import export_scann

        export_scann.run(args)
        return
    check_free(args.out)
    if args.to in export_options.INDEXES:
        from jaxretr.commands import export_index

        export_index.run(args)
    elif args.to in export_options.ENCODERS:
        from jaxretr.commands import export_encoder

        export_encoder.run(args)
    else:
        _export_model(args)


def _export_model(args: argparse.Namespace) -> None:
    check_arguments(args.out, args.to, args.layout)
    encoder = load_model(args)
    report = export(encoder, args.out, args.to, layout=args.layout, source=args.model, license=args.license)
    config = encoder.config
    print(
        f"{args.out}: {config.embedding_size} dimensions, questions of {config.max_question_length} and passages of "
        f"{config.max_passage_length} tokens; {report.texts} golden vectors recomputed, largest difference "
        f"{report.difference:.1g}"
    )
