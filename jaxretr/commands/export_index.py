"""`jaxretr export --to vertex|pyserini|faiss`: the vectors of a corpus for another library."""

import argparse

from jaxretr.commands.model import load_model
from jaxretr.data.readers import read_questions
from jaxretr.export.index_source import IndexSource
from jaxretr.progress import Progress
from jaxretr.search.searching import check_store
from jaxretr.stores.encoding import encode_texts
from jaxretr.stores.opening import open_store


def run(args: argparse.Namespace) -> None:
    """Checks that MODEL made the store, and writes the folder."""
    # Everything that can be wrong with the input is found before the model is loaded.
    store = open_store(args.index)
    questions = None if args.queries is None else read_questions(args.queries)
    encoder = load_model(args)
    check_store(store, encoder, args.model)
    source = IndexSource.open(store)
    asked = None if questions is None else encode_texts(encoder, questions, None)
    with Progress(store.meta.rows, "passage", "exported") as progress:
        if args.to == "vertex":
            from jaxretr.export import vertex
            from jaxretr.export.passage_fields import VertexFields

            fields = None if args.corpus is None else VertexFields(args.restricts or (), args.crowding)
            said = vertex.export(
                *(source, encoder, args.out),
                corpus=args.corpus,
                fields=fields,
                since=args.since,
                advance=progress.advance,
            )
        elif args.to == "pyserini":
            from jaxretr.export import pyserini

            said = pyserini.export(source, encoder, args.out, corpus=args.corpus, advance=progress.advance)
        else:
            from jaxretr.export import faiss_index

            said = faiss_index.export(
                *(source, encoder, args.out, args.faiss_kind),
                questions=asked,
                k=args.k,
                seed=args.seed,
                advance=progress.advance,
            )
    print(f"{args.out}: {said}")
