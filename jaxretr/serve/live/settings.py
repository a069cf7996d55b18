"""When a live index renews its snapshot and its certificate, and how."""

from dataclasses import dataclass

from jaxretr.config import EngineName


@dataclass(frozen=True)
class LiveSettings:
    """The settings of a live index's upkeep.

    Attributes:
      compact_share: of the snapshot's rows; once more than this share were added or removed, a new snapshot is written.
      compact_rows: but not before so many rows were added or removed.
      certify_share: of the snapshot's rows; after so many more changes the certificate is measured again.
      scann_from: a snapshot of so many rows or more has an approximate index.
      engine: of that index; None: ScaNN where it works, otherwise FAISS where it is installed.
      target_recall: one or several that the approximate index is tuned for.
      certify_questions: the most questions that are kept for tuning and for the certificate.
      least_questions: with fewer of them, passages stand in for questions.
    """

    compact_share: float = 0.1
    compact_rows: int = 1_000
    certify_share: float = 0.05
    scann_from: int = 20_000
    engine: EngineName | None = None
    target_recall: tuple[float, ...] = (0.95,)
    certify_questions: int = 1_000
    least_questions: int = 200
