"""`jaxretr bm25`: the lexical baseline as a run."""

import argparse

from jaxretr.cli.parsing import Commands, add_run, check_documents, given


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "bm25",
        "Search a corpus with BM25, the lexical baseline.",
        "jaxretr bm25 --corpus corpus.jsonl --queries queries.jsonl -k 100 --out bm25.trec",
    )
    options = parser.options_of("jaxretr.indexes.bm25.searching:search_bm25")
    options.add("corpus")
    add_run(parser, options)
    options.add("k1", "b", "stemmer")


def run(args: argparse.Namespace) -> None:
    """Index the corpus, search, and write the run."""
    from jaxretr.cli.outputs import say_written
    from jaxretr.data.readers import read_corpus, read_questions
    from jaxretr.indexes.bm25.searching import search_bm25
    from jaxretr.runtime.storage.files import check_output

    check_documents(args)
    check_output(args.out, args.corpus, args.queries)
    questions = read_questions(args.queries, trec_ids=args.format == "trec")
    corpus = read_corpus(args.corpus, trec_ids=args.format == "trec")
    found = search_bm25(**given(args) | {"corpus": corpus, "queries": questions})
    found = found.of_documents() if args.documents else found
    found.save(args.out, format=args.format, corpus=corpus)
    say_written(args.out, f"{found.num_hits} hits of {len(found)} questions")
