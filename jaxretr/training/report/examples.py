"""Searches side by side: the passages that several systems find for the same questions, with the words that match."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.evaluate.measuring import Run
from jaxretr.indexes.bm25.words import stems_of

# Characters of a passage that are shown, and the distance before the first matching word at which they begin.
_SHOWN, _BEFORE = 240, 60
_RUN = re.compile(r"\w+")
# A word in more than this share of the passages is common; and the number of passages that are looked at.
_COMMON, _SAMPLED = 0.1, 2000


class Hit(NamedTuple):
    """A passage that a system found."""

    title: Markup
    text: Markup
    score: float
    relevant: bool | None
    """Whether the passage is judged to answer the question; None without judgements."""


class Column(NamedTuple):
    """The first hits of one system."""

    name: str
    hits: list[Hit]
    rank: int | None
    """The rank of the first relevant passage, from 1; None where none was found, or without judgements."""


class Example(NamedTuple):
    """A question, and each system's first hits for it."""

    question: str
    columns: list[Column]


def choose(questions: Sequence[Question], runs: Sequence[Run], relevant: dict[str, set[str]], count: int) -> list[int]:
    """Choose informative questions, the same ones for the same runs.

    Takes in turn one that the last system answers and the first does not, one of the opposite, and one that both
    answer, each the first of its kind in the questions' order; the rest is spread evenly over all questions.

    Args:
      runs: the runs of the systems, from the baseline to the model.
      relevant: question id -> ids of the passages judged to answer it; empty without judgements.
    """

    def first(run: Run, question: Question) -> bool:
        found = run.get(question.id, {})
        return bool(found) and max(found, key=found.__getitem__) in relevant.get(question.id, set())

    kinds: dict[tuple[bool, bool], list[int]] = {}
    for number, question in enumerate(questions):
        kinds.setdefault((first(runs[0], question), first(runs[-1], question)), []).append(number)
    wanted = (
        [kinds[kind] for kind in ((False, True), (True, False), (True, True)) if kinds.get(kind)] if relevant else []
    )
    chosen: list[int] = []
    for turn in range(count):
        chosen += [kind[turn] for kind in wanted if len(kind) > turn and kind[turn] not in chosen]
    spread = [n * len(questions) // max(1, count) for n in range(count)]
    chosen += [number for number in spread if number not in chosen]
    return chosen[: min(count, len(questions))]


def common_stems(corpus: Corpus) -> set[str]:
    """The stems of words in so many passages that a match says nothing, such as "the"."""
    rows = range(0, len(corpus), max(1, len(corpus) // _SAMPLED))
    counts = Counter(stem for row in rows for stem in set(stems_of(corpus.texts[row])))
    return {stem for stem, count in counts.items() if count > _COMMON * len(rows)}


def show(
    question: Question,
    systems: Sequence[tuple[str, Run]],
    corpus: Corpus,
    relevant: set[str] | None,
    common: set[str],
    depth: int = 3,
) -> Example:
    """Collect each system's first passages for a question, and the rank of the first relevant one.

    Args:
      relevant: ids of the passages judged to answer it; None without judgements.
      common: words that are not marked, as `common_stems` gives them.
    """
    words = set(stems_of(question.text)) - common
    columns = []
    for name, run in systems:
        found = sorted(run.get(question.id, {}).items(), key=lambda pair: -pair[1])
        hits = []
        for id, score in found[:depth]:
            row = corpus.row(id)
            judged = None if relevant is None else id in relevant
            title, text = corpus.titles[row], corpus.texts[row]
            hits.append(Hit(marked(title, words), marked(_excerpt(text, words), words), score, judged))
        rank = None if relevant is None else next((n for n, (id, _) in enumerate(found, 1) if id in relevant), None)
        columns.append(Column(name, hits, rank))
    return Example(question.text, columns)


def marked(text: str, stems: set[str]) -> Markup:
    """A text as HTML, with <mark> around the words whose stem is among `stems`."""
    parts, end = [], 0
    for start, stop in _matches(text, stems):
        parts += [escape(text[end:start]), Markup("<mark>"), escape(text[start:stop]), Markup("</mark>")]
        end = stop
    return Markup("").join([*parts, escape(text[end:])])


def _matches(text: str, stems: set[str]) -> Iterator[tuple[int, int]]:
    """Yield the places of the matching words, from left to right."""
    for run in _RUN.finditer(text):
        words = stems_of(run.group())
        if len(words) == 1:
            if words[0] in stems:
                yield run.span()
            continue
        # Characters without spaces between words: BM25 compares pairs of them.
        end = 0
        for place in range(len(run.group()) - 1):
            if run.group()[place : place + 2] in stems:
                yield run.start() + max(place, end), run.start() + place + 2
                end = place + 2


def _excerpt(text: str, stems: set[str]) -> str:
    """The part of a passage that is shown: from shortly before its first matching word."""
    start, stop = next(_matches(text, stems), (0, 0))
    first = 0 if stop < _SHOWN else text.rfind(" ", 0, max(1, start - _BEFORE)) + 1
    shown = text[first : first + _SHOWN]
    return ("…" if first else "") + shown + ("…" if first + _SHOWN < len(text) else "")
