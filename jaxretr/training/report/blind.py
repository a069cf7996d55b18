"""`jaxretr.judge`: two systems side by side on one's own questions, without names, for somebody to say which is better."""

import hashlib
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jaxretr.data.corpus import Corpus
from jaxretr.data.question_identity import first_with_text
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_corpus
from jaxretr.data.runs import questions_of, ranked_ids
from jaxretr.evaluate.evaluating import read_systems
from jaxretr.evaluate.measuring import Run, TestSet
from jaxretr.evaluate.report import overlap
from jaxretr.evaluate.searches import find_all
from jaxretr.runtime.errors import UsageError, UserError, at_least
from jaxretr.runtime.storage.files import atomic_write, check_output
from jaxretr.training.report import rendered

if TYPE_CHECKING:
    from jaxretr.config import EncodeDtype

log = logging.getLogger(__name__)

_TEMPLATE = Path(__file__).with_name("blind.html")


@dataclass(frozen=True)
class BlindPage:
    """A page for blind judgement, and how far its two systems differ.

    Attributes:
      out: the page.
      shown: the ids of the questions on it, in its order.
      same: the number of questions for which both systems find the same first passages in the same order.
      asked: the number of questions for which both find something.
      overlap: the mean rank-biased overlap of both systems' first hundred passages over these, in [0, 1].
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
    sides: list[list[tuple[str, str]]]
    """Titles and texts of the passages on the left, and of as many on the right."""


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

    For each question both systems' first passages stand side by side, left and right at random, and as many of both. Nothing
    else tells them apart: neither names nor scores, nor the question's words, of which BM25's passages have more. The page
    counts the votes, keeps them in the browser, and tests them by an exact two-sided sign test, in which "equal" does not
    count; it names the systems when it is asked to, after which it takes no more votes. It needs no judgements and no network.

    Args:
      first: a model, as a folder or hub name; a run, as a file; or bm25.
      second: the system to compare it with.
      corpus: the passages.
      queries: the questions: JSON lines, tab-separated, or a .txt with one a line.
      out: the page, an .html; an older one is replaced.
      hits: passages shown of each system, fewer where one finds fewer.
      count: questions shown, drawn from those whose first passages differ.
      seed: of the draw and of the sides.
      dtype: precision of the models.
      batch_size: texts per batch; by default chosen for the device.

    Questions for which one of them finds nothing, and repeated ones, are left out, with a warning that counts them.

    Raises:
      UsageError: one system twice, numbers below 1, or a page that is no .html.
      UserError: a file cannot be read or written, a run has none of the questions or a passage that is not in the corpus, or
        both systems find the same for every question.
    """
    at_least(1, hits=hits, count=count)
    path = Path(out).expanduser()
    if path.suffix != ".html":
        raise UsageError(f"out={out}: the page is an .html; end its name so, and no other file is replaced")
    check_output(path)
    questions = questions_of(queries)
    systems = read_systems([first, second], questions, dtype, batch_size)
    if systems[0][0] == systems[1][0]:
        raise UsageError(f"both systems are called {systems[0][0]} on the page; write ./{systems[0][0]} for the file")
    on = TestSet(questions, corpus if isinstance(corpus, Corpus) else read_corpus(corpus))
    runs = dict(find_all(systems, on, [f"recall@{hits}"]))  # A hundred hits at least, for the overlap.
    asked = [question for question in questions if all(run.get(question.id) for run in runs.values())]
    for name, run in runs.items():
        if lacks := sum(not run.get(question.id) for question in questions):
            if lacks == len(questions):
                raise UserError(f"{name}: has none of the questions; check that the ids agree")
            log.warning("%s: finds nothing for %d of %d questions; they are left out", name, lacks, len(questions))
    # Two votes on one question are no two votes for the test.
    firsts = first_with_text(question.text for question in asked).tolist()
    if repeated := sum(first != place for place, first in enumerate(firsts)):
        log.warning("%d questions repeat the text of an earlier one; they are left out", repeated)
        asked = [question for place, question in enumerate(asked) if firsts[place] == place]
    found = {question.id: _firsts(on.corpus, question.id, runs, hits) for question in asked}
    differ = [question for question in asked if found[question.id][0] != found[question.id][1]]
    if not differ:
        raise UserError(
            f"{first} and {second} find the same first {hits} passages for every question; nothing to judge"
        )
    draw = random.Random(seed)
    shown: list[_Shown] = []
    for question in draw.sample(differ, min(count, len(differ))):
        left = draw.randrange(2)
        sides = found[question.id]
        shown.append(_Shown(question.id, question.text, left, [sides[left], sides[1 - left]]))
    with atomic_write(path) as file:
        file.write(_page(shown, list(runs)))
    one, other = runs.values()
    rbo = overlap(one, other, [question.id for question in asked])
    return BlindPage(path, tuple(each.id for each in shown), len(asked) - len(differ), len(asked), rbo)


def _firsts(corpus: Corpus, question: str, runs: Mapping[str, Run], hits: int) -> list[list[tuple[str, str]]]:
    """Titles and texts of each run's first passages for a question, as many of each."""
    ranked = {name: ranked_ids(run[question], hits) for name, run in runs.items()}
    least = min(map(len, ranked.values()))
    found: list[list[tuple[str, str]]] = []
    for name, ids in ranked.items():
        if missing := next((id for id in ids if id not in corpus), None):
            raise UserError(f"{name}: passage '{missing}' is not in the corpus; give the corpus that was searched")
        rows = map(corpus.row, ids[:least])
        found.append([(corpus.titles[row], corpus.texts[row]) for row in rows])
    return found


def _page(shown: Sequence[_Shown], names: Sequence[str]) -> str:
    # The browser keeps the votes under this key: those of other questions, systems or sides are not taken for this page's.
    key = hashlib.sha256(repr((shown, names)).encode(errors="surrogatepass")).hexdigest()[:16]
    return rendered(_TEMPLATE, shown=shown, names=names, key=key)
