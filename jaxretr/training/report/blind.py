"""`jaxretr.judge`: two systems side by side on one's own questions, without names, for somebody to say which is better."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_corpus
from jaxretr.data.runs import questions_of, ranked_ids
from jaxretr.evaluate.evaluating import read_systems
from jaxretr.evaluate.measuring import OF_QRELS, TestSet
from jaxretr.evaluate.report import overlap
from jaxretr.evaluate.searches import find_all
from jaxretr.indexes.bm25.words import stems_of
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.storage.files import atomic_write
from jaxretr.training.report.examples import common_stems, marked

if TYPE_CHECKING:
    from jaxretr.config import EncodeDtype

_TEMPLATE = Path(__file__).with_name("blind.html")


@dataclass(frozen=True)
class BlindPage:
    """What `jaxretr.judge` wrote.

    Attributes:
      out: the page.
      shown: the ids of the questions on it, in its order.
      same: the number of questions for which both systems find the same first passages in the same order.
      asked: the number of all questions.
      overlap: the mean rank-biased overlap of both systems' first hundred passages over all questions, in [0, 1].
    """

    out: Path
    shown: tuple[str, ...]
    same: int
    asked: int
    overlap: float

    def __str__(self) -> str:
        return (
            f"{self.out}: {len(self.shown)} of {self.asked} questions to judge; for {self.same} both find the same passages "
            f"in the same order; rank-biased overlap {self.overlap:.2f}"
        )


class _Shown(NamedTuple):
    """A question on the page."""

    id: str
    text: str
    left: int
    """The system on the left, 0 or 1."""
    sides: list[list[tuple[Markup, Markup]]]
    """Titles and texts of the passages on the left, and on the right."""


def judge(
    first: str | Path,
    second: str | Path,
    *,
    corpus: str | Path | Corpus,
    queries: str | Path | Sequence[Question],
    out: str | Path,
    hits: int = 5,
    count: int = 50,
    seed: int = 0,
    dtype: "EncodeDtype" = "float32",
    batch_size: int | None = None,
) -> BlindPage:
    """Write a page on which a person judges two systems question by question, without knowing which is which.

    For each question both systems' first passages stand side by side, left and right at random. The page counts the votes,
    keeps them in the browser, and tests them by an exact two-sided sign test, in which "equal" does not count; it names the
    systems when it is asked to, after which it takes no more votes. It needs no judgements and no network.

    Args:
      first: a model, as a folder or hub name; a run, as a file; or bm25.
      second: the system to compare it with.
      corpus: the passages.
      queries: the questions: JSON lines, tab-separated, or a .txt with one a line.
      out: the page, an .html; an older one is replaced.
      hits: passages shown of each system.
      count: questions shown, drawn from those whose first `hits` passages differ.
      seed: of the draw and of the sides.
      dtype: precision of the models.
      batch_size: texts per batch; by default chosen for the device.

    Raises:
      UsageError: one system twice, or numbers below 1.
      UserError: a file cannot be read, a run has none of the questions or a passage that is not in the corpus, or both
        systems find the same for every question.
    """
    if hits < 1 or count < 1:
        raise UsageError(f"hits and count must be at least 1, not {hits} and {count}")
    path = Path(out).expanduser()
    if path.is_dir():
        raise UsageError(f"{out}: is a folder; give a file, such as {path / 'judge.html'}")
    questions = questions_of(queries)
    systems = read_systems([first, second], questions, dtype, batch_size)
    on = TestSet(questions, corpus if isinstance(corpus, Corpus) else read_corpus(corpus))
    found = find_all(systems, on, OF_QRELS)
    for name, run in found:
        if not any(run.get(question.id) for question in questions):
            raise UserError(f"{name}: has none of the questions; check that the ids agree")
    runs = [run for _, run in found]
    firsts = [[ranked_ids(run.get(question.id, {}), hits) for run in runs] for question in questions]
    differ = [number for number, (a, b) in enumerate(firsts) if a != b]
    if not differ:
        raise UserError(
            f"{first} and {second} find the same first {hits} passages for every question; nothing to judge"
        )
    draw = random.Random(seed)
    chosen = draw.sample(differ, min(count, len(differ)))
    common = common_stems(on.corpus)
    shown: list[_Shown] = []
    for number in chosen:
        order = draw.sample((0, 1), 2)
        words = set(stems_of(questions[number].text)) - common
        sides = [[_passage(on.corpus, id, words, found[side][0]) for id in firsts[number][side]] for side in order]
        shown.append(_Shown(questions[number].id, questions[number].text, order[0], sides))
    with atomic_write(path) as file:
        file.write(_page(shown, [name for name, _ in found]))
    ids = [question.id for question in questions]
    rbo = overlap(runs[0], runs[1], ids)
    return BlindPage(path, tuple(ids[number] for number in chosen), len(questions) - len(differ), len(questions), rbo)


def _passage(corpus: Corpus, id: str, words: set[str], system: str) -> tuple[Markup, Markup]:
    """A passage's title and text, with the question's words marked."""
    if id not in corpus:
        raise UserError(f"{system}: passage '{id}' is not in the corpus; give the corpus that was searched")
    row = corpus.row(id)
    return marked(corpus.titles[row], words), marked(corpus.texts[row], words)


def _page(shown: Sequence[_Shown], names: Sequence[str]) -> str:
    import jinja2

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    # The browser keeps the votes under this key: those of other questions, systems or sides are not taken for this page's.
    key = hashlib.sha256(repr((shown, names)).encode()).hexdigest()[:16]
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(shown=shown, names=names, key=key)
