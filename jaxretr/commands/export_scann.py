"""`jaxretr export MODEL --to scann --index STORE`: a ScaNN index with a recall certificate."""

import argparse
from pathlib import Path

from jaxretr.commands.model import load_model
from jaxretr.data.readers import read_questions
from jaxretr.progress import Progress
from jaxretr.search.scann.folder import check_target
from jaxretr.search.scann.index import ScannIndex
from jaxretr.search.scann.process import require_scann
from jaxretr.search.searching import check_store
from jaxretr.stores.encoding import encode_texts
from jaxretr.stores.opening import open_store


def run(args: argparse.Namespace) -> None:
    """Builds, tunes and certifies the index of a store, and prints the certificate."""
    # Everything that can be wrong with the input is found before the model is loaded.
    out = check_target(args.out)
    require_scann()
    store = open_store(args.index)
    questions = None if args.queries is None else read_questions(args.queries)
    encoder = load_model(args)
    check_store(store, encoder, args.model)
    embeddings = None if questions is None else encode_texts(encoder, questions, None)
    with Progress(store.meta.rows, "passage", "hashed") as progress:
        index = ScannIndex.build(
            store,
            target_recall=args.target_recall,
            k=args.k,
            questions=embeddings,
            train_size=args.train_size,
            seed=args.seed,
            # Beside the result: large files, and one file system.
            workdir=_beside(out),
            advance=progress.advance,
        )
    index.save(out)
    print_certificate(index)
    print(f"{out}: {len(index)} passages")


def print_certificate(index: ScannIndex) -> None:
    """What was measured, for people."""
    from jaxretr.search.scann.certificate import table

    if index.certificate is not None:
        print(table(index.certificate))


def _beside(folder: Path) -> Path:
    parent = folder.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    return parent
