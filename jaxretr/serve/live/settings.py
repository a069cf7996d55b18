"""When a live index renews its snapshot and its certificate."""

from dataclasses import dataclass

from jaxretr.config import EngineName


@dataclass(frozen=True)
class LiveSettings:
    """What the upkeep of a live index goes by.

    Attributes:
      compact_share: of the snapshot's rows; a new snapshot is written once more rows than this were added or removed.
      compact_rows: and at least so many.
      certify_share: of the snapshot's rows; the certificate is measured again after so many more changes.
      scann_from: rows from which on a snapshot has an approximate index.
      engine: of that index; None: ScaNN where it works, otherwise FAISS where it is installed.
      target_recall: that it is tuned for, one or several.
      certify_questions: recent questions that are kept for tuning and certificate, at most.
      least_questions: with fewer of them passages stand in for questions.
    """

    compact_share: float = 0.1
    compact_rows: int = 1_000
    certify_share: float = 0.05
    scann_from: int = 20_000
    engine: EngineName | None = None
    target_recall: tuple[float, ...] = (0.95,)
    certify_questions: int = 1_000
    least_questions: int = 200
