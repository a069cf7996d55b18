"""The parts of a `ScannIndex`'s certificate beyond the recall and the speed."""

from dataclasses import dataclass

from jaxretr.config import EngineName
from jaxretr.indexes import certificate
from jaxretr.indexes.certificate import Recall
from jaxretr.indexes.certified.engines import engine_of


@dataclass(frozen=True, kw_only=True)
class Line(certificate.Line):
    """The recall and the speed of one target's setting.

    Attributes:
      leaves: leaves that are searched, 0 where there is no tree.
      candidates: passages that are scored exactly for each question, at `tuned_k` results.
    """

    leaves: int
    candidates: int

    def settings_cells(self) -> dict[str, str]:
        return {"leaves": f"{self.leaves or '-'}", "candidates": f"{self.candidates}"}


@dataclass(frozen=True, kw_only=True)
class FilterLine:
    """The recall and the speed of one target's setting where a filter allows a share of the rows; see filtering.py.

    Attributes:
      target: see `Line`.
      share: the share of the rows that are allowed.
      leaves: leaves that are searched.
      random, related, unrelated: the recall with each kind of filter.
      ms, exact_ms: milliseconds of a single question with one thread, and if every allowed row were scored.
    """

    target: float
    share: float
    leaves: int
    random: Recall
    related: Recall
    unrelated: Recall
    ms: float
    exact_ms: float

    @property
    def recalls(self) -> tuple[Recall, ...]:
        """The recalls with each kind of filter."""
        return self.random, self.related, self.unrelated


@dataclass(frozen=True, kw_only=True)
class Certificate(certificate.Certificate):
    """The contents of certificate.json.

    Attributes:
      leaves: leaves of the tree; 1 where there is none.
      train_rows: passages that the tree and the codes were learnt from.
      lines: one for each target.
      engine: the engine that proposes the candidates.
      filters: for each target the shares of allowed rows with which the engine is asked; with smaller ones every allowed
        row is scored.
    """

    leaves: int
    train_rows: int
    lines: tuple[Line, ...]
    engine: EngineName = "scann"
    filters: tuple[FilterLine, ...] = ()

    def made(self) -> str:
        if not self.train_rows:
            return "every passage is scored"
        tree = f"a tree of {self.leaves:,} leaves" if self.leaves > 1 else "no tree"
        return f"{engine_of(self.engine).label} with {tree}, learnt from {self.train_rows:,} passages"

    def more(self) -> list[str]:
        if not self.filters:
            return ["With a filter every allowed passage is scored."] if self.train_rows else []
        names = [f"{kind} (95% interval)" for kind in ("random", "related", "unrelated")]
        rows = [
            [
                f"{line.target:g} @{line.random.k}",
                f"{line.share:.1%}",
                *(f"{found.recall:.4f} ({found.low:.4f} to {found.high:.4f})" for found in line.recalls),
                f"{line.leaves or '-'}",
                *(f"{value:.2f}" for value in (line.ms, line.exact_ms)),
            ]
            for line in self.filters
        ]
        return [
            "With a filter, recall of what it allows; where it allows less than is listed, every allowed passage is scored.",
            "The filters allow random passages, or those nearest to a passage: for questions near it (related) and for any",
            "(unrelated).",
            "",
            *certificate.markdown(["target", "allowed", *names, "leaves", "ms", "ms if all are scored"], rows),
        ]
