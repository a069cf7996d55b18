"""The parts that exports to databases share; a database holds vectors, texts and metadata."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxretr.data.readers import read_questions
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.embeddings.encoding import Encoder, Path_, encode_texts, loaded, name_of
from jaxretr.embeddings.opening import open_store
from jaxretr.exports import folder as model_folder
from jaxretr.indexes.graph_width import GraphOptions
from jaxretr.indexes.recall import Certificate, check_targets
from jaxretr.indexes.searching import check_store
from jaxretr.indexes.source import IndexSource
from jaxretr.runtime.progress import Progress


def export(
    model: Encoder | Path_ | Callable[[], Encoder],
    to: str,
    out: str,
    table: str | None,
    *,
    store: EmbeddingStore | Path_,
    corpus: Path_,
    queries: Path_ | None,
    k: int,
    seed: int,
    target_recall: float | Sequence[float],
    graph: dict[str, int | None],
) -> tuple[Path | str, str, Certificate | None]:
    """Load a store into a database.

    Args:
      model: the encoder, see `jaxretr.export`.
      to: "pgvector" or "lance".
      out: the database's address, or a new folder.
      table: the table in PostgreSQL; None: the one that the address names, or the default.
      store, corpus, queries, k, seed, target_recall: see `jaxretr.export`.
      graph: "m" and "ef_construction", or None for each.

    Returns:
      The place, without a password; a summary of what was written and verified; and the certificate.

    Raises:
      UserError: see `jaxretr.export`.
    """
    targets = check_targets(target_recall)
    place: Any
    if to == "pgvector":
        from jaxretr.indexes.pgvector import build
        from jaxretr.indexes.pgvector.address import Address

        place = Address.parse(out, table)
    else:
        from jaxretr.indexes.lance import build

        place = Path(out).expanduser()
        model_folder.check_free(place)
    store = open_store(store) if isinstance(store, str | Path) else store
    questions = None if queries is None else read_questions(queries)
    encoder = loaded(model)
    check_store(store, encoder, name_of(encoder))
    source = IndexSource.open(store)
    asked = None if questions is None else encode_texts(encoder, questions, None)
    options = GraphOptions(questions=asked, targets=targets, k=k, seed=seed, **graph)
    with Progress(store.meta.rows, "passage", "loaded") as progress:
        summary, certificate = build.export(
            source, encoder, place, corpus=corpus, options=options, advance=progress.advance
        )
    return place.shown if to == "pgvector" else place, summary, certificate


def verify_pgvector(text: str) -> tuple[str, str]:
    """Verify a table; return its address without a password, and a summary of what agrees."""
    from jaxretr.indexes.pgvector import build as pgvector
    from jaxretr.indexes.pgvector.address import Address

    address = Address.parse(text)
    return address.shown, pgvector.verify(address)
