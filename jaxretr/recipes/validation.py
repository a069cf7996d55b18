"""Validation as DPR and SPAR do it: the loss on dev examples, and the rank of each one's passage in a common pool.

DPR's original computes both per process, so that they change with the number of devices. Here the loss takes the
examples in the file's order, `batch_size` at a time, and the pool is one for all questions; the devices only share the
work. SPAR's mini-index, the first positive and one negative of each of N questions, is the pool of `hard_negatives=1`
and `other_negatives=0`.
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxretr.config import Validation
from jaxretr.data.training_set import TrainingSet
from jaxretr.models.embed import embed, tower
from jaxretr.models.layers import Params
from jaxretr.objectives.contrastive import NO_PASSAGE, ContrastiveProgram, Masks, contrastive_losses
from jaxretr.objectives.live_index import fetch_rows
from jaxretr.parallel.mesh import DATA, put_rows
from jaxretr.parallel.sharding import PARAMETERS_OR_STATE, over_data
from jaxretr.recipes.corpus_tokens import width_of
from jaxretr.recipes.example_draws import known_contents
from jaxretr.recipes.whole_corpus import Model, WholeCorpus, put_batch, question_store
from jaxretr.state import CorpusTokens, TrainState

# Rows that each device embeds, and questions that are ranked, at a time.
_ROWS = 64


class ValidationSet:
    """Dev examples with the programs that measure them."""

    def __init__(
        self,
        config: Validation,
        examples: TrainingSet,
        contents: np.ndarray,
        model: Model,
        program: ContrastiveProgram,
        whole: WholeCorpus,
        mesh: Mesh,
        stores: Path,
    ):
        self.config, self.examples, self.program, self.whole, self.mesh = config, examples, program, whole, mesh
        self._rows = question_store(stores, examples.texts, model)
        # Everything in terms of contents, the first row with a title and text: each passage counts once, and no copy of
        # a question's own passage can push it down.
        self._no_negatives = known_contents(examples, contents)
        own, pool = [], []
        for number in range(len(examples)):
            positive, hard, other = (
                contents[lists[number]] for lists in (examples.positives, examples.negatives, examples.other_negatives)
            )
            own.append([positive[0], next(iter([*hard[:1], *other[:1]]), NO_PASSAGE)])
            pool += [positive[:1], hard[: config.hard_negatives], other[: config.other_negatives]]
        self._own = np.array(own, np.int32)  # [n, 2]: the first positive, and the first negative
        self._pool = np.unique(np.concatenate(pool))
        self._embedded = np.union1d(self._pool, self._own[self._own != NO_PASSAGE])
        self._embed_questions = _make_embed(program, mesh)
        self._embed_rows = _make_embed_rows(program, mesh)
        self._count_above = _make_count_above(mesh)

    def metrics(self, train: TrainState) -> dict[str, float]:
        """Returns the metrics.

        `loss` is the mean negative log-likelihood in nats; `average_rank` is the mean rank in the pool, counted from 0;
        `mrr` is the mean of 1 / rank there, counted from 1.
        """
        questions, passages = self._question_embeddings(train.weights), self._passage_embeddings(train.weights)
        above = self._above(questions, passages)
        return {
            "loss": self._loss(questions, passages),
            "average_rank": float(above.mean()),
            "mrr": float((1 / (1 + above)).mean()),
        }

    def _loss(self, questions: np.ndarray, passages: np.ndarray) -> float:
        """The training loss at temperature and masks of the run, over the first positives and negatives of a batch."""
        losses = []
        for start in range(0, len(questions), self.config.batch_size):
            own = self._own[start : start + self.config.batch_size]
            place = np.searchsorted(self._embedded, np.maximum(own, self._embedded[0]))
            vectors = passages[place].reshape(-1, passages.shape[1])
            scores = questions[start : start + len(own)] @ vectors.T / self.program.contrastive.temperature
            known = self._known(range(start, start + len(own)))
            masks = Masks.of_batch(
                jnp.asarray(own),
                jnp.asarray(own),
                known,
                first=0,
                positives=1,
                mask_known_positives=self.program.negatives.mask_known_positives,
                mask_duplicates=self.program.negatives.mask_duplicates,
            )
            losses.append(np.asarray(contrastive_losses(jnp.asarray(scores), masks.positive, masks.negative)))
        return float(np.concatenate(losses).mean())

    def _known(self, numbers: range) -> jax.Array:
        lists = [self._no_negatives[number] for number in numbers]
        known = np.full((len(lists), max(map(len, lists))), NO_PASSAGE, np.int32)
        for row, values in zip(known, lists, strict=True):
            row[: len(values)] = values
        return jnp.asarray(known)

    def _above(self, questions: np.ndarray, passages: np.ndarray) -> np.ndarray:
        """How many pool passages rank above each question's first positive, int64 [n]; ties to the lower row."""
        passages = passages[np.searchsorted(self._embedded, self._pool)]
        devices = self.mesh.shape[DATA]
        rows = -(-len(passages) // devices) * devices
        pool = put_rows(self.mesh, passages, (rows, passages.shape[1]), np.float32)
        places = np.searchsorted(self._pool, self._own[:, 0])
        above = []
        for start in range(0, len(questions), _ROWS):
            q = np.zeros((_ROWS, questions.shape[1]), np.float32)
            place = np.zeros(_ROWS, np.int32)
            count = min(_ROWS, len(questions) - start)
            q[:count], place[:count] = questions[start : start + count], places[start : start + count]
            above.append(np.asarray(self._count_above(pool, q, place, len(passages)))[:count])
        return np.concatenate(above).astype(np.int64)

    # ---- embeddings --------------------------------------------------------------------------------------------------

    def _question_embeddings(self, params: Params) -> np.ndarray:
        batch = _ROWS * self.mesh.shape[DATA]
        found = []
        for start in range(0, len(self.examples), batch):
            rows = self._rows.padded(start, start + batch, width_of(self._rows))
            found.append(np.asarray(self._embed_questions(params, *(put_batch(self.mesh, x) for x in rows))))
        return np.concatenate(found)[: len(self.examples)]

    def _passage_embeddings(self, params: Params) -> np.ndarray:
        batch = _ROWS * self.mesh.shape[DATA]
        found = []
        for start in range(0, len(self._embedded), batch):
            rows = np.full(batch, NO_PASSAGE, np.int32)
            rows[: min(batch, len(self._embedded) - start)] = self._embedded[start : start + batch]
            found.append(np.asarray(self._embed_rows(params, self.whole.passages, rows)))
        return np.concatenate(found)[: len(self._embedded)]


def _make_embed(program: ContrastiveProgram, mesh: Mesh):
    """embed(params, tokens [n, L], lengths [n]) -> float32 [n, D] of questions, on all devices."""

    @jax.jit
    @partial(
        over_data,
        mesh=mesh,
        split=program.shard_parameters,
        in_specs=(PARAMETERS_OR_STATE, P(DATA), P(DATA)),
        out_specs=P(),
    )
    def embed_questions(params: Params, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        q = embed(program.encoder, tower(params, "question"), tokens, lengths, dtype=program.encoder_dtype)
        return lax.all_gather(q, DATA, tiled=True, to="invarying")

    return embed_questions


def _make_embed_rows(program: ContrastiveProgram, mesh: Mesh):
    """embed(params, passages, rows int32 [n]) -> float32 [n, D] of corpus rows, on all devices."""

    @jax.jit
    @partial(
        over_data,
        mesh=mesh,
        split=program.shard_parameters,
        in_specs=(PARAMETERS_OR_STATE, P(DATA), P()),
        out_specs=P(),
    )
    def embed_rows(params: Params, passages: CorpusTokens, rows: jax.Array) -> jax.Array:
        found = jax.tree.map(lambda values: values[:, 0], fetch_rows(passages, rows[:, None]))
        p = embed(program.encoder, tower(params, "passage"), found.tokens, found.lengths, dtype=program.encoder_dtype)
        return lax.all_gather(p, DATA, tiled=True, to="invarying")

    return embed_rows


def _make_count_above(mesh: Mesh):
    """count(pool [n, D], q [B, D], place int32 [B], valid) -> int32 [B]: rows of the pool that rank above `place`."""

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, axis_names={DATA}, in_specs=(P(DATA), P(), P(), P()), out_specs=P())
    def count_above(pool: jax.Array, q: jax.Array, place: jax.Array, valid: jax.Array) -> jax.Array:
        row = lax.axis_index(DATA) * len(pool) + jnp.arange(len(pool))
        scores = jnp.matmul(q, pool.T, precision=lax.Precision.HIGHEST)  # [B, n]
        its_own = jnp.where(row == place[:, None], scores, 0.0).sum(axis=-1)
        its_own = lax.psum(its_own, DATA)[:, None]
        above = (scores > its_own) | ((scores == its_own) & (row < place[:, None]))
        return lax.psum((above & (row < valid)).sum(axis=-1), DATA)

    return count_above
