"""`jaxretr data inspect`: what a file or folder is, how much is in it, and its first row."""

import argparse
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxretr.data.corpus import numbered_passages
from jaxretr.data.formats.examples import Candidate, Example
from jaxretr.data.formats.file_kinds import KINDS, file_kind
from jaxretr.data.formats.training_formats import FORMATS, numbered_examples
from jaxretr.data.questions import question_rows
from jaxretr.data.readers import qrels_rows
from jaxretr.data.text_rows import BadRows, RowError, find_input
from jaxretr.errors import UsageError
from jaxretr.evaluate.runs import read_run
from jaxretr.parallel.memory import size
from jaxretr.progress import counted
from jaxretr.storage.copies import local_folder
from jaxretr.storage.paths import as_path, is_remote

if TYPE_CHECKING:
    from jaxretr.stores.embedding_store import EmbeddingStore

_SHOWN_CHARACTERS = 100
_SHOWN_PASSAGES = 3
_SAMPLED_VECTORS = 1000


def run(args: argparse.Namespace) -> None:
    """Prints the description."""
    path = as_path(args.input)
    if is_remote(path):
        from jaxretr.stores.embedding_store import is_store

        path = path if is_store(path) else local_folder(path)
    print("\n".join(store_lines(path) or file_lines(path, args)))


def file_lines(path: Path, args: argparse.Namespace) -> list[str]:
    """Describes a data file or a BEIR folder."""
    kind = args.source or file_kind(path)
    if args.queries is not None and kind not in ("triples-ids", "distillation"):
        raise UsageError(f"--queries is for triples-ids and distillation; {path} looks like {KINDS[kind]}")
    lines = [f"{path}: {KINDS[kind]}"]
    if kind == "beir":
        lines += corpus_lines(find_input(path, "corpus.jsonl"))
        lines += question_lines(find_input(path, "queries.jsonl"))
        for file in sorted(path.glob("qrels/*.tsv*")):
            lines += [f"qrels/{file.name}", *qrels_lines(file)]
        return lines
    if kind == "qrels":
        return lines + qrels_lines(find_input(path))
    if kind in FORMATS:
        return lines + example_lines(path, kind, args)
    if kind == "corpus":
        return lines + corpus_lines(find_input(path))
    if kind == "questions":
        return lines + question_lines(find_input(path))
    found = read_run(path)
    return [
        *lines,
        _row("questions", len(found)),
        _spread("passages a question", [len(hits) for hits in found.values()]),
    ]


# ---- training sets ---------------------------------------------------------------------------------------------------


def example_lines(path: Path, kind: str, args: argparse.Namespace) -> list[str]:
    """Describes a training set."""
    first: Example | None = None
    bad: list[str] = []
    ids: set[str] = set()
    counts: Counter[str] = Counter()
    lengths = {name: array("l") for name in ("positives", "hard negatives", "other negatives")}
    words, passage_words = array("l"), array("l")
    rows = numbered_examples(path, format=kind, queries=args.queries)
    for line, example in counted(rows, "row"):
        if isinstance(example, RowError):
            bad.append(f"{path}:{line}: {example}")
            continue
        first = first or example
        ids.add(example.id)
        words.append(len(example.question.split()))
        counts["with answers"] += bool(example.answers)
        counts["without a positive"] += not example.positives
        for name, found in zip(lengths, (example.positives, example.negatives, example.other_negatives), strict=True):
            lengths[name].append(len(found))
            for candidate in found:
                counts["with an id"] += candidate.id is not None
                counts["with a score"] += candidate.score is not None
                if candidate.text is not None:
                    passage_words.append(len(candidate.text.split()))
    lines = [
        _row("rows", len(words)),
        _row("questions", len(ids)),
        _row("  with answers", counts["with answers"]),
        _row("rows without a positive", counts["without a positive"]),
        _spread("words a question", words),
        *(_spread(f"{name} a row", found) for name, found in lengths.items()),
        _row("passages", sum(map(sum, lengths.values()))),
        _row("  with an id", counts["with an id"]),
        _row("  with a text", len(passage_words)),
        _row("  with a score", counts["with a score"]),
        _spread("words a passage", passage_words),
        *_bad_lines(bad),
    ]
    return lines if first is None else lines + first_lines(first)


def first_lines(example: Example) -> list[str]:
    """Shows one example."""
    lines = [f"first row (line {example.line})", f"  question '{example.id}': {_cut(example.question)}"]
    if example.answers:
        lines.append(f"  answers: {_cut(' | '.join(example.answers))}")
    kinds = {"+": example.positives, "-": example.negatives, "(-)": example.other_negatives}
    for sign, found in kinds.items():
        lines += [f"  {sign} {_candidate(candidate)}" for candidate in found[:_SHOWN_PASSAGES]]
        if len(found) > _SHOWN_PASSAGES:
            lines.append(f"  {sign} and {len(found) - _SHOWN_PASSAGES} more")
    return lines


def _candidate(candidate: Candidate) -> str:
    parts = [] if candidate.id is None else [f"[{candidate.id}]"]
    if candidate.score is not None:
        parts.append(f"score {candidate.score:g}")
    if candidate.title:
        parts.append(f"{candidate.title}:")
    return _cut(" ".join([*parts, candidate.text or ""]))


# ---- the rest --------------------------------------------------------------------------------------------------------


def corpus_lines(path: Path) -> list[str]:
    """Describes a corpus."""
    bad = _Listed(path)
    words = array("l")
    without_title, shown = 0, ""
    for _, passage in counted(numbered_passages(bad), "passage"):
        shown = shown or f"first passage: [{passage.id}] {passage.title}: {passage.text}"
        without_title += not passage.title
        words.append(len(passage.text.split()))
    lines = [
        _row("passages", len(words)),
        _row("  without a title", without_title),
        _row("  without a text", words.count(0)),
        _spread("words a passage", words),
        *_bad_lines(bad.problems),
    ]
    return [*lines, _cut(shown)] if shown else lines


def question_lines(path: Path) -> list[str]:
    """Describes a file of questions."""
    bad = []
    words, answers = array("l"), array("l")
    shown = ""
    for line, row in question_rows(path):
        if isinstance(row, RowError):
            bad.append(f"{path}:{line}: {row}")
            continue
        id, text, of_question = row
        shown = shown or f"first question: {'' if id is None else f'[{id}] '}{text} {' | '.join(of_question)}"
        words.append(len(text.split()))
        answers.append(len(of_question))
    lines = [
        _row("questions", len(words)),
        _row("  with answers", len(answers) - answers.count(0)),
        _row("  without a text", words.count(0)),
        _spread("words a question", words),
        *_bad_lines(bad),
    ]
    return [*lines, _cut(shown)] if shown else lines


def qrels_lines(path: Path) -> list[str]:
    """Describes judgements."""
    bad = []
    questions: Counter[str] = Counter()
    grades: Counter[int] = Counter()
    passages: set[str] = set()
    for line, row in qrels_rows(path):
        if isinstance(row, RowError):
            bad.append(f"{path}:{line}: {row}")
            continue
        questions[row[0]] += 1
        passages.add(row[1])
        grades[row[2]] += 1
    return [
        _row("judgements", grades.total()),
        *(_row(f"  of grade {grade}", grades[grade]) for grade in sorted(grades)),
        _row("questions", len(questions)),
        _row("passages", len(passages)),
        _spread("judgements a question", list(questions.values())),
        *_bad_lines(bad),
    ]


def store_lines(path: Path) -> list[str]:
    """Describes a folder that this program wrote, by its meta.json; empty where it is none."""
    if not (path / "meta.json").is_file():
        return []
    from jaxretr.data.lexical_set import LexicalSet, is_lexical_set

    if is_lexical_set(path):
        examples = LexicalSet.open(path)
        first = examples.teachers[0]
        return [
            f"{path}: lexical set",
            _row("queries", len(examples)),
            _row("  dropped", examples.counts["dropped"]),
            _row("passages of the corpus", examples.corpus_rows),
            _row("teachers", ", ".join(teacher.name for teacher in examples.teachers)),
            _row("positives, negatives", f"{first.positives.shape[1]}, {first.negatives.shape[1]}"),
            _cut(f"first query: {examples.queries[0]}"),
        ]
    # Here, for they bring JAX with them.
    if (path / "offsets.npy").is_file():
        from jaxretr.data.token_store import TokenStore

        store = TokenStore(path)
        return [
            f"{path}: token store",
            _row("rows", store.num_rows),
            _row("  cut at the length limit", store.truncated),
            _row("type", str(store.dtype)),
            _spread("tokens a row", store.lengths),
        ]
    from jaxretr.stores.embedding_store import EmbeddingStore, is_store
    from jaxretr.stores.index_folder import read

    if is_store(path):
        store = EmbeddingStore.open(path)
        meta = store.meta
        return [
            f"{path}: embedding store",
            _row(f"{meta.side}s", meta.rows),
            _row("  cut at the model's length", store.cut),
            _row("dimensions", meta.dim),
            _row("shards", meta.shards),
            _row("type", meta.dtype),
            _row("matmuls", meta.compute),
            _row("on disk", size(meta.bytes)),
            _row("model", meta.model),
            _row("address", meta.address[:12]),
            _row("length of a vector", _lengths(store)),
        ]
    embeddings, ids, metadata = read(path)
    return [
        f"{path}: exact index",
        _row("rows", len(embeddings)),
        _row("dimensions", embeddings.shape[1]),
        _row("type", embeddings.dtype.name),
        _row("ids", "none" if ids is None else len(ids)),
        *([_row("metadata", ", ".join(metadata))] if metadata else []),
    ]


def _lengths(store: "EmbeddingStore") -> str:
    """Of some vectors, which show whether the model normalises them."""
    first = np.linalg.norm(store.rows(0, _SAMPLED_VECTORS), axis=1)
    return f"{first.mean():.4f} (of the first {len(first)}, from {first.min():.4f} to {first.max():.4f})"


class _Listed(BadRows):
    """Bad rows that are only noted."""

    def __init__(self, path: Path):
        super().__init__(path, skip=True)
        self.problems: list[str] = []

    def add(self, line: int, problem: str | RowError) -> None:
        self.problems.append(f"{self.path}:{line}: {problem}")


def _bad_lines(problems: Sequence[str]) -> list[str]:
    return [_row("bad rows", len(problems)), f"  the first: {problems[0]}"] if problems else []


def _row(name: str, value: object) -> str:
    return f"{name:<28}{value if isinstance(value, str) else format(value, ','):>12}"


def _spread(name: str, values: Iterable[int] | np.ndarray) -> str:
    numbers = np.asarray(values)
    if not len(numbers):
        return f"{name:<28}{'none':>12}"
    low, middle, high, most = np.percentile(numbers, [0, 50, 95, 100], method="inverted_cdf")
    return f"{name:<28}{numbers.mean():>12,.1f}  from {low:,} to {most:,}, half up to {middle:,}, 95% up to {high:,}"


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
