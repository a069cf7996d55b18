"""`jaxretr typos`: versions of a file of queries with typos."""

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jaxretr.data.questions import Question
from jaxretr.data.readers import read_questions
from jaxretr.data.typos import Typo, TypoGenerator
from jaxretr.errors import UsageError, UserError
from jaxretr.progress import Progress
from jaxretr.storage.files import atomic_write

SUMMARY = "typos.json"
_ANOTHER_PLACE = "choose another --out, or remove them"


def run(args: argparse.Namespace) -> None:
    """Writes the draws and what is in them."""
    check_arguments(args)
    questions = read_questions(args.queries)
    keyboard = args.keyboard or "qwerty"
    generator = TypoGenerator(args.profile, keyboard=keyboard, misspellings=args.misspellings, seed=args.seed)
    settings = {
        "queries": _digest(f"{[one.id, one.text, one.answers]}\n".encode() for one in questions),
        "keyboard": None if args.profile == "spacing" else keyboard,
        "misspellings": args.misspellings and _digest([Path(args.misspellings).expanduser().read_bytes()]),
        "seed": args.seed,
        "draws": args.draws,
    }
    out = Path(args.out).expanduser()
    summary = summary_to_extend(out, args.profile, settings)
    # First of all whose the files are: an interrupted run can be repeated, and one with other settings is refused.
    summary[args.profile] = {"settings": settings, "questions": len(questions)}
    write_summary(out, summary)
    draws = []
    with Progress(len(questions) * args.draws, "question", "misspelt") as progress:
        for draw in range(args.draws):
            typos = generator.typos([question.text for question in questions], draw, range(len(questions)))
            write_draw(draw_path(out, args.profile, draw), questions, typos)
            draws.append(figures(typos))
            progress.advance(len(questions))
    summary[args.profile]["draws"] = draws
    write_summary(out, summary)
    print(as_table(len(questions), draws))
    print(f"{draw_path(out, args.profile, 0)}" + (f" to {args.draws - 1:02d}" if args.draws > 1 else ""))


def check_arguments(args: argparse.Namespace) -> None:
    """Raises UsageError for an option that the profile has no use for."""
    if args.misspellings is not None and args.profile != "dictionary":
        raise UsageError(f"--misspellings belongs to --profile dictionary; leave it out of {args.profile}")
    if args.keyboard is not None and args.profile == "spacing":
        raise UsageError("--keyboard belongs to dictionary and single_word; leave it out of spacing")


def draw_path(out: Path, profile: str, draw: int) -> Path:
    """The file of one draw."""
    return out / f"{profile}-{draw:02d}.jsonl"


def summary_to_extend(out: Path, profile: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns what typos.json says of a folder's files, {} where there are none.

    Raises:
      UserError: the folder has typos of this profile that were made with other settings, or otherwise.
    """
    path = out / SUMMARY
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; name a folder for --out")
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
    if (found := draw_path(out, profile, 0)).exists():
        raise UserError(f"{found}: is there, and {SUMMARY} does not tell how it was made; {_ANOTHER_PLACE}")
    return summary


def write_summary(out: Path, summary: dict[str, Any]) -> None:
    """Writes typos.json."""
    with atomic_write(out / SUMMARY) as file:
        file.write(json.dumps(summary, indent=1) + "\n")


def write_draw(path: Path, questions: Sequence[Question], typos: Sequence[Typo]) -> None:
    """Writes one draw as BEIR's JSON lines."""
    with atomic_write(path) as file:
        for question, typo in zip(questions, typos, strict=True):
            metadata: dict[str, Any] = {"clean": question.text}
            if question.answers:
                metadata["answers"] = question.answers
            row = {"_id": question.id, "text": typo.text, "metadata": metadata}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def figures(typos: Sequence[Typo]) -> dict[str, Any]:
    """How many texts are unchanged, how many changes there are, and the share of each operation in them."""
    counts = Counter(operation for typo in typos for operation in typo.operations)
    changes = counts.total()
    return {
        "unchanged": sum(not typo.operations for typo in typos),
        "changes": changes,
        "shares": {operation: round(count / changes, 4) for operation, count in sorted(counts.items())},
    }


def as_table(questions: int, draws: Sequence[dict[str, Any]]) -> str:
    """The figures of each draw for people."""
    names = sorted({name for draw in draws for name in draw["shares"]})
    lines = [f"{'draw':<6}{'questions':>10}{'unchanged':>10}{'changes':>10}" + "".join(f"{name:>12}" for name in names)]
    for number, draw in enumerate(draws):
        shares = "".join(f"{draw['shares'].get(name, 0):>12.3f}" for name in names)
        lines.append(f"{number:<6}{questions:>10}{draw['unchanged']:>10}{draw['changes']:>10}{shares}")
    return "\n".join(lines)


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
