"""The recall certificate of a live index in its current state: the share of exact search's hits that it finds."""

import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes import question_sets
from jaxretr.indexes.certified.measure import kind_facts
from jaxretr.indexes.certified.tuning import Setting
from jaxretr.indexes.live.snapshots import Snapshot
from jaxretr.indexes.live.view import View
from jaxretr.indexes.measuring import Search, certify
from jaxretr.indexes.recall import Certificate, as_dict

# Seed of the passages that stand in for questions, which the certificate states, and of the sample of the questions asked.
_SEED = 0


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
            **{name: value for name, value in as_dict(self.certificate).items() if name != "stale"},
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


def measure(view: View, questions: NDArray[np.float32] | None) -> Certified:
    """Measure the approximate search of a state, including its tail and its removed rows.

    Args:
      questions: vectors of questions that nothing was tuned on, float32 [Q, D]; by default passages stand in for them.
    """
    scann = view.base.scann
    assert scann is not None
    stand_ins = questions is None
    own = np.full(0 if questions is None else len(questions), -1, np.int64)
    if questions is None:
        there = np.flatnonzero(np.concatenate([view.base_there, view.tail_there]))
        own = np.random.default_rng(_SEED).choice(there, min(len(there) // 2, question_sets.MOST // 2), replace=False)
        questions = np.stack([view.vector(position) for position in own.tolist()])
    extra = int((own >= 0).any())
    depth = min(max(question_sets.DEPTH, scann.facts.k), view.count - extra)
    asked = question_sets.without_own(questions, view.exact(questions, depth + extra)[1], own)

    def at(setting: Setting) -> Search:
        return lambda queries, k, threads: view.approximate(queries, min(k, view.count), setting.target, threads)[1]

    certificate = certify(
        scann.facts.settings,
        at,
        asked,
        scann.facts.k,
        stand_ins=stand_ins,
        rows=view.count,
        seed=_SEED,
        model=view.space.model,
        # The snapshot's settings hold: rows removed since are a filter like any other; the tail is searched exactly.
        filters=() if scann.certificate is None else scann.certificate.filters,
        **kind_facts(scann.facts),
    )
    return Certified(
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        snapshot=view.base.sequence,
        sequence=view.sequence,
        changes=view.changes,
        certificate=certificate,
    )


class RecentQuestions:
    """A uniform sample of the questions that were searched for."""

    def __init__(self, most: int):
        """Keep at most `most` questions."""
        self._most, self._draws, self._lock = most, np.random.default_rng(_SEED), threading.Lock()
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
