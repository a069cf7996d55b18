"""Whether the folder of a ScaNN index still gives what was certified."""

from pathlib import Path

import numpy as np

from jaxretr.errors import UserError
from jaxretr.search.scann import measure
from jaxretr.search.scann.certificate import DEPTHS
from jaxretr.search.scann.index import ScannIndex
from jaxretr.search.scann.process import require_scann
from jaxretr.search.scann.questions import Questions, exact_rows
from jaxretr.stores import manifest

# Processors differ in the last bits of ScaNN's approximate scores, so a candidate at the edge may change.
_RECALL_TOLERANCE = 0.002

# Certification questions whose neighbours `verify` computes again, and the tolerance of their scores: some roundings.
_GOLDEN = 16
_SCORE_TOLERANCE = 1e-5


def verify(folder: str | Path) -> str:
    """Compares every file with its sha256, and measures the certificate's recall again.

    Args:
      folder: what `ScannIndex.save` wrote.

    Returns:
      What agrees, in one line.

    Raises:
      UserError: something differs, or ScaNN does not work here, so that the recall cannot be measured.
    """
    folder = Path(folder).expanduser()
    content = manifest.read(folder)
    if problems := manifest.changed_files(folder, content):
        raise UserError(f"{folder}: not what was built: {'; '.join(problems)}; build the index again")
    intact = f"{content.facts.get('rows')} passages, {len(content.files)} files unchanged"
    if content.facts.get("kind") != "exact":
        require_scann()
    index = ScannIndex.load(folder)
    certificate, questions = index.certificate, index.questions
    if certificate is None or questions is None:
        return f"{intact}; there is no certificate"
    if certificate.stale:
        return f"{intact}; the certificate is stale: run `jaxretr update {folder}` to measure again"
    problems = _changed_neighbours(index, questions)
    found = measure.recalls_again(index, questions)
    for line, recalls in zip(certificate.lines, found, strict=True):
        for old, new in zip(line.recalls, recalls, strict=True):
            if not abs(old.recall - new.recall) <= _RECALL_TOLERANCE:
                problems.append(
                    f"target {line.target:g}: recall@{old.k} is {new.recall:.4f} instead of {old.recall:.4f}"
                )
    if problems:
        raise UserError(f"{folder}: not what was certified: {'; '.join(problems)}; build the index again")
    said = ", ".join(
        f"{recalls[0].recall:.4f} @{recalls[0].k} for {line.target:g}"
        for line, recalls in zip(certificate.lines, found, strict=True)
    )
    return f"{intact}; recall on {certificate.questions} questions as certified ({said})"


def _changed_neighbours(index: ScannIndex, questions: Questions) -> list[str]:
    """Whether exact search over the folder's vectors gives the neighbours that were noted."""
    golden = slice(questions.tuning, questions.tuning + _GOLDEN)
    vectors = questions.vectors[golden]
    own = questions.own_rows(index.rows.row_of(), golden)
    blocks = index.rows.vector_blocks()
    exact = exact_rows(vectors, own, blocks, DEPTHS[0], len(index))
    row_of = index.rows.row_of()
    for vector, found, names in zip(vectors, exact, questions.neighbours, strict=False):
        if any(name not in row_of for name in names):
            return ["a noted neighbour is not among the ids"]
        noted = [row_of[name] for name in names[: len(found)]]
        # Scores and not ids: equal scores, up to rounding, have no order.
        old, new = ([float(index.rows.vector(row) @ vector) for row in some] for some in (noted, found))
        if not np.allclose(old, new, rtol=_SCORE_TOLERANCE, atol=_SCORE_TOLERANCE * np.abs(new).max()):
            return ["the exact neighbours of a question are not those that were noted"]
    return []
