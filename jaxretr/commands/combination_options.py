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
        "Write several models as one, SPAR's way: their vectors concatenated (or added), with weights on the questions'\n"
        "side; or give a combined model other weights, which needs no new encoding of the corpus.",
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
        help="of the second model's questions, and again for each further one; the first has 1",
    )
    _add_how(add)
    add(
        "--truncate-dim",
        type=_sizes,
        metavar="N,N",
        help="keep the first N dimensions of each model, as Matryoshka models are trained for; 'all' keeps all",
    )
    add("--out", metavar="DIR", required=True, help="new, empty, or an older combined model")


def _add_tune(commands: Commands) -> None:
    add = commands.command(
        "tune",
        "Find the weight of two models' combination on dev questions: a whole grid of weights by full search, in one\n"
        "pass over the corpus. The gain is tested on questions that did not choose the weight: each half of them with\n"
        "the weight that the other half chose.",
        "jaxretr tune runs/dpr runs/lexical --beir scifact --split dev --metric ndcg@10 --out models/spar\n"
        "  jaxretr tune models/spar --corpus corpus.tsv --queries dev.tsv --answers --grid paper --curve mu.png",
    ).add_argument
    add("models", metavar="MODEL", nargs="+", help=f"the base and the other model, each {_MODEL}; or a combined one")
    add("--corpus", metavar="FILE", help="passages, as for encode")
    add("--queries", metavar="FILE", help="the dev questions, as for search")
    add("--qrels", metavar="FILE", help="their judgements, BEIR's or TREC's")
    add("--answers", action="store_true", help="measure by the answers in --queries instead, with DPR's matching")
    add("--match", choices=("string", "regex"), default="string", help="of answers (default: %(default)s)")
    add("--beir", metavar="DIR", help="a folder with corpus, queries and qrels, in place of those three")
    add("--split", default="dev", help="of the BEIR folder's qrels (default: %(default)s)")
    add("--metric", metavar="NAME", help="such as recall@100, mrr@10 or acc@20 (default: recall@100, or acc@100)")
    _add_grid(add)
    _add_how(add)
    add("--index-a", metavar="DIR", help="what encode wrote for the first model, to save the encoding")
    add("--index-b", metavar="DIR", help="the same of the second model")
    add("--out", metavar="DIR", help="write the combined model there, with the best weight and the curve")
    add("--curve", metavar="PNG", help="draw the curve there, and write its numbers beside as .json")
    add("--json", action="store_true", help="print JSON instead of a table")
    add_compute(add)


def _add_fuse(commands: Commands) -> None:
    add = commands.command(
        "fuse",
        "Make one run of several, by a weighted sum of scores or by reciprocal ranks; tune the weight on a dev run.",
        "jaxretr fuse dense.trec bm25.trec --weight 0.3 --out hybrid.trec\n"
        "  jaxretr fuse dense.trec bm25.trec splade.trec --method rrf --out hybrid.trec\n"
        "  jaxretr fuse dev_dense.trec dev_bm25.trec --tune qrels/dev.tsv --metric recall@100",
    ).add_argument
    add("runs", metavar="RUN", nargs="+", help="two or more, in any format of evaluate")
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
        help="of the second run's scores, and again for each further one; the first has 1",
    )
    add(
        "--normalise",
        choices=("none", "minmax"),
        help="of each run's scores of a question before they are added (default: none)",
    )
    add(
        "--missing",
        choices=("lowest", "zero"),
        action="append",
        help="the score of a passage that a run lacks: lowest: the lowest that the run has for the question; zero: 0 "
        "where its list is shorter than its others, as BM25's is where few passages share a word with the question. "
        "Once for each run (default: lowest for all)",
    )
    add("-k", type=at_least_one, default=100, help="passages a question (default: %(default)s)")
    add("--out", metavar="FUSED", help="the TREC run to write")
    add("--tune", metavar="QRELS", help="judgements by which the weight of two runs is chosen")
    add("--metric", metavar="NAME", help="to choose it by (default: recall@100)")
    _add_grid(add, default=None)


def _add_how(add: Callable[..., argparse.Action]) -> None:
    add(
        "--how",
        choices=("concatenate", "sum"),
        help="of the vectors; a sum is as short as they are (default: concatenate, or what a combined model says)",
    )


def _add_grid(add: Callable[..., argparse.Action], default: str | None = "log") -> None:
    add(
        "--grid",
        type=_grid,
        default=default,
        metavar="GRID",
        help="log: wherever the figure is highest, in steps of 2 and then of 2^(1/4); paper: .1, .2, ... 1 and their "
        "reciprocals; or weights by commas (default: log)",
    )


def _weight(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"'{text}' is no weight; give a number from 0, for instance 0.7")
    return value


def _grid(text: str) -> str | tuple[float, ...]:
    if text in ("log", "paper"):
        return text
    weights = [_weight(part) for part in text.split(",")]
    if not all(weights):
        raise argparse.ArgumentTypeError("a weight of 0 is the first one alone, which is always measured; leave it out")
    return tuple(sorted(set(weights)))


def _sizes(text: str) -> tuple[int | None, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part == "all" or (part.isdecimal() and int(part)) for part in parts):
        raise argparse.ArgumentTypeError(f"'{text}' is no list of dimensions; give one a model, for instance 256,all")
    return tuple(None if part == "all" else int(part) for part in parts)
