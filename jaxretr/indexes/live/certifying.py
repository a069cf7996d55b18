"""The recall certificate of a live index in its current state: the share of exact search's hits that it finds."""

import threading
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes import certificate as certificates
from jaxretr.indexes import question_sets
from jaxretr.indexes.certified.certificate import Certificate, Line
from jaxretr.indexes.certified.engines import engine_of
from jaxretr.indexes.live.snapshots import Snapshot
from jaxretr.indexes.live.view import View
from jaxretr.runtime.json_dataclass import dataclass_from


@dataclass(frozen=True, kw_only=True)
class Certified:
    """A certificate, and when it was measured.

    Attributes:
      measured: the time of the measurement, in ISO 8601.
      snapshot: the sequence of the snapshot whose approximate index was measured.
      sequence: the number of the last write before the measurement.
      changes: rows added to or removed from the snapshot before the measurement.
      certificate: the measured recall and speed.
    """

    measured: str
    snapshot: int
    sequence: int
    changes: int
    certificate: Certificate

    def to_json(self) -> dict[str, Any]:
        """The content in the form that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Certified":
        """Read the content that `to_json` gave; raise UserError for any other."""
        return dataclass_from(cls, content, "the certificate in the database")

    def facts(self, changes: int, limit: float) -> dict[str, Any]:
        """The certificate as /info shows it.

        Args:
          changes: changes of the snapshot's rows until now.
          limit: the most changes since the measurement with which the certificate is not stale.
        """
        since = max(0, changes - self.changes)
        return {
            "measured": self.measured,
            "sequence": self.sequence,
            "changes_when_measured": self.changes,
            "changes_since": since,
            "stale": since > limit,
            **{name: value for name, value in asdict(self.certificate).items() if name != "stale"},
        }


def of_snapshot(snapshot: Snapshot) -> Certified | None:
    """The certificate that was measured when the snapshot was made; None without an approximate index."""
    if snapshot.scann is None or snapshot.scann.certificate is None:
        return None
    return Certified(
        measured=snapshot.made,
        snapshot=snapshot.sequence,
        sequence=snapshot.sequence,
        changes=0,
        certificate=snapshot.scann.certificate,
    )


def measure(view: View, questions: NDArray[np.float32] | None, seed: int = 0) -> Certified:
    """Measure the approximate search of a state, including its tail and its removed rows.

    Args:
      view: the state.
      questions: vectors of questions that nothing was tuned on, float32 [Q, D]; by default passages stand in for them.
      seed: the seed of the draw of those passages.
    """
    scann = view.base.scann
    assert scann is not None
    of = "passages" if questions is None else "questions"
    own = np.full(0 if questions is None else len(questions), -1, np.int64)
    if questions is None:
        questions, own = _stand_ins(view, seed)
    extra = int((own >= 0).any())
    depth = min(max(question_sets.DEPTH, scann.facts.k), view.count - extra)
    _, found = view.exact(questions, depth + extra)
    exact = np.array([[row for row in rows if row != itself][:depth] for rows, itself in zip(found, own, strict=True)])
    lines = []
    for setting in scann.facts.settings:

        def search(queries: np.ndarray, k: int, threads: int, target: float = setting.target):
            return view.approximate(queries, min(k, view.count), target, threads)

        recalls = certificates.measure_recalls(search, questions, exact, own, (scann.facts.k, *certificates.DEPTHS))
        lines.append(
            Line(
                target=setting.target,
                tuned_k=scann.facts.k,
                reached=setting.reached,
                leaves=setting.leaves,
                candidates=setting.candidates,
                recalls=recalls,
                **certificates.measure_speed(search, questions, scann.facts.k),
            )
        )
    certificate = Certificate(
        questions=len(questions),
        of=of,
        rows=view.count,
        dim=view.space.dim,
        leaves=scann.facts.leaves,
        train_rows=scann.facts.train_rows,
        seed=seed,
        model=view.space.model,
        lines=tuple(lines),
        engine=scann.facts.engine,
        # The snapshot's settings hold: rows removed since are a filter like any other; the tail is searched exactly.
        filters=() if scann.certificate is None else scann.certificate.filters,
        **certificates.machine_facts(engine_of(scann.facts.engine).package),
    )
    return Certified(
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        snapshot=view.base.sequence,
        sequence=view.sequence,
        changes=view.changes,
        certificate=certificate,
    )


def _stand_ins(view: View, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Passages as questions [Q, D], and their positions [Q]."""
    there = np.flatnonzero(np.concatenate([view.base_there, view.tail_there]))
    count = min(len(there) // 2, question_sets.MOST // 2)
    positions = np.random.default_rng(seed).choice(there, count, replace=False)
    in_base = positions < len(view.base)
    vectors = np.empty((count, view.space.dim), np.float32)
    vectors[in_base] = view.base.vectors[positions[in_base]]
    vectors[~in_base] = view.tail.vectors[positions[~in_base] - len(view.base)]
    return vectors, positions


class RecentQuestions:
    """A uniform sample of the questions that were searched for."""

    def __init__(self, most: int, seed: int = 0):
        """Keep at most `most` questions."""
        self._most, self._draws, self._lock = most, np.random.default_rng(seed), threading.Lock()
        self._kept: list[NDArray[np.float32]] = []
        self._seen = 0

    def add(self, vectors: NDArray[np.float32]) -> None:
        """Offer questions, float32 [B, D], to the sample."""
        with self._lock:
            for vector in vectors:
                self._seen += 1
                if len(self._kept) < self._most:
                    self._kept.append(vector.copy())
                elif (place := int(self._draws.integers(self._seen))) < self._most:
                    self._kept[place] = vector.copy()

    def sample(self, least: int) -> NDArray[np.float32] | None:
        """The questions that were kept, float32 [Q, D]; None if they are fewer than `least`."""
        with self._lock:
            return np.stack(self._kept) if len(self._kept) >= least else None
