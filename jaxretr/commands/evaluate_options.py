"""Command-line options of `evaluate`, and which of them go together."""

import argparse
from collections.abc import Sequence

from jaxretr.commands.parsing import Commands, add_model, at_least_one, metric_names, names, splits
from jaxretr.commands.pictures import check_ending
from jaxretr.errors import UsageError
from jaxretr.tables import FORMATS

# What belongs to the typos that --typos makes, and what to a comparison with typos of any origin; none of them has a
# default in the parser, so that one that would be ignored is seen.
_OF_MADE_TYPOS = ("draws", "seed", "keyboard", "misspellings")
_OF_TYPOS = ("and_model", "no_bm25")
_NOT_OF_TYPOS = ("suite", "index", "keep", "out")


def add_commands(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.command(
        "evaluate",
        "Measure a run (recall, MRR, nDCG or Acc@k), or a model on a BEIR folder or a suite of them; paired tests with\n"
        "--baseline. With --typos, measure what typos in the questions cost a model, next to BM25 and other models.",
        "jaxretr evaluate --run run.trec --qrels qrels/test.tsv --baseline bm25.trec --plot curves.pdf\n"
        "  jaxretr evaluate --run run.trec --answers questions.tsv --corpus corpus.tsv\n"
        "  jaxretr evaluate runs/art --beir scifact --split test\n"
        "  jaxretr evaluate runs/art --suite beir --out runs/art/beir --format latex\n"
        "  jaxretr evaluate runs/dpr --beir nq --split dev,test --typos --and-model runs/robust --plot typos.png\n"
        "  jaxretr evaluate runs/dpr --beir nq --typos dictionary --typo-queries people=typed.jsonl",
    )
    add_model(parser, optional=True)
    add = parser.add_argument
    add("--run", metavar="RUN", help="a run of search or bm25, or results in MS MARCO's or DPR's format")
    add("--qrels", metavar="FILE", help="judgements in BEIR's or TREC's format")
    add("--answers", metavar="FILE", help="questions with answers: Acc@k by DPR's matching, in the texts of --corpus")
    add("--corpus", metavar="FILE", help="the passages of the run, for --answers and for --baseline bm25")
    add("--queries", metavar="FILE", help="the questions of the run, for --qrels with --baseline bm25")
    add("--match", choices=("string", "regex"), default="string", help="of answers (default: %(default)s)")
    add("--beir", metavar="DIR", help="a folder with corpus, queries and qrels, for MODEL")
    add(
        "--split",
        type=splits,
        default=("test",),
        metavar="NAME",
        help="split of the BEIR folder's qrels; several, separated by commas, with typos; with --suite the first that a "
        "folder has (default: test)",
    )
    add("--suite", metavar="DIR", help="for MODEL: every BEIR folder below DIR, and the average")
    add(
        "--out",
        metavar="DIR",
        help="with --suite: folder for the results of each data set; an interrupted suite resumes there",
    )
    add("--index", metavar="STORE", help="with --beir: the embedding store of its corpus, encoded with MODEL")
    add(
        "--keep",
        metavar="DIR",
        help="with --beir: keep the embeddings of its corpus there and reuse them; an interrupted evaluation resumes "
        "with them",
    )
    add(
        "--baseline",
        metavar="RUN2",
        action="append",
        help="a run to compare with, question by question; bm25 is BM25 over the same corpus (write ./bm25 for a file "
        "of that name); repeat for more; all tests are Holm-corrected together",
    )
    add(
        "--metrics",
        type=metric_names,
        metavar="NAMES",
        help="separated by commas: ndcg, mrr, map, recall, precision, success, recall_cap, holes with @k, rprec, bpref (default: "
        "ndcg@10,mrr@10,recall@100, or acc@1,acc@5,acc@20,acc@100 with --answers)",
    )
    add(
        "--relevance-level",
        type=at_least_one,
        default=1,
        metavar="N",
        help="the lowest grade that counts as relevant, except for ndcg (default: %(default)s)",
    )
    add("--per-query", metavar="FILE", help="write the values of every question to this tab-separated file")
    add(
        "--plot",
        metavar="FILE",
        help="plot the metrics against k for the run and the baselines; with typos, bars of clean queries and of each "
        "kind of typos: a .png, .pdf or .svg",
    )
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--format", choices=FORMATS, help="output format (default: table)")
    forms.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")

    add = parser.add_argument_group("typos: MODEL with the original questions and with typos in them").add_argument
    add(
        "--typos",
        type=names("profile", "dictionary,spacing, or nothing for all"),
        nargs="?",
        const=(),
        metavar="PROFILES",
        help="make typos with these profiles, separated by commas: dictionary, single_word, spacing (default: all)",
    )
    add("--draws", type=at_least_one, metavar="N", help="query variants per question and profile (default: 10)")
    add("--seed", type=int, metavar="N", help="of the typos (default: 0)")
    add(
        "--keyboard",
        choices=("qwerty", "qwertz", "azerty"),
        help="for dictionary and single_word: keyboard layout (default: qwerty)",
    )
    add("--misspellings", metavar="FILE", help="for dictionary, as jaxretr typos reads it (default: English)")
    add(
        "--typo-queries",
        type=_named_file,
        action="append",
        metavar="NAME=FILE",
        help="other questions with typos and the same ids, as one more kind; repeat for another kind, or with the same "
        "NAME for another draw",
    )
    add(
        "--and-model",
        action="append",
        metavar="MODEL2",
        help="another model for the same table, compared with MODEL; repeat for more. It shares MODEL's --compute and "
        "--batch-size",
    )
    add("--no-bm25", action="store_true", default=None, help="leave out BM25, which is measured by default")


def check_baselines(args: argparse.Namespace) -> None:
    """Raises UsageError where a --run is to be compared with BM25 and lacks the texts, or has texts for nothing."""
    bm25 = "bm25" in (args.baseline or ())
    if args.answers is not None:
        if args.queries is not None:
            raise UsageError("--queries is for --qrels; the questions are those of --answers, leave it out")
    elif bm25 and (args.corpus is None or args.queries is None):
        raise UsageError(
            "--baseline bm25 searches the corpus: give --corpus FILE and --queries FILE as well, or write ./bm25 for a "
            "file of that name"
        )
    elif not bm25 and (args.corpus is not None or args.queries is not None):
        option = "--queries" if args.corpus is None else "--corpus"
        raise UsageError(f"{option} is not needed with --qrels, but for --baseline bm25; leave it out")


def check_typos(args: argparse.Namespace) -> None:
    """Raises UsageError where the options for typos do not fit together, or are there without typos."""
    if args.typos and args.model is None:
        raise UsageError(f"--typos took '{','.join(args.typos)}' for its profiles: write MODEL before --typos")
    if args.typos is None:
        _refuse(args, _OF_MADE_TYPOS, "is for the typos that --typos makes: give --typos as well, or leave it out")
    if args.typos is None and not args.typo_queries:
        _refuse(args, _OF_TYPOS, "is for the figures with typos: give --typos or --typo-queries as well")
        if len(args.split) > 1 and args.suite is None:
            raise UsageError(
                f"--split {','.join(args.split)}: name one split; several, by commas, go with typos or --suite only"
            )
        return
    option = "--typo-queries" if args.typos is None else "--typos"
    if args.model is None:
        raise UsageError(f"{option} needs MODEL with --beir DIR: the questions are searched again with typos in them")
    _refuse(args, _NOT_OF_TYPOS, f"does not go with {option}; leave it out")
    if args.format in ("latex", "markdown"):
        raise UsageError(f"--format {args.format}: with {option} there are table and json")
    if args.relevance_level != 1:
        raise UsageError(f"--relevance-level does not go with {option}; leave it out")
    if args.baseline is not None:
        raise UsageError(f"{option} does not go with --baseline, a run of other questions; give --and-model MODEL2")
    if args.plot is not None:
        check_ending("--plot", args.plot)


def _refuse(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} {why}")


def _named_file(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name.strip() and equals and path) or not name.isprintable():
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=FILE; give for instance people=typed.jsonl")
    return name.strip(), path
