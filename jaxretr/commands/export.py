"""`jaxretr export`: a model in another library's layout."""

import argparse

from jaxretr.commands.model import load_model
from jaxretr.export.folder import check_arguments, export


def run(args: argparse.Namespace) -> None:
    """Loads MODEL, writes the folder, and says what it was checked for."""
    check_arguments(args.out, args.to, args.layout)
    encoder = load_model(args)
    report = export(encoder, args.out, args.to, layout=args.layout, source=args.model, license=args.license)
    config = encoder.config
    print(
        f"{args.out}: {config.embedding_size} dimensions, questions of {config.max_question_length} and passages of "
        f"{config.max_passage_length} tokens; {report.texts} golden vectors recomputed, largest difference "
        f"{report.difference:.1g}"
    )
