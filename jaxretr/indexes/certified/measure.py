"""Tuning and certifying a `ScannIndex` with its questions."""

import logging
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes import certificate as certificates
from jaxretr.indexes import question_sets
from jaxretr.indexes.certificate import Recall
from jaxretr.indexes.certified import filtering
from jaxretr.indexes.certified.certificate import Certificate, Line
from jaxretr.indexes.certified.engines import engine_of
from jaxretr.indexes.certified.exact_scores import Anywhere
from jaxretr.indexes.certified.layout import Facts
from jaxretr.indexes.certified.one_pass import search_in_one_pass
from jaxretr.indexes.certified.rows import Rows
from jaxretr.indexes.certified.searcher import Searcher
from jaxretr.indexes.certified.tuning import Setting, tune
from jaxretr.indexes.question_sets import Questions
from jaxretr.runtime.parallel import memory
from jaxretr.runtime.parallel.machine import cpu_threads

log = logging.getLogger(__name__)


class Measurable(Protocol):
    """The parts of a `ScannIndex` that measuring needs."""

    facts: Facts
    rows: Rows
    searcher: Searcher

    def __len__(self) -> int: ...


def tuned(index: Measurable, questions: Questions | None, targets: Sequence[float]) -> tuple[Setting, ...]:
    """Find a setting for each target, and warn of a target that is not reached for certain."""
    n, k = len(index), index.facts.k
    if index.facts.kind == "exact" or questions is None:
        everything = {"leaves": 0, "candidates": n, "tuning_recall": 1.0, "certain": 1.0, "reached": True}
        return tuple(Setting(target=target, **everything) for target in targets)
    vectors = questions.vectors[questions.tune]
    own = questions.own_rows(index.rows.row_of(), questions.tune)
    exact = _exact_rows(index, vectors, own, k)
    reading = Anywhere(index.rows, index.rows.slots_of_timing())

    def candidates(leaves: int, count: int) -> NDArray[np.int64]:
        found, approximate = index.searcher.candidates(vectors, leaves, count, cpu_threads())
        return np.where(np.isnan(approximate), -1, found.astype(np.int64))

    def search(leaves: int, count: int, some: int) -> object:
        return index.searcher.search(vectors[:some], k, leaves, count, 1, reading)

    settings = tune(candidates, search, exact, own, targets=targets, leaves=index.facts.leaves, rows=n)
    index.rows.release()
    for setting in settings:
        if not setting.reached:
            log.warning(
                "recall@%d of %g is not reached for certain: the best setting (%s leaves, %d candidates) has %.4f on %d "
                "tuning questions, of which %.4f is certain; give more questions, or a lower target",
                k,
                setting.target,
                setting.leaves or "no",
                setting.candidates,
                setting.tuning_recall,
                len(vectors),
                setting.certain,
            )
    return filtering.tuned(index, questions, settings)


def certify(index: Measurable, questions: Questions) -> tuple[Questions, Certificate]:
    """Return the questions with their exact neighbours, and the certificate."""
    part, n, facts = questions.certify, len(index), index.facts
    vectors = questions.vectors[part]
    own = questions.own_rows(index.rows.row_of(), part)
    exact = _exact_rows(index, vectors, own, min(max(question_sets.DEPTH, facts.k), n))
    reading = Anywhere(index.rows, index.rows.slots_of_timing())
    lines = [
        Line(
            target=setting.target,
            tuned_k=facts.k,
            reached=setting.reached,
            leaves=setting.leaves,
            candidates=setting.candidates,
            recalls=recalls,
            **certificates.measure_speed(_timed(index, setting, reading), vectors, facts.k),
        )
        for setting, recalls in zip(facts.settings, _recalls(index, vectors, exact, own), strict=True)
    ]
    index.rows.release()
    certificate = Certificate(
        questions=len(vectors),
        of="passages" if questions.stand_ins else "questions",
        rows=n,
        lines=tuple(lines),
        filters=filtering.certified(index, questions),
        **{name: getattr(facts, name) for name in ("dim", "leaves", "train_rows", "seed", "model", "engine")},
        **certificates.machine_facts(*([] if facts.kind == "exact" else [engine_of(facts.engine).package])),
    )
    return question_sets.with_neighbours(questions, exact, index.rows.ids), certificate


def recalls_again(index: Measurable, questions: Questions) -> list[tuple[Recall, ...]]:
    """Measure again the recalls of a certificate that is not stale, against the neighbours that the questions note."""
    row_of = index.rows.row_of()
    exact = np.array([[row_of.get(name, -2) for name in names] for names in questions.neighbours], np.int64)
    own = questions.own_rows(row_of, questions.certify)
    return _recalls(index, questions.vectors[questions.certify], exact, own)


def _recalls(
    index: Measurable, vectors: NDArray[np.float32], exact: NDArray[np.int64], own: NDArray[np.int64]
) -> list[tuple[Recall, ...]]:
    depths = (index.facts.k, *certificates.DEPTHS)
    return [
        certificates.measure_recalls(_one_pass(index, setting), vectors, exact, own, depths)
        for setting in index.facts.settings
    ]


def _timed(index: Measurable, setting: Setting, reading: Anywhere) -> certificates.Search:
    return lambda queries, k, threads: index.searcher.search(
        queries, min(k, len(index)), setting.leaves, setting.candidates, threads, reading
    )


def _one_pass(index: Measurable, setting: Setting) -> certificates.Search:
    return lambda queries, k, threads: search_in_one_pass(
        index.searcher, index.rows, queries, min(k, len(index)), setting.leaves, setting.candidates, threads
    )


# ---- within the memory of a part of the vectors ----------------------------------------------------------------------


def _exact_rows(index: Measurable, vectors: NDArray[np.float32], own: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    index.rows.release()
    exact = question_sets.exact_rows(vectors, own, index.rows.vector_blocks(), k, len(index))
    memory.give_back()
    return exact
