"""The table of the teacher's scores in an ART run: its shape, and its first contents."""

import logging
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxretr.config import Scorer, ScoreTable
from jaxretr.data.corpus import Corpus
from jaxretr.data.formats.reading import numbered_examples
from jaxretr.data.made_of import read_record
from jaxretr.data.questions import Question
from jaxretr.data.text_rows import RowError
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.notes import note
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.mesh import padded_rows, put_rows
from jaxretr.training.steps.score_table import EMPTY, TableState

log = logging.getLogger(__name__)

# Settings that a record of scores has besides digests. The path is recorded but not compared: a folder may be moved.
_SETTINGS = ("path", "max_length", "max_question_length", "dtype")
_TEXTS = ("corpus", "questions")


def table_maker(config: ScoreTable, questions: int, top_k: int, mesh: Mesh) -> Callable[[], TableState] | None:
    """Return a compiled function that returns a run's table without scores; None where no scores are kept.

    Args:
      top_k: number of passages of a question in a step: there is room for at least as many.
    """
    if not config.capacity:
        return None
    shape = padded_rows(questions, mesh), max(config.capacity, top_k)
    return jax.jit(
        lambda: TableState(jnp.full(shape, EMPTY, jnp.int32), jnp.zeros(shape)),
        out_shardings=NamedSharding(mesh, sharding.ROWS),
    )


def made_of(config: Scorer, inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the origin of a teacher's scores as name -> value: its settings, and digests of the teacher and the texts.

    Args:
      inputs: digests of the run's inputs by name, as in inputs.json.
    """
    settings = {f"scorer.{name}": str(getattr(config, name)) for name in _SETTINGS}
    return {**settings, **{name: inputs[name] for name in ("scorer", *_TEXTS) if name in inputs}}


def check_made_of(path: str, facts: Mapping[str, str]) -> None:
    """Compare the record of a file of scores with a run; only log if just the texts differ, or nothing is known.

    Raises:
      UserError: another teacher, or other lengths or another precision.
    """
    record = read_record(path)
    if record is None:
        note(
            log.warning,
            "table.path=%s does not say which teacher gave its scores; make sure that it was scorer.path, with the same "
            "lengths, template and dtype",
            path,
        )
        return
    others = [name for name in facts if name != "scorer.path" and record.get(name, facts[name]) != facts[name]]
    settings = [f"{name}={record[name]}" for name in others if name not in ("scorer", *_TEXTS)]
    if settings or "scorer" in others:
        what = f"with {', '.join(settings)}" if settings else f"by another teacher ({record['scorer.path']})"
        raise UserError(f"table.path={path}: its scores were given {what}; use the same, or leave table.path out")
    if others:
        what = " and ".join(others)
        note(log.warning, "table.path=%s: its scores are of other %s; they are joined by the ids", path, what)


def read_table(path: str, shapes: TableState, corpus: Corpus, questions: Sequence[Question], mesh: Mesh) -> TableState:
    """Return a table with the scores of a file, in any format of training data that has ids and scores of passages.

    Questions that the file does not name begin without scores. If a question has more passages than the table has room
    for, the first ones are kept.

    Raises:
      UserError: a bad row, a passage without an id or a score, one that the corpus lacks, or a file that names none of
        the questions.
    """
    count, capacity = len(questions), shapes.rows.shape[1]
    rows = np.full((shapes.rows.shape[0], capacity), EMPTY, np.int32)
    scores = np.zeros(rows.shape, np.float32)
    numbers: dict[str, list[int]] = {}
    for number in range(count):
        numbers.setdefault(questions[number].id, []).append(number)
    known = 0
    for line, example in numbered_examples(path):
        try:
            if isinstance(example, RowError):
                raise example
            if example.id not in numbers:
                continue
            found: dict[int, float] = {}
            for candidate in example.candidates:
                if candidate.id is None or candidate.id not in corpus:
                    raise RowError(
                        f"passage '{candidate.id}' is not in the corpus; give scores of passages of this corpus"
                    )
                if candidate.score is None:
                    raise RowError(f"passage '{candidate.id}' has no score; give every passage one")
                found.setdefault(corpus.row(candidate.id), candidate.score)
        except RowError as error:
            raise UserError(f"{path}:{line}: {error}") from error
        kept = list(found.items())[:capacity]
        for number in numbers[example.id]:
            rows[number, : len(kept)] = [row for row, _ in kept]
            scores[number, : len(kept)] = [score for _, score in kept]
            known += 1
    if not known:
        raise UserError(
            f"{path}: has scores of none of the {count} training questions; give those of a run with the same questions"
        )
    return TableState(*(put_rows(mesh, x, x.shape, x.dtype) for x in (rows, scores)))
