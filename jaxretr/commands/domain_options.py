"""Command-line options of `assemble` and `adapt`."""

from typing import get_args

from jaxretr.commands.parsing import Commands, at_least_one
from jaxretr.config import EncodeDtype


def add_commands(commands: Commands) -> None:
    """Adds the two commands."""
    _add_assemble(commands)
    _add_adapt(commands)


def _add_assemble(commands: Commands) -> None:
    add = commands.command(
        "assemble",
        "Put a relevance module into the encoder of a domain (DDR): the result is a model like any other.",
        "jaxretr assemble --rem runs/rem --dam runs/medical_dam --out models/medical\n"
        "  jaxretr assemble --rem peft_folder --dam bert-base-uncased --pooling mean --out models/m",
    ).add_argument
    add(
        "--rem",
        metavar="R",
        required=True,
        help="adapters: a run that trained them, a model that has them, a folder of adapters, of PEFT or "
        "adapter-transformers",
    )
    add(
        "--dam",
        metavar="D",
        required=True,
        help="the domain's encoder: a run of masked language modelling, or any folder or hub name of a BERT",
    )
    add("--out", metavar="DIR", required=True, help="new, empty, or an older model")
    add(
        "--pooling",
        choices=("cls", "mean"),
        help="of adapters in the layouts of others, which do not tell (default there: mean, as DDR pools)",
    )
    add(
        "--normalise",
        action="store_true",
        help="of these too: divide embeddings by their length, as DDR does for Chinese",
    )


def _add_adapt(commands: Commands) -> None:
    parser = commands.command(
        "adapt",
        "Adapt a model to a corpus without any judgements (DDR): its encoder goes on with masked language modelling on\n"
        "the corpus, the relevance module stays, and the corpus is encoded; with a report of before and after. An\n"
        "interrupted adaptation goes on where it was.",
        "jaxretr adapt runs/rem --corpus medquad --out models/medical --steps 2000",
    )
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        help="a model whose adapters were trained apart (encoder.adapter); others with a warning",
    )
    add("--corpus", metavar="FILE", required=True, help="passages, as for encode; of a BEIR folder also its questions")
    add("--out", metavar="DIR", required=True, help="dam/ (the encoder), model/, embeddings/ and report.json go there")
    add("--steps", type=at_least_one, default=2000, metavar="N", help="the paper has 20000 (default: %(default)s)")
    add("--batch-size", type=at_least_one, default=64, metavar="N", help="the paper has 512 (default: %(default)s)")
    add("--max-length", type=at_least_one, default=190, metavar="N", help="tokens of a window (default: %(default)s)")
    add("--learning-rate", type=float, default=2e-5, metavar="R", help="(default: %(default)s)")
    add("--dropout", type=float, default=0.1, metavar="P", help="(default: %(default)s)")
    add(
        "--chunk",
        type=at_least_one,
        default=16,
        metavar="N",
        help="rows that a device takes at once (default: %(default)s)",
    )
    add(
        "--head-steps",
        type=at_least_one,
        default=1000,
        metavar="N",
        help="for a model without a head of masked language modelling: train one first (default: %(default)s)",
    )
    add(
        "--held-out",
        type=at_least_one,
        metavar="N",
        help="passages for the perplexity (default: 1000, at most a tenth)",
    )
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add("--queries", metavar="FILE", help="questions for the report (default: the BEIR folder's)")
    add("--qrels", metavar="FILE", help="their judgements (default: the BEIR folder's of --split)")
    add("--split", default="test", help="of the BEIR folder's qrels (default: %(default)s)")
    add(
        "--compute",
        choices=get_args(EncodeDtype),
        default="float32",
        help="of the matmuls; auto: bfloat16 where this machine is faster at it (default: %(default)s)",
    )
