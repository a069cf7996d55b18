"""Adding and deleting passages of a saved ScaNN index."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxretr.errors import UserError
from jaxretr.search.scann.certificate import Certificate
from jaxretr.search.scann.certificate import table as certificate_table
from jaxretr.search.scann.index import ScannIndex
from jaxretr.search.scann.process import require_scann
from jaxretr.stores.embedding_store import EmbeddingStore
from jaxretr.stores.opening import open_store

log = logging.getLogger(__name__)

# Share of changed passages beyond which the tree no longer fits them.
_REBALANCE_FROM = 0.3


@dataclass(frozen=True)
class Updated:
    """What an update did.

    Attributes:
      folder: the index.
      added, replaced, deleted: numbers of passages.
      passages: how many there are now.
      certificate: the recall measured afterwards.
    """

    folder: Path
    added: int
    replaced: int
    deleted: int
    passages: int
    certificate: Certificate | None

    def __str__(self) -> str:
        table = "" if self.certificate is None else f"{certificate_table(self.certificate)}\n"
        return (
            f"{table}{self.folder}: {self.added} added, {self.replaced} replaced, {self.deleted} deleted; "
            f"{self.passages} passages"
        )


def update(
    folder: str | Path,
    *,
    add: EmbeddingStore | str | Path | None = None,
    delete: Sequence[str] | Path | None = None,
    rebalance: bool = False,
) -> Updated:
    """Deletes, then adds, then measures the recall again; the old folder stays until the new one is complete.

    Args:
      folder: what `ScannIndex.save` or `jaxretr.export(..., to="scann")` wrote.
      add: embeddings of the passages to add; a passage whose id exists replaces the old one.
      delete: ids, or a file with one id per line.
      rebalance: retrain tree and codes and tune again; automatic once 30 percent of the passages have changed.

    Raises:
      UserError: ScaNN does not work here, an id is not in the index, or another model encoded `add`.
    """
    require_scann()
    ids = read_ids(delete) if isinstance(delete, Path) else list(delete or ())
    store = open_store(add) if isinstance(add, str | Path) else add
    folder = Path(folder)
    index = ScannIndex.load(folder)
    if ids:
        index.delete(ids)
    added = replaced = 0
    if store is not None:
        replaced = index.add(store)
        added = store.meta.rows - replaced
    if rebalance or index.changed_share >= _REBALANCE_FROM:
        if not rebalance:
            log.info("%.0f%% of the passages changed since the tree was learnt: rebalancing", 100 * index.changed_share)
        index.rebalance(workdir=folder.expanduser().absolute().parent)
    else:
        index.certify()
    index.save(folder)
    for line in () if index.certificate is None else index.certificate.lines:
        found = line.recalls[0]
        if found.recall < line.target:
            log.warning("recall@%d is %.4f, below %g: rebalance the index", found.k, found.recall, line.target)
    return Updated(folder, added, replaced, len(ids), len(index), index.certificate)


def read_ids(path: Path) -> list[str]:
    """Reads one id per line, exactly as written; skips empty lines."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give a UTF-8 text file with one id a line") from error
    first: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        name = line.removesuffix("\r")
        if name and first.setdefault(name, number) != number:
            raise UserError(f"{path}:{number}: {name!r} stands in line {first[name]} as well; leave one out")
    return list(first)
