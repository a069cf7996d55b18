"""Validation as DPR and SPAR do it: the loss on dev examples, and the rank of each one's passage in a common pool.

The loss is the training step's own (`batch_loss`, with `loss_on_index`), with all terms whose inputs dev examples have:
without retrieved negatives, the corpus-wide softmax and misspelt forms.

DPR's original computes both per process, so that they change with the number of devices. Here the loss takes the
examples in the file's order, `batch_size` at a time, and the pool is one for all questions; the devices only share the
work. SPAR's mini-index, the first positive and one negative of each of N questions, is the pool of `hard_negatives=1`
and `other_negatives=0`.
"""

import dataclasses
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxretr.config import Validation
from jaxretr.data.training_set import Ragged, TrainingSet
from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.models.backbones.layers import Params
from jaxretr.runtime.parallel.mesh import DATA, make_mesh, put_rows
from jaxretr.runtime.parallel.programs import device_jit
from jaxretr.training.runs.corpus_tokens import width_of
from jaxretr.training.runs.example_draws import known_contents
from jaxretr.training.runs.programs import put_batch
from jaxretr.training.runs.whole_corpus import Model, WholeCorpus, token_store
from jaxretr.training.state import ProductCodes, TrainState
from jaxretr.training.steps.batch_loss import ContrastiveBatch, ContrastiveProgram, PassagesOfBatch, batch_loss
from jaxretr.training.steps.index_aware import loss_on_index

# Number of questions that each device embeds, and that are ranked, at a time.
_ROWS = 64


class ValidationSet:
    """Dev examples with the programs that measure them."""

    def __init__(
        self,
        config: Validation,
        examples: TrainingSet,
        text_ids: np.ndarray,
        model: Model,
        program: ContrastiveProgram,
        whole: WholeCorpus,
        stores: Path,
    ):
        self.config, self.examples, self.whole = config, examples, whole
        self._rows = token_store(model, examples.texts, stores)
        # All rows are text ids, the first row with a title and text: each passage counts once, and no copy of a question's
        # own passage can push it down.
        own, scores, pool = [], [], []
        # The teacher's scores of each kind of passages, in lists like the passages'; NaN where it gave none.
        unscored = [np.full(len(each.values), np.nan, np.float32) for each in examples.lists]
        kinds = examples.positive_scores, examples.negative_scores, None
        of_kinds = [
            Ragged(each.offsets, missing if scored is None else scored.values)
            for each, missing, scored in zip(examples.lists, unscored, kinds, strict=True)
        ]
        for number in range(len(examples)):
            positive, hard, other = (
                text_ids[lists[number]] for lists in (examples.positives, examples.negatives, examples.other_negatives)
            )
            own.append([positive[0], next(iter([*hard[:1], *other[:1]]), NO_PASSAGE)])
            positive_score, *negative_score = (lists[number][:1] for lists in of_kinds)
            scores.append([positive_score[0], next(iter(np.concatenate(negative_score)), np.nan)])
            pool += [positive[:1], hard[: config.hard_negatives], other[: config.other_negatives]]
        self._own = np.array(own, np.int32)  # [n, 2]: the first positive, and the first negative
        self._scores = np.array(scores, np.float32)  # a teacher's, [n, 2]
        self._known = _known(examples, text_ids, judged=program.negatives.mask_known_positives)
        self._pool = np.unique(np.concatenate(pool))
        self._embedded = np.union1d(self._pool, self._own[self._own != NO_PASSAGE])
        self._count_above = _make_count_above(whole.mesh)
        self._loss_of_batch = _make_loss(program)

    def metrics(self, train: TrainState) -> dict[str, float]:
        """Return the metrics.

        `loss` is the mean negative log-likelihood in nats; `average_rank` is the mean rank in the pool, counted from 0;
        `mrr` is the mean of 1 / rank there, counted from 1.
        """
        questions = self._question_embeddings(train.weights)
        passages = np.concatenate(list(self.whole.embedded(train.weights, self._embedded)))
        above = self._above(questions, passages)
        return {
            "loss": self._loss(questions, passages, train.codes),
            "average_rank": float(above.mean()),
            "mrr": float((1 / (1 + above)).mean()),
        }

    def _loss(self, questions: np.ndarray, passages: np.ndarray, codes: ProductCodes | None) -> float:
        """Return the training loss over the first positives and negatives of a batch, the mean over all examples."""
        total = 0.0
        for start in range(0, len(questions), self.config.batch_size):
            rows = slice(start, start + self.config.batch_size)
            own = self._own[rows]
            place = np.searchsorted(self._embedded, np.maximum(own, self._embedded[0]))
            arrays = questions[rows], passages[place], own, self._known[rows], self._scores[rows]
            total += len(own) * float(self._loss_of_batch(*arrays, jax.device_get(codes)))
        return total / len(questions)

    def _above(self, questions: np.ndarray, passages: np.ndarray) -> np.ndarray:
        """Count the pool passages that rank above each question's first positive, int64 [n]; lower rows win ties."""
        # Embeddings of the pool, float32 [rows, D], padded for the devices; each question's positive in it, [n].
        passages = passages[np.searchsorted(self._embedded, self._pool)]
        devices = self.whole.mesh.shape[DATA]
        rows = -(-len(passages) // devices) * devices
        pool = put_rows(self.whole.mesh, passages, (rows, passages.shape[1]), np.float32)
        places = np.searchsorted(self._pool, self._own[:, 0])
        above = []
        for start in range(0, len(questions), _ROWS):
            # Questions in batches of one size, so that one program counts for all.
            q = np.zeros((_ROWS, questions.shape[1]), np.float32)
            place = np.zeros(_ROWS, np.int32)
            count = min(_ROWS, len(questions) - start)
            q[:count], place[:count] = questions[start : start + count], places[start : start + count]
            above.append(np.asarray(self._count_above(pool, q, place, len(passages)))[:count])
        return np.concatenate(above).astype(np.int64)

    def _question_embeddings(self, params: Params) -> np.ndarray:
        batch = _ROWS * self.whole.mesh.shape[DATA]
        found = []
        for start in range(0, len(self.examples), batch):
            rows = self._rows.padded(start, start + batch, width_of(self._rows))
            found.append(np.asarray(self.whole.embed_questions(params, *put_batch(self.whole.mesh, rows))))
        return np.concatenate(found)[: len(self.examples)]


def _known(examples: TrainingSet, text_ids: np.ndarray, *, judged: bool) -> np.ndarray:
    """Text ids that are no negatives of each example, int32 [n, Q], padded with NO_PASSAGE; see `Draws.known`."""
    lists = known_contents(examples, text_ids, judged=judged)
    known = np.full((len(lists), lists.lengths.max()), NO_PASSAGE, np.int32)
    known[np.arange(known.shape[1]) < lists.lengths[:, None]] = lists.values
    return known


def _make_loss(program: ContrastiveProgram):
    """loss(q [b, D], p [b, 2, D], text ids int32 [b, 2], known int32 [b, Q], teacher's scores [b, 2], codes) -> scalar.

    It is computed by one device of each process, so that it does not depend on how many there are.
    """
    program = dataclasses.replace(
        program,
        positives=1,
        negatives=dataclasses.replace(program.negatives, retrieved=0),
        contrastive=dataclasses.replace(program.contrastive, corpus_softmax=False),
    )
    mesh = make_mesh(jax.local_devices()[:1])

    @device_jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(*(P(DATA),) * 5, P()), out_specs=P())
    def loss(
        q: jax.Array, p: jax.Array, own: jax.Array, known: jax.Array, scores: jax.Array, codes: ProductCodes | None
    ) -> jax.Array:
        b = len(q)
        # The texts are embedded already, and there are no misspelt forms: nothing reads the tokens.
        batch = ContrastiveBatch(jnp.zeros((b, 1), jnp.int32), jnp.ones(b, jnp.int32), own, known, scores)
        everyone = lax.all_gather(own, DATA, tiled=True, to="invarying")
        passages = PassagesOfBatch(own, everyone, None, jnp.zeros(0, jnp.int32))
        part, _ = loss_on_index(program.index_aware, codes, partial(batch_loss, program, q, p, passages, batch))
        return lax.psum(part, DATA)

    return loss


def _make_count_above(mesh: Mesh):
    """count(pool [n, D], q [B, D], place int32 [B], valid) -> int32 [B]: rows of the pool that rank above `place`."""

    @device_jit
    @partial(jax.shard_map, mesh=mesh, axis_names={DATA}, in_specs=(P(DATA), P(), P(), P()), out_specs=P())
    def count_above(pool: jax.Array, q: jax.Array, place: jax.Array, valid: jax.Array) -> jax.Array:
        row = lax.axis_index(DATA) * len(pool) + jnp.arange(len(pool))
        scores = jnp.matmul(q, pool.T, precision=lax.Precision.HIGHEST)  # [B, n]
        its_own = jnp.where(row == place[:, None], scores, 0.0).sum(axis=-1)
        its_own = lax.psum(its_own, DATA)[:, None]
        above = (scores > its_own) | ((scores == its_own) & (row < place[:, None]))
        return lax.psum((above & (row < valid)).sum(axis=-1), DATA)

    return count_above
