"""`jaxretr bm25`: the lexical baseline as a run."""

import argparse

from jaxretr.cli.parsing import Commands, add_run


def add_commands(commands: Commands) -> None:
    """Add the command."""
    parser = commands.command(
        "bm25",
        "Search a corpus with BM25, the lexical baseline.",
        "jaxretr bm25 --corpus corpus.jsonl --queries queries.jsonl -k 100 --out bm25.trec",
    )
    parser.add_argument("--corpus", metavar="FILE", required=True, help="passages, as for encode")
    add_run(parser)
    add = parser.add_argument
    add("--k1", type=float, default=0.9, help="saturation of repeated words (default: %(default)s)")
    add("--b", type=float, default=0.4, help="length normalisation (default: %(default)s)")
    add("--stemmer", choices=("english", "none"), default="english", help="(default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    """Index the corpus, search, and write the run."""
    from jaxretr.cli.outputs import say_written
    from jaxretr.data.readers import read_corpus, read_questions
    from jaxretr.indexes.bm25.searching import search_bm25
    from jaxretr.runtime.storage.files import check_output

    check_output(args.out)
    questions = read_questions(args.queries, trec_ids=args.format == "trec")
    corpus = read_corpus(args.corpus, trec_ids=args.format == "trec")
    stemmer = None if args.stemmer == "none" else args.stemmer
    found = search_bm25(corpus, queries=questions, k=args.k, k1=args.k1, b=args.b, stemmer=stemmer)
    found.save(args.out, format=args.format, corpus=corpus)
    say_written(args.out, f"{found.num_hits} hits of {len(found)} questions")
