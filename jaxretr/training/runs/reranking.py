"""Evaluation of a run by re-ranking: a fixed list of passages for each dev question."""

import logging
from collections.abc import Sequence

import jax
import numpy as np

from jaxretr.config import RerankerData
from jaxretr.data.corpus import Corpus
from jaxretr.data.pairs import Pair
from jaxretr.data.question_identity import own_rows
from jaxretr.data.run_reading import read_run
from jaxretr.data.runs import ranked_ids
from jaxretr.embeddings.pair_scores import score_pairs
from jaxretr.evaluate.retrieval import retrieval_metrics
from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.models.pair_scorer import CrossEncoder
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.notes import note
from jaxretr.training.runs.pair_draws import first_ranks
from jaxretr.training.runs.whole_corpus import Judged, check_corpus

log = logging.getLogger(__name__)

MEASURES = ("ndcg@10", "mrr@10", "recall@1", "recall@5", "recall@20")


class RerankingSet:
    """Dev questions with the passages that are re-ranked, the same at every evaluation.

    Attributes:
      rows: corpus rows of each question's candidates, the first stage's best first.
    """

    def __init__(self, judged: Judged | None, corpus: Corpus, data: RerankerData):
        """Take the candidates from a run, or search for them with BM25.

        Raises:
          UserError: judgements or a run of another corpus, or a run of other questions.
        """
        self.questions, self.qrels, self.corpus = [], None, corpus
        if judged is None:
            return
        self.questions, self.qrels = judged.questions, judged.qrels
        check_corpus(judged, corpus)
        own, depth = own_rows(self.questions, corpus, self.qrels), data.dev_depth
        found = (
            first_ranks(corpus, [question.text for question in self.questions], depth + 1)
            if data.dev_run is None
            else self._of_run(data.dev_run, depth + 1)
        )
        # The search had one more hit, to replace a question that is itself a passage.
        self.rows: Sequence[np.ndarray] = [
            rows[rows != row][:depth] for rows, row in zip(found, own.tolist(), strict=True)
        ]
        note(
            log.info,
            "%d dev questions, %d passages to re-rank; before: %s",
            len(self.questions),
            sum(map(len, self.rows)),
            ", ".join(f"{name} {value:.4f}" for name, value in self.first_stage().items()),
        )

    def first_stage(self) -> dict[str, float]:
        """Return the metrics of the candidates in their original order."""
        return self._metrics([-np.arange(len(rows), dtype=np.float32) for rows in self.rows])

    def metrics(self, model: CrossEncoder) -> dict[str, float]:
        """Return the metrics of the candidates in a model's order; none without questions. Called by all processes."""
        if not self.questions:
            return {}
        counts = [len(rows) for rows in self.rows]
        pairs = (
            Pair(question.text, self.corpus.titles[row], self.corpus.texts[row])
            for question, rows in zip(self.questions, self.rows, strict=True)
            for row in rows
        )
        # One chunk for each process.
        chunk = max(1, -(-sum(counts) // jax.process_count()))
        scores = score_pairs(model, pairs, sum(counts), chunk=chunk)
        return self._metrics(np.split(scores, np.cumsum(counts)[:-1]))

    def _metrics(self, scores: Sequence[np.ndarray]) -> dict[str, float]:
        shape = len(self.rows), max(1, *map(len, self.rows))
        ranked, best = np.full(shape, NO_PASSAGE), np.full(shape, -np.inf, np.float32)
        for number, (of_question, rows) in enumerate(zip(scores, self.rows, strict=True)):
            order = np.argsort(-of_question, kind="stable")
            ranked[number, : len(rows)], best[number, : len(rows)] = rows[order], of_question[order]
        return retrieval_metrics(self.corpus, self.questions, self.qrels, best, ranked, MEASURES)

    def _of_run(self, path: str, depth: int) -> list[np.ndarray]:
        run = read_run(path, questions=self.questions)
        rows = []
        for question in self.questions:
            found = ranked_ids(run.get(question.id, {}), depth)
            if unknown := [id for id in found if id not in self.corpus]:
                raise UserError(f"{path}: passage '{unknown[0]}' is not in the corpus; give the run of this corpus")
            rows.append(np.array([self.corpus.row(id) for id in found], np.int64))
        if not any(map(len, rows)):
            raise UserError(f"{path}: has hits for none of the {len(rows)} dev questions; check that the ids match")
        return rows
