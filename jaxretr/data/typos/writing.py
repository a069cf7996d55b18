"""`jaxretr.write_typos`: versions of a file of queries with typos."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxretr.config import Keyboard, TypoProfile
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_questions
from jaxretr.data.typos import Typo, generators
from jaxretr.runtime.errors import UserError, at_least
from jaxretr.runtime.progress import Progress
from jaxretr.runtime.storage.files import atomic_write, sha256

SUMMARY = "typos.json"
_ANOTHER_PLACE = "choose another folder as out=, or remove them"


@dataclass(frozen=True)
class WrittenTypos:
    """Files of queries with typos.

    Attributes:
      paths: the file of each draw.
      questions: the number of questions in each.
      draws: for each draw the number of unchanged questions, the number of changes and the share of each operation.
    """

    paths: list[Path]
    questions: int
    draws: list[dict[str, Any]]

    def table(self) -> str:
        """A table of the changes in each draw, for people."""
        names = sorted({name for draw in self.draws for name in draw["shares"]})
        heads = "".join(f"{name:>12}" for name in names)
        lines = [f"{'draw':<6}{'questions':>10}{'unchanged':>10}{'changes':>10}{heads}"]
        for number, draw in enumerate(self.draws):
            shares = "".join(f"{draw['shares'].get(name, 0):>12.3f}" for name in names)
            lines.append(f"{number:<6}{self.questions:>10}{draw['unchanged']:>10}{draw['changes']:>10}{shares}")
        return "\n".join(lines)


def write_typos(
    queries: str | Path,
    *,
    out: str | Path,
    profile: TypoProfile = "dictionary",
    draws: int = 10,
    seed: int = 0,
    keyboard: Keyboard | None = None,
    misspellings: str | Path | None = None,
) -> WrittenTypos:
    """Write query variants with typos; each draw is a file that every command reads.

    Args:
      queries: BEIR jsonl or folder, DPR tsv, id<TAB>text, or .txt lines; also .gz.
      out: folder for PROFILE-00.jsonl, PROFILE-01.jsonl, ... and typos.json; an interrupted call can be repeated.
      profile: dictionary: a fifth of the words, by a list of misspellings, neighbouring keys and swaps; single_word: one
        character of one word, the query lower-cased; spacing: words joined or split, letters swapped.
      draws: variants of each query.
      seed: seed of the typos.
      keyboard: keyboard layout, for dictionary and single_word; "qwerty" by default.
      misspellings: for dictionary: JSON {word: [misspellings]} or lines misspelling->word, also .gz; by default English.

    Raises:
      UsageError: a setting that the profile does not read, or no draws.
      UserError: a file cannot be read, or `out` has typos of this profile with other settings.
    """
    at_least(1, draws=draws)
    generator = generators([profile], keyboard=keyboard, misspellings=misspellings, seed=seed)[profile]
    questions = read_questions(queries)
    described = "".join(f"{[one.id, one.text, one.answers]}\n" for one in questions)
    settings = {
        "queries": hashlib.sha256(described.encode()).hexdigest(),
        "keyboard": None if profile == "spacing" else generator.keyboard,
        "misspellings": misspellings and sha256(Path(misspellings).expanduser()),
        "seed": seed,
        "draws": draws,
    }
    out = Path(out).expanduser()
    summary = _summary_to_extend(out, profile, settings)
    # First of all whose the files are: an interrupted run can be repeated, and one with other settings is refused.
    summary[profile] = {"settings": settings, "questions": len(questions)}
    _write_summary(out, summary)
    paths, found = [_draw_path(out, profile, draw) for draw in range(draws)], []
    with Progress(len(questions) * draws, "question", "misspelt") as progress:
        for draw, path in enumerate(paths):
            typos = generator.typos([question.text for question in questions], draw, range(len(questions)))
            write_draw(path, questions, typos)
            found.append(_statistics(typos))
            progress.advance(len(questions))
    summary[profile]["draws"] = found
    _write_summary(out, summary)
    return WrittenTypos(paths, len(questions), found)


def _draw_path(out: Path, profile: str, draw: int) -> Path:
    """The file of one draw."""
    return out / f"{profile}-{draw:02d}.jsonl"


def _summary_to_extend(out: Path, profile: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a folder's typos.json, {} where there are no files.

    Raises:
      UserError: the folder has typos of this profile that were made with other settings, or otherwise.
    """
    path = out / SUMMARY
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; give a folder as out=")
    summary: dict[str, Any] = {}
    if path.exists():
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
            known = {name: entry["settings"] for name, entry in summary.items()}
        except (ValueError, TypeError, AttributeError, KeyError):
            raise UserError(
                f"{path}: is not what jaxretr typos wrote; {_ANOTHER_PLACE.replace('them', 'it')}"
            ) from None
        if profile in known:
            if other := [name for name, value in settings.items() if known[profile].get(name) != value]:
                raise UserError(f"{out}: has typos of {profile} with other {', '.join(other)}; {_ANOTHER_PLACE}")
            return summary
    if (found := _draw_path(out, profile, 0)).exists():
        raise UserError(f"{found}: is there, and {SUMMARY} does not tell how it was made; {_ANOTHER_PLACE}")
    return summary


def _write_summary(out: Path, summary: dict[str, Any]) -> None:
    """Write typos.json."""
    with atomic_write(out / SUMMARY) as file:
        file.write(json.dumps(summary, indent=1) + "\n")


def write_draw(path: Path, questions: Sequence[Question], typos: Sequence[Typo]) -> None:
    """Write one draw as BEIR's JSON lines."""
    with atomic_write(path) as file:
        for question, typo in zip(questions, typos, strict=True):
            metadata: dict[str, Any] = {"clean": question.text}
            if question.answers:
                metadata["answers"] = question.answers
            row = {"_id": question.id, "text": typo.text, "metadata": metadata}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _statistics(typos: Sequence[Typo]) -> dict[str, Any]:
    """The number of unchanged texts, the number of changes, and the share of each operation in them."""
    counts = Counter(operation for typo in typos for operation in typo.operations)
    changes = counts.total()
    return {
        "unchanged": sum(not typo.operations for typo in typos),
        "changes": changes,
        "shares": {operation: round(count / changes, 4) for operation, count in sorted(counts.items())},
    }
