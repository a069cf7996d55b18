"""What the certificate of a `ScannIndex` says beyond the recall and the speed."""

from dataclasses import dataclass

from jaxretr.config import EngineName
from jaxretr.search import certificate
from jaxretr.search.scann.engines import engine_of


@dataclass(frozen=True, kw_only=True)
class Line(certificate.Line):
    """What a target's setting does.

    Attributes:
      leaves: searched, 0 where there is no tree.
      candidates: scored exactly for each question, at `tuned_k` results.
    """

    leaves: int
    candidates: int

    def settings_cells(self) -> dict[str, str]:
        return {"leaves": f"{self.leaves or '-'}", "candidates": f"{self.candidates}"}


@dataclass(frozen=True, kw_only=True)
class Certificate(certificate.Certificate):
    """The contents of certificate.json.

    Attributes:
      leaves: of the tree; 1 where there is none.
      train_rows: that the tree and the codes were learnt from.
      lines: one for each target.
      engine: that proposes the candidates.
    """

    leaves: int
    train_rows: int
    lines: tuple[Line, ...]
    engine: EngineName = "scann"

    def made(self) -> str:
        if not self.train_rows:
            return "every passage is scored"
        tree = f"a tree of {self.leaves:,} leaves" if self.leaves > 1 else "no tree"
        return f"{engine_of(self.engine).label} with {tree}, learnt from {self.train_rows:,} passages"
