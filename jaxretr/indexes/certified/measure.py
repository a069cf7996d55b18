"""Tuning and certifying a `ScannIndex` with its questions."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes import question_sets
from jaxretr.indexes.certified import filtering
from jaxretr.indexes.certified.exact_scores import Anywhere, OnePass, Reading
from jaxretr.indexes.certified.filtering import Measurable
from jaxretr.indexes.certified.layout import Facts
from jaxretr.indexes.certified.tuning import Setting, tune
from jaxretr.indexes.measuring import DEPTHS, GroundTruth, Search, measure_recalls
from jaxretr.indexes.measuring import certify as certify_settings
from jaxretr.indexes.question_sets import Questions
from jaxretr.indexes.recall import Certificate, Recall
from jaxretr.runtime.parallel import memory
from jaxretr.runtime.parallel.machine import cpu_threads

log = logging.getLogger(__name__)


def tuned(index: Measurable, questions: Questions | None, targets: Sequence[float]) -> tuple[Setting, ...]:
    """Find a setting for each target, and warn of a target that is not reached for certain."""
    n, k = len(index), index.facts.k
    if index.facts.kind == "exact" or questions is None:
        everything = {"leaves": 0, "candidates": n, "tuning_recall": 1.0, "certain": 1.0, "reached": True}
        return tuple(Setting(target=target, **everything) for target in targets)
    truth = _ground_truth(index, questions, questions.tune, k)
    reading = Anywhere(index.rows, index.rows.slots_of_timing())

    def candidates(leaves: int, count: int) -> NDArray[np.int64]:
        rows, approximate = index.searcher.candidates(truth.vectors, leaves, count, cpu_threads())
        return np.where(np.isnan(approximate), -1, rows.astype(np.int64))

    def search(leaves: int, count: int, questions_timed: int) -> object:
        return index.searcher.search(truth.vectors[:questions_timed], k, leaves, count, 1, reading)

    settings = tune(candidates, search, truth.exact, truth.own_rows, targets=targets, leaves=index.facts.leaves, rows=n)
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
                len(truth.vectors),
                setting.certain,
            )
    return filtering.tuned(index, questions, settings)


def certify(index: Measurable, questions: Questions) -> tuple[Questions, Certificate]:
    """Return the questions with their exact neighbours, and the certificate."""
    n, facts = len(index), index.facts
    truth = _ground_truth(index, questions, questions.certify, min(max(question_sets.DEPTH, facts.k), n))
    reading = Anywhere(index.rows, index.rows.slots_of_timing())
    certificate = certify_settings(
        facts.settings,
        lambda setting: _search(index, setting, OnePass(index.rows)),
        truth,
        facts.k,
        timed=lambda setting: _search(index, setting, reading),
        stand_ins=questions.stand_ins,
        rows=n,
        filters=filtering.certified(index, questions),
        **kind_facts(facts),
        seed=facts.seed,
        model=facts.model,
    )
    index.rows.release()
    return question_sets.with_neighbours(questions, truth.exact, index.rows.ids), certificate


def kind_facts(facts: Facts) -> dict[str, Any]:
    """The arguments of `measuring.certify` that are facts of the index, or the packages of its engine."""
    engine = facts.used_engine()
    return {
        "packages": () if engine is None else (engine.package,),
        **{name: getattr(facts, name) for name in ("dim", "leaves", "train_rows", "engine")},
    }


def recalls_again(index: Measurable, questions: Questions) -> list[tuple[Recall, ...]]:
    """Measure again the recalls of a certificate that is not stale, against the neighbours that the questions note."""
    truth, depths = questions.as_noted(index.rows.row_of()), (index.facts.k, *DEPTHS)
    return [
        measure_recalls(_search(index, setting, OnePass(index.rows)), truth, depths) for setting in index.facts.settings
    ]


def _search(index: Measurable, setting: Setting, reading: Reading) -> Search:
    def search(queries: np.ndarray, k: int, threads: int) -> NDArray[np.int64]:
        k = min(k, len(index))
        return index.searcher.search(queries, k, setting.leaves, setting.candidates, threads, reading)[1]

    return search


def _ground_truth(index: Measurable, questions: Questions, part: slice, k: int) -> GroundTruth:
    index.rows.release()
    vectors, own_rows = questions.vectors[part], questions.own_rows(index.rows.row_of(), part)
    truth = question_sets.with_exact(vectors, own_rows, index.rows.vector_blocks(), k, len(index))
    memory.give_back()  # what the pass held: measuring is within the memory of a part of the vectors
    return truth
