"""`jaxretr.inspect_data`: the format and size of a file or folder, and its first row."""

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from jaxretr.data.corpus import numbered_passages
from jaxretr.data.formats.examples import Candidate, Example
from jaxretr.data.formats.kinds import FORMATS, KINDS, file_kind
from jaxretr.data.formats.reading import numbered_examples
from jaxretr.data.lexical_set import LexicalSet, is_lexical_set
from jaxretr.data.named.names import DataName, data_path
from jaxretr.data.questions import question_rows
from jaxretr.data.readers import beir_splits, qrels_path, qrels_rows
from jaxretr.data.run_reading import read_run
from jaxretr.data.text_rows import BadRows, RowError, find_input
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel.memory import size
from jaxretr.runtime.progress import counted
from jaxretr.runtime.storage.copies import local_folder
from jaxretr.runtime.storage.paths import as_path, is_remote

_SHOWN_CHARACTERS = 100
_SHOWN_PASSAGES = 3
_SAMPLED_VECTORS = 1000

# Facts with such names detail the one above them, and are indented in the table.
_DETAILS = ("with ", "without ", "cut at ", "dropped", "of grade ")


@dataclass(frozen=True)
class Spread:
    """The distribution of a number over rows."""

    mean: float
    lowest: int
    median: int
    percentile_95: int
    highest: int

    def __str__(self) -> str:
        return (
            f"{self.mean:>12,.1f}  from {self.lowest:,} to {self.highest:,}, half up to {self.median:,}, "
            f"95% up to {self.percentile_95:,}"
        )


@dataclass(frozen=True)
class Description:
    """The description of a file's or folder's content.

    Attributes:
      path: the file or folder.
      kind: its format, in words.
      facts: counts, distributions and properties by name; None: there are no rows to count.
      bad_rows: number of bad rows.
      first_bad_row: the first of them, as `path:line: what; remedy`.
      first: lines that show the first row.
      parts: the files of a BEIR folder.
    """

    path: str
    kind: str
    facts: Mapping[str, int | str | Spread | None]
    bad_rows: int = 0
    first_bad_row: str = ""
    first: Sequence[str] = ()
    parts: Sequence["Description"] = ()

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The description for people."""
        return "\n".join([f"{self.path}: {self.kind}", *self._lines()])

    def to_json(self) -> str:
        """The description as JSON."""
        return json.dumps(asdict(self), indent=2)

    def _lines(self) -> list[str]:
        lines = []
        for name, value in self.facts.items():
            shown = f"  {name}" if name.startswith(_DETAILS) else name
            number = f"{value:>12,}" if isinstance(value, int) else f"{'none' if value is None else str(value):>12}"
            lines.append(f"{shown:<28}{number}")
        if self.bad_rows:
            lines += [f"{'bad rows':<28}{self.bad_rows:>12,}", f"  the first: {self.first_bad_row}"]
        lines += self.first
        for part in self.parts:
            lines += [part.path, *part._lines()]
        return lines


def inspect_data(path: str | Path, *, format: str | None = None, queries: str | Path | None = None) -> Description:
    """Describe a training set, corpus, question file, judgements, run, BEIR folder, store or index.

    Args:
      path: any data file or folder, also in a bucket.
      format: a data file's format, a key of `jaxretr.data.formats.kinds.KINDS`; None: detected from the content.
      queries: the questions of the formats "triples-ids" and "distillation".

    Raises:
      UserError: the format is not recognised, or the file cannot be read.
      UsageError: `queries` for another format.
    """
    place = data_path(path) if isinstance(data_path(path), DataName) else as_path(path)
    if is_remote(place):
        from jaxretr.embeddings.embedding_store import is_store

        place = place if is_store(place) else local_folder(place)
    if not isinstance(place, DataName) and (place / "meta.json").is_file():
        return _folder(place)
    kind = format or file_kind(place)
    if queries is not None and kind not in ("triples-ids", "distillation"):
        raise UsageError(f"--queries is for triples-ids and distillation; {place} looks like {KINDS[kind]}")
    match kind:
        case "beir":
            parts = [
                _corpus(find_input(place, "corpus.jsonl"), "corpus.jsonl"),
                _questions(find_input(place, "queries.jsonl"), "queries.jsonl"),
                *(_qrels(file, f"qrels/{file.name}") for file in (qrels_path(place, s) for s in beir_splits(place))),
            ]
            return Description(str(place), KINDS[kind], {}, parts=parts)
        case "qrels":
            return _qrels(find_input(place), str(place))
        case "corpus":
            return _corpus(find_input(place), str(place))
        case "questions":
            return _questions(find_input(place), str(place))
        case _ if kind in FORMATS:
            return _training_set(place, kind, queries)
    found = read_run(place, count=True)
    lengths = [len(hits) for hits in found.values()]
    return Description(str(place), KINDS[kind], {"questions": len(found), "passages a question": _spread(lengths)})


# ---- training sets ---------------------------------------------------------------------------------------------------


def _training_set(path: Path, kind: str, queries: str | Path | None) -> Description:
    first: Example | None = None
    bad = BadRows(path, skip=True)
    ids: set[str] = set()
    counts: Counter[str] = Counter()
    lengths = {name: array("l") for name in ("positives", "hard negatives", "other negatives")}
    words, passage_words = array("l"), array("l")
    for line, example in counted(numbered_examples(path, format=kind, queries=queries), "row"):
        if isinstance(example, RowError):
            bad.add(line, example)
            continue
        first = first or example
        ids.add(example.id)
        words.append(len(example.question.split()))
        counts["answers"] += bool(example.answers)
        counts["no positive"] += not example.positives
        for name, found in zip(lengths, (example.positives, example.negatives, example.other_negatives), strict=True):
            lengths[name].append(len(found))
            for candidate in found:
                counts["id"] += candidate.id is not None
                counts["score"] += candidate.score is not None
                if candidate.text is not None:
                    passage_words.append(len(candidate.text.split()))
    facts = {
        "rows": len(words),
        "questions": len(ids),
        "with answers": counts["answers"],
        "rows without a positive": counts["no positive"],
        "words a question": _spread(words),
        **{f"{name} a row": _spread(found) for name, found in lengths.items()},
        "passages": sum(map(sum, lengths.values())),
        "with an id": counts["id"],
        "with a text": len(passage_words),
        "with a score": counts["score"],
        "words a passage": _spread(passage_words),
    }
    return Description(str(path), KINDS[kind], facts, bad.count, bad.first, () if first is None else _shown(first))


def _shown(example: Example) -> list[str]:
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


# ---- corpora, questions, judgements ----------------------------------------------------------------------------------


def _corpus(path: Path, name: str) -> Description:
    bad = BadRows(path, skip=True)
    words = array("l")
    without_title, first = 0, ""
    for _, passage in counted(numbered_passages(bad), "passage"):
        first = first or f"first passage: [{passage.id}] {passage.title}: {passage.text}"
        without_title += not passage.title
        words.append(len(passage.text.split()))
    facts = {
        "passages": len(words),
        "without a title": without_title,
        "without a text": words.count(0),
        "words a passage": _spread(words),
    }
    return Description(name, KINDS["corpus"], facts, bad.count, bad.first, [_cut(first)] if first else ())


def _questions(path: Path, name: str) -> Description:
    bad = BadRows(path, skip=True)
    words, answers = array("l"), array("l")
    first = ""
    for line, row in question_rows(path):
        if isinstance(row, RowError):
            bad.add(line, row)
            continue
        id, text, of_question = row
        first = first or f"first question: {'' if id is None else f'[{id}] '}{text} {' | '.join(of_question)}"
        words.append(len(text.split()))
        answers.append(len(of_question))
    facts = {
        "questions": len(words),
        "with answers": len(answers) - answers.count(0),
        "without a text": words.count(0),
        "words a question": _spread(words),
    }
    return Description(name, KINDS["questions"], facts, bad.count, bad.first, [_cut(first)] if first else ())


def _qrels(path: Path, name: str) -> Description:
    bad = BadRows(path, skip=True)
    questions: Counter[str] = Counter()
    grades: Counter[int] = Counter()
    passages: set[str] = set()
    for line, row in qrels_rows(path):
        if isinstance(row, RowError):
            bad.add(line, row)
            continue
        questions[row[0]] += 1
        passages.add(row[1])
        grades[row[2]] += 1
    facts = {
        "judgements": grades.total(),
        **{f"of grade {grade}": grades[grade] for grade in sorted(grades)},
        "questions": len(questions),
        "passages": len(passages),
        "judgements a question": _spread(list(questions.values())),
    }
    return Description(name, KINDS["qrels"], facts, bad.count, bad.first)


# ---- what this library wrote -----------------------------------------------------------------------------------------


def _folder(path: Path) -> Description:
    """Describe a folder with a meta.json."""
    if is_lexical_set(path):
        examples = LexicalSet.open(path)
        teacher = examples.teachers[0]
        facts = {
            "queries": len(examples),
            "dropped": examples.counts["dropped"],
            "passages of the corpus": examples.corpus_rows,
            "teachers": ", ".join(each.name for each in examples.teachers),
            "positives, negatives": f"{teacher.positives.shape[1]}, {teacher.negatives.shape[1]}",
        }
        return Description(str(path), "lexical set", facts, first=[_cut(f"first query: {examples.queries[0]}")])
    # Imported here: they bring JAX.
    if (path / "offsets.npy").is_file():
        from jaxretr.data.token_store import TokenStore

        tokens = TokenStore(path)
        facts = {
            "rows": tokens.num_rows,
            "cut at the length limit": tokens.truncated,
            "type": str(tokens.dtype),
            "tokens a row": _spread(tokens.lengths),
        }
        return Description(str(path), "token store", facts)
    from jaxretr.embeddings.embedding_store import EmbeddingStore, is_store
    from jaxretr.embeddings.index_folder import read

    if is_store(path):
        store = EmbeddingStore.open(path)
        meta = store.meta
        lengths = np.linalg.norm(store.rows(0, _SAMPLED_VECTORS), axis=1)
        facts = {
            f"{meta.side}s": meta.rows,
            "cut at the model's length": store.cut,
            "dimensions": meta.dim,
            "shards": meta.shards,
            "type": meta.dtype,
            "matmuls": meta.compute,
            "on disk": size(meta.bytes),
            "model": meta.model,
            "address": meta.address[:12],
            # Shows whether the model normalises its vectors.
            "length of a vector": f"{lengths.mean():.4f} (of the first {len(lengths)}, from {lengths.min():.4f} to "
            f"{lengths.max():.4f})",
        }
        return Description(str(path), "embedding store", facts)
    embeddings, ids, metadata = read(path)
    facts = {
        "rows": len(embeddings),
        "dimensions": embeddings.shape[1],
        "type": embeddings.dtype.name,
        "ids": "none" if ids is None else len(ids),
        **({"metadata": ", ".join(metadata)} if metadata else {}),
    }
    return Description(str(path), "exact index", facts)


def _spread(values: Iterable[int] | np.ndarray) -> Spread | None:
    numbers = np.asarray(values)
    if not len(numbers):
        return None
    lowest, median, high, highest = np.percentile(numbers, [0, 50, 95, 100], method="inverted_cdf").tolist()
    return Spread(float(numbers.mean()), lowest, median, high, highest)


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
