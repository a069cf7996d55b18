"""`jaxretr publish`: a model to a repository of the Hugging Face hub."""

import argparse

from jaxretr.cli.parsing import Commands, add_model, given

PUBLISH = "jaxretr.exports.publishing:publish"


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "publish",
        "Upload a model or cross-encoder to the Hugging Face hub: exported for sentence-transformers (or --to), verified, with\n"
        "a card that has the run's metrics and settings. MODEL is then loaded as OWNER/NAME, or OWNER/NAME@REVISION.",
        "jaxretr publish runs/dpr me/dpr-of-my-documents --license apache-2.0 --dry-run\n"
        "  jaxretr publish runs/dpr me/dpr-of-my-documents@v2 --private",
    )
    add_model(parser, encodes=False)
    options = parser.options_of(PUBLISH)
    options.argument("repository", "OWNER/NAME")
    options.add("to", "layout", "license", "private", "message", "dry_run")


def run(args: argparse.Namespace) -> None:
    """Publish, and print the files and the commit's address."""
    from jaxretr.cli.model import load_model
    from jaxretr.exports.publishing import publish
    from jaxretr.models.any_scorer import holds_cross_encoder

    model = args.model if holds_cross_encoder(args.model) else lambda: load_model(args)
    print(publish(model, **given(args, "publish")))
