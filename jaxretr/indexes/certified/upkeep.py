"""Upkeep of a saved `ScannIndex`: adding and deleting passages, and verifying that it still gives what was certified."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxretr.data.text_rows import listed_ids
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.embeddings.opening import open_store
from jaxretr.indexes.certified import filtering, layout, measure
from jaxretr.indexes.certified.index import ScannIndex
from jaxretr.indexes.measuring import DEPTHS
from jaxretr.indexes.question_sets import Questions, with_exact
from jaxretr.indexes.recall import Certificate
from jaxretr.indexes.recall import table as certificate_table
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage import manifest

log = logging.getLogger(__name__)

# Share of changed passages beyond which the tree no longer fits them.
_REBALANCE_FROM = 0.3

# Processors differ in the last bits of approximate scores, so a candidate at the edge may change.
_RECALL_TOLERANCE = 0.002

# Certification questions whose neighbours `verify` computes again, and the tolerance of their scores: some roundings.
_GOLDEN = 16
_SCORE_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Updated:
    """The outcome of `update`: what changed in a saved index, and its new certificate.

    Attributes:
      folder: the index.
      added, replaced, deleted: the number of passages of each.
      passages: the number of passages afterwards.
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
    """Delete, then add, then measure the recall again; the old folder stays until the new one is complete.

    Args:
      folder: a folder that `ScannIndex.save` or `jaxretr.export(..., to="scann")` wrote.
      add: embeddings of the passages to add; a passage whose id exists replaces the old one.
      delete: ids, or a file with one id per line.
      rebalance: retrain tree and codes and tune again; automatic once 30 percent of the passages have changed.

    Raises:
      UserError: the index's engine does not work here, an id is not in the index, or another model encoded `add`.
    """
    folder = Path(folder).expanduser()
    layout.read_facts(folder)[0].require_engine()
    ids = read_ids(delete) if isinstance(delete, Path) else list(delete or ())
    store = open_store(add) if isinstance(add, str | Path) else add
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
        index.rebalance(workdir=folder.absolute().parent)
    else:
        index.certify()
    index.save(folder)
    for line in () if index.certificate is None else index.certificate.lines:
        recall = line.recalls[0]
        if recall.recall < line.target:
            log.warning("recall@%d is %.4f, below %g: rebalance the index", recall.k, recall.recall, line.target)
    for line in () if index.certificate is None else index.certificate.filters or ():
        least = min(recall.recall for recall in line.recalls)
        if least < line.target:
            log.warning(
                "recall@%d with %.1f%% of the passages allowed is %.4f, below %g: rebalance the index",
                line.random.k,
                100 * line.share,
                least,
                line.target,
            )
    return Updated(folder, added, replaced, len(ids), len(index), index.certificate)


def read_ids(path: Path) -> list[str]:
    """Read one id per line, exactly as written; skip empty lines."""
    first: dict[str, int] = {}
    for number, name in listed_ids(path):
        if first.setdefault(name, number) != number:
            raise UserError(f"{path}:{number}: {name!r} is on line {first[name]} as well; remove one")
    return list(first)


# ---- verifying -------------------------------------------------------------------------------------------------------


def verify(folder: str | Path) -> str:
    """Compare every file with its sha256, and measure the certificate's recall again; return a line that says what agrees.

    Raises:
      UserError: something differs, or its engine does not work here, so that the recall cannot be measured.
    """
    folder = Path(folder).expanduser()
    content = manifest.read(folder)
    if problems := manifest.changed_files(folder, content):
        raise UserError(f"{folder}: not what was built: {'; '.join(problems)}; build the index again")
    intact = f"{content.facts.get('rows')} passages, {len(content.files)} files unchanged"
    layout.read_facts(folder)[0].require_engine()
    index = ScannIndex.load(folder)
    certificate, questions = index.certificate, index.questions
    if certificate is None or questions is None:
        return f"{intact}; there is no certificate"
    if certificate.stale:
        return f"{intact}; the certificate is stale: run `jaxretr update {folder}` to measure again"
    new_recalls = measure.recalls_again(index, questions)
    pairs = [
        (f"target {line.target:g}", old, new)
        for line, recalls in zip(certificate.lines, new_recalls, strict=True)
        for old, new in zip(line.recalls, recalls, strict=True)
    ]
    pairs += [
        (f"target {line.target:g}, {line.share:.1%} allowed", old, new)
        for line, new_line in zip(certificate.filters or (), filtering.certified(index, questions), strict=True)
        for old, new in zip(line.recalls, new_line.recalls, strict=True)
    ]
    problems = _changed_neighbours(index, questions) + [
        f"{what}: recall@{old.k} is {new.recall:.4f} instead of {old.recall:.4f}"
        for what, old, new in pairs
        if not abs(old.recall - new.recall) <= _RECALL_TOLERANCE
    ]
    if problems:
        raise UserError(f"{folder}: not what was certified: {'; '.join(problems)}; build the index again")
    recalls = ", ".join(
        f"{recalls[0].recall:.4f} @{recalls[0].k} for {line.target:g}"
        for line, recalls in zip(certificate.lines, new_recalls, strict=True)
    )
    return f"{intact}; recall on {certificate.questions} questions as certified ({recalls})"


def _changed_neighbours(index: ScannIndex, questions: Questions) -> list[str]:
    """List the fault if exact search over the folder's vectors finds other neighbours than the noted ones."""
    noted = questions.certifying(_GOLDEN).as_noted(index.rows.row_of())
    if (noted.exact < 0).any():
        return ["a noted neighbour is not among the ids"]
    truth = with_exact(noted.vectors, noted.own_rows, index.rows.vector_blocks(), DEPTHS[0], len(index))
    for vector, rows, new_rows in zip(noted.vectors, noted.exact, truth.exact, strict=True):
        # Scores and not ids: equal scores, up to rounding, have no order.
        old, new = (
            [float(index.rows.vector(row) @ vector) for row in neighbours]
            for neighbours in (rows[: len(new_rows)], new_rows)
        )
        if not np.allclose(old, new, rtol=_SCORE_TOLERANCE, atol=_SCORE_TOLERANCE * np.abs(new).max()):
            return ["the exact neighbours of a question are not those that were noted"]
    return []
