"""The settings by which a live index renews its snapshot and its certificate."""

from dataclasses import dataclass

from jaxretr.config import EngineName


@dataclass(frozen=True)
class LiveSettings:
    """The settings of a live index's upkeep.

    Attributes:
      compact_share: share of the snapshot's rows; once more rows were added or removed, a new snapshot is written.
      compact_rows: the least number of rows that were added or removed before a new snapshot is written.
      certify_share: share of the snapshot's rows; after so many more changes the certificate is measured again.
      scann_from: the least number of rows with which a snapshot has an approximate index.
      engine: the engine of that index; None: ScaNN where it works, otherwise FAISS where it is installed.
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
