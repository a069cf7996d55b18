"""The kind of index that `jaxretr export --to scann` writes: certified approximate search by ScaNN or FAISS."""

import numpy as np

from jaxretr.indexes.certified.index import ScannIndex
from jaxretr.indexes.certified.upkeep import verify as verify
from jaxretr.indexes.checks import check_model
from jaxretr.indexes.exact import search_blocks
from jaxretr.indexes.filters import FilterOptions, Filters
from jaxretr.indexes.index import Opening, SearchOptions
from jaxretr.indexes.read_only import ReadOnlyIndex, ScoredIds
from jaxretr.indexes.recall import as_dict
from jaxretr.runtime.parallel import memory


def open(place: str, opening: Opening) -> ReadOnlyIndex:
    """Open a folder; where its engine does not work it is searched exactly, with a warning.

    Raises:
      UserError: it is damaged, or another model made it.
    """
    return as_index(ScannIndex.load(place), opening, place)


def as_index(index: ScannIndex, opening: Opening, where: str) -> ReadOnlyIndex:
    """A `ScannIndex` as an `Index`; `where` is its name in messages.

    Raises:
      UserError: another model made it.
    """
    facts = index.facts
    check_model(where, facts.dim, facts.model, facts.model_fingerprint, opening.encoder)
    size = len(index) * facts.code_size
    memory.announce(f"{where}: an approximate index of {len(index)} passages of {facts.dim} dimensions", size)
    names = index.rows.ids
    ids = Filters(len(index), names)

    def search(vectors: np.ndarray, k: int, options: SearchOptions, filters: FilterOptions) -> ScoredIds:
        mask = ids.mask(**filters)
        if options.exact and (mask is None or mask.any()):
            scores, rows = search_blocks(index.rows.vector_blocks(), vectors, k, allowed=mask, source=where)
        else:
            scores, rows = index.search_rows(vectors, k, target_recall=options.target_recall, allowed=mask)
        return scores, [[names[row] for row in question_rows] for question_rows in rows.tolist()]

    return ReadOnlyIndex(
        names,
        facts.dim,
        opening,
        search=search,
        rows=lambda rows: np.array([index.rows.vector(row) for row in rows], np.float32).reshape(-1, facts.dim),
        facts={
            "engine": facts.engine,
            "bytes": size,
            "model": facts.model,
            "model_fingerprint": facts.model_fingerprint,
            "targets": [setting.target for setting in facts.settings],
            "certificate": None if index.certificate is None else as_dict(index.certificate),
        },
    )
