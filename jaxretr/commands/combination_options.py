"""Command-line options of `combine`, `tune` and `fuse`."""

import argparse
import math
from collections.abc import Callable

from jaxretr.commands.parsing import Commands, add_compute, at_least_one

_MODEL = "a run directory, or any folder or hub name of a model with both towers"


def add_commands(commands: Commands) -> None:
    """Adds the three commands."""
    _add_combine(commands)
    _add_tune(commands)
    _add_fuse(commands)


def _add_combine(commands: Commands) -> None:
    add = commands.command(
        "combine",
        "Combine several models into one, as SPAR does: their vectors are concatenated (or added), with weights on the\n"
        "query side; or give a combined model new weights, for which the corpus need not be encoded again.",
        "jaxretr combine runs/dpr runs/lexical --weight 0.7 --out models/spar\n"
        "  jaxretr combine models/spar --weight 1.4 --out models/spar_1.4",
    ).add_argument
    add("models", metavar="MODEL", nargs="+", help=f"the base and further models, each {_MODEL}; or one combined model")
    add(
        *("--weight", "-w"),
        type=_weight,
        action="append",
        required=True,
        dest="weights",
        metavar="W",
        help="query-side weight of the second model; repeat for each further model (the first has weight 1)",
    )
    _add_how(add)
    add(
        "--truncate-dim",
        type=_sizes,
        metavar="N,N",
        help="keep the first N dimensions of each model, for models trained with Matryoshka losses; 'all' keeps all",
    )
    add("--out", metavar="DIR", required=True, help="a new or empty folder, or an older combined model")


def _add_tune(commands: Commands) -> None:
    add = commands.command(
        "tune",
        "Choose the weight of two combined models on dev questions: exact search with a grid of weights in one pass\n"
        "over the corpus. The gain is tested by cross-fitting: each half of the questions with the weight that the\n"
        "other half chose.",
        "jaxretr tune runs/dpr runs/lexical --beir scifact --split dev --metric ndcg@10 --out models/spar\n"
        "  jaxretr tune models/spar --corpus corpus.tsv --queries dev.tsv --answers --grid paper --curve mu.png",
    ).add_argument
    add("models", metavar="MODEL", nargs="+", help=f"the base and the other model, each {_MODEL}; or a combined one")
    add("--corpus", metavar="FILE", help="passages, as for encode")
    add("--queries", metavar="FILE", help="the dev questions, as for search")
    add("--qrels", metavar="FILE", help="judgements in BEIR's or TREC's format")
    add("--answers", action="store_true", help="use the answers in --queries instead, with DPR's matching")
    add("--match", choices=("string", "regex"), default="string", help="how answers are matched (default: %(default)s)")
    add("--beir", metavar="DIR", help="a folder with corpus, queries and qrels, instead of those three")
    add("--split", default="dev", help="of the BEIR folder's qrels (default: %(default)s)")
    add("--metric", metavar="NAME", help="such as recall@100, mrr@10 or acc@20 (default: recall@100, or acc@100)")
    _add_grid(add)
    _add_how(add)
    add("--index-a", metavar="DIR", help="embedding store of the first model, which then need not encode the corpus")
    add("--index-b", metavar="DIR", help="embedding store of the second model")
    add("--out", metavar="DIR", help="write the combined model with the best weight and the curve")
    add("--curve", metavar="PNG", help="draw the curve, and write its values to a .json file of the same name")
    add("--json", action="store_true", help="print JSON instead of a table")
    add_compute(add)


def _add_fuse(commands: Commands) -> None:
    add = commands.command(
        "fuse",
        "Fuse runs by a weighted sum of scores or by reciprocal ranks; tune the weight on a dev run.",
        "jaxretr fuse dense.trec bm25.trec --weight 0.3 --out hybrid.trec\n"
        "  jaxretr fuse dense.trec bm25.trec splade.trec --method rrf --out hybrid.trec\n"
        "  jaxretr fuse dev_dense.trec dev_bm25.trec --tune qrels/dev.tsv --metric recall@100",
    ).add_argument
    add("runs", metavar="RUN", nargs="+", help="two or more runs, in any format that evaluate reads")
    add(
        "--method",
        choices=("interpolation", "rrf"),
        default="interpolation",
        help="s1 + w s2, or the sum of 1/(60 + rank) (default: %(default)s)",
    )
    add(
        *("--weight", "-w"),
        type=_weight,
        action="append",
        dest="weights",
        metavar="W",
        help="weight of the second run's scores; repeat for each further run (the first has weight 1)",
    )
    add(
        "--normalise",
        choices=("none", "minmax"),
        help="how each run's scores of a question are normalised before they are added (default: none)",
    )
    add(
        "--missing",
        choices=("lowest", "zero"),
        action="append",
        help="score of a passage that a run lacks; lowest: the run's lowest score for the question; zero: 0 if the "
        "run's list for the question is shorter than its other lists, as BM25's is if few passages share a word with "
        "it. Give it once for each run (default: lowest for all)",
    )
    add("-k", type=at_least_one, default=100, help="passages a question (default: %(default)s)")
    add("--out", metavar="FUSED", help="the TREC run to write")
    add("--tune", metavar="QRELS", help="judgements used to choose the weight of two runs")
    add("--metric", metavar="NAME", help="the metric to maximise (default: recall@100)")
    _add_grid(add, default=None)


def _add_how(add: Callable[..., argparse.Action]) -> None:
    add(
        "--how",
        choices=("concatenate", "sum"),
        help="how vectors are combined; a sum keeps their size (default: concatenate, or a combined model's own)",
    )


def _add_grid(add: Callable[..., argparse.Action], default: str | None = "log") -> None:
    add(
        "--grid",
        type=_grid,
        default=default,
        metavar="GRID",
        help="log: search for the maximum in steps of 2, then of 2^(1/4); paper: .1, .2, ... 1 and their reciprocals; "
        "or weights separated by commas (default: log)",
    )


def _weight(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"'{text}' is not a weight; give a number of at least 0, for instance 0.7")
    return value


def _grid(text: str) -> str | tuple[float, ...]:
    if text in ("log", "paper"):
        return text
    weights = [_weight(part) for part in text.split(",")]
    if not all(weights):
        raise argparse.ArgumentTypeError(
            "a weight of 0 is the first model alone, which is always measured; leave it out"
        )
    return tuple(sorted(set(weights)))


def _sizes(text: str) -> tuple[int | None, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part == "all" or (part.isdecimal() and int(part)) for part in parts):
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a list of dimensions; give one per model, for instance 256,all"
        )
    return tuple(None if part == "all" else int(part) for part in parts)
