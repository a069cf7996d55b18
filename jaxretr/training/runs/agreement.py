"""Questions that a run is evaluated on by its teacher's opinion of what the model finds, judged or not."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxretr.data.token_store import TokenStore
from jaxretr.models.backbones.layers import Params
from jaxretr.runtime.parallel.mesh import DATA, replicate, to_host
from jaxretr.runtime.parallel.programs import device_jit
from jaxretr.training.runs.corpus_tokens import width_of
from jaxretr.training.runs.programs import put_batch
from jaxretr.training.runs.whole_corpus import DevSet
from jaxretr.training.state import CorpusTokens
from jaxretr.training.steps.teaching import Questions, Teaching, teach

FOUND = 5
"""Passages of each question that the teacher is asked about."""

METRIC = f"teacher@{FOUND}"
"""Mean of the teacher's scores of the first passages that the model finds."""

# Questions that the teacher is asked about at once: few, so that a call ends within a minute on a CPU.
_BATCH = 16

Ask = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Function (numbers of questions int32 [b], rows int32 [b, K]) -> the teacher's scores, float32 [b, K]; b at most 16."""


class AgreementSet(DevSet):
    """Held-out questions: the better the teacher thinks of what is found for them, the better the model.

    Args:
      ask: the teacher.
      dev: the questions, and further arguments of a `DevSet`.
    """

    def __init__(self, ask: Ask, *dev: Any):
        super().__init__(*dev)
        self._ask = ask
        self._known: dict[tuple[int, int], float] = {}

    def measured(self, scores: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        """Return what judgements and answers say, if there are any, and the teacher's mean score of the first passages.

        Pairs that it has scored are not asked for again.
        """
        judged = super().measured(scores, rows)
        rows = rows[:, :FOUND]
        for start in range(0, len(rows), _BATCH):
            numbers = np.arange(start, min(start + _BATCH, len(rows)))
            new = np.array([[(number, row) not in self._known for row in rows[number].tolist()] for number in numbers])
            if not new.any():
                continue
            # Pairs that stand in the batch twice are asked for once: known ones are replaced by the first new one.
            wanted = new.any(axis=1)
            numbers, new = numbers[wanted], new[wanted]
            firsts = rows[numbers, new.argmax(axis=1)]
            asked = np.where(new, rows[numbers], firsts[:, None])
            found = self._ask(numbers.astype(np.int32), asked.astype(np.int32))
            for number, of_one, values in zip(numbers.tolist(), asked.tolist(), found.tolist(), strict=True):
                self._known |= {(number, row): value for row, value in zip(of_one, values, strict=True)}
        means = [np.mean([self._known[number, row] for row in of_one]) for number, of_one in enumerate(rows.tolist())]
        return {**judged, METRIC: float(np.mean(means))}


def make_ask(teaching: Teaching, params: Params, passages: CorpusTokens, targets: TokenStore, mesh: Mesh) -> Ask:
    """Return the function that asks a run's teacher about held-out questions.

    Args:
      passages: the corpus in its tokens, on the devices.
      targets: the questions in its tokens.
    """

    @device_jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P(DATA), P(), P(DATA)), out_specs=P(), axis_names={DATA})
    def scores(params: Params, passages: CorpusTokens, rows: jax.Array, questions: Questions) -> jax.Array:
        return teach(teaching, params, passages, rows, questions, None).scores

    devices = mesh.shape[DATA]
    size = -(-_BATCH // devices) * devices

    def ask(numbers: np.ndarray, rows: np.ndarray) -> np.ndarray:
        # Empty places repeat the first question and its passages, which are asked for once.
        chosen = np.concatenate([numbers, np.full(size - len(numbers), numbers[0], np.int32)])
        asked = np.concatenate([rows, np.broadcast_to(rows[0], (size - len(rows), rows.shape[1]))])
        tokens, lengths = targets.select(chosen, width_of(targets))
        questions = Questions(*put_batch(mesh, (chosen, tokens, lengths)))
        return to_host(scores(params, passages, replicate(mesh, asked), questions))[: len(rows)]

    return ask
