"""Contrastive learning: each question's passage against all other passages of the batch (Karpukhin et al. 2020).

The functions of arrays come first, `contrastive_losses` and what decides which passages count; `make_step` below puts
them together with embedding, in-step retrieval and the update, as one compiled program.

Everything runs inside a shard_map over the mesh's "data" axis: b = B / devices questions are local, each with C
passages of its own (positives first, then negatives), and M = B C passages make up the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxretr.models.dual_encoder import truncated
from jaxretr.models.layers import Params
from jaxretr.objectives.corpus_softmax import corpus_logsumexp
from jaxretr.objectives.distillation import kl_divergence, margin_mse
from jaxretr.objectives.live_index import (
    IndexProgram,
    embed_passages,
    embed_questions,
    fetch_rows,
    find_passages,
    staleness,
    write_back,
)
from jaxretr.objectives.text_keys import TextKeys
from jaxretr.parallel.mesh import DATA
from jaxretr.state import CorpusState, CorpusTokens, TrainState

# Finite, so that a question without any negative has a gradient of 0 and not NaN; exp(_NOTHING - x) is exactly 0.
_NOTHING = -1e30

NO_PASSAGE = -1


# ---- the loss --------------------------------------------------------------------------------------------------------


def contrastive_losses(
    scores: jax.Array, positive: jax.Array, negative: jax.Array, further: jax.Array | None = None
) -> jax.Array:
    """Softmax cross-entropy of every positive against the negatives, per question.

    With one positive this is DPR's equation 2: -log(exp s+ / (exp s+ + sum exp s-)). With several, each stands against
    the negatives alone (the others leave its denominator), and the mean is taken. A score that is neither positive nor
    negative has a gradient of exactly 0.

    Args:
      scores: already divided by the temperature, float32 [b, M].
      positive: bool [b, M]; a question without any has a loss of 0.
      negative: bool [b, M].
      further: logarithm of a sum of exp(score) over more negatives, float32 [b]; -inf or very negative for none.

    Returns:
      float32 [b], in nats.
    """
    scores = scores.astype(jnp.float32)
    rest = jax.nn.logsumexp(jnp.where(negative, scores, _NOTHING), axis=-1)
    if further is not None:
        rest = jnp.logaddexp(rest, jnp.maximum(further, _NOTHING))
    # softplus(rest - s) = log(exp s + exp rest) - s; elements that do not count must not see huge differences.
    difference = jnp.where(positive, rest[:, None] - scores, 0.0)
    each = jnp.where(positive, jax.nn.softplus(difference), 0.0)
    return each.sum(axis=-1) / jnp.maximum(positive.sum(axis=-1), 1)


def among(contents: jax.Array, known: jax.Array) -> jax.Array:
    """Which passages are in each question's list.

    Args:
      contents: what each passage is, int32 [M].
      known: the questions' lists, int32 [b, Q], padded with NO_PASSAGE.

    Returns:
      bool [b, M].
    """
    # The compiler folds the comparison into the reduction: there is no [b, M, Q] array.
    return (known[:, None, :] == contents[:, None]).any(axis=-1) & (contents != NO_PASSAGE)


@dataclass(frozen=True)
class Masks:
    """Which of the batch's passages are positives and negatives of this device's questions, bool [b, M]."""

    positive: jax.Array
    negative: jax.Array

    @staticmethod
    def of_batch(
        own: jax.Array,
        contents: jax.Array,
        known: jax.Array,
        *,
        first: jax.Array | int,
        positives: int,
        mask_known_positives: bool,
        mask_duplicates: bool,
    ) -> "Masks":
        """Sorts the passages of the whole batch for some of its questions.

        Args:
          own: contents of these questions' own passages, int32 [b, C], positives in the first places, NO_PASSAGE where
            there is none.
          contents: of the whole batch's passages, int32 [B, C].
          known: contents of all judged positives, int32 [b, Q].
          first: the place of these questions' first in the batch.
          positives: places of positives among the C.
          mask_known_positives: whether judged positives are no negatives, wherever they come from.
          mask_duplicates: the same for copies of the question's positives in the batch.
        """
        b, c = own.shape
        flat = contents.reshape(-1)
        column = jnp.arange(flat.shape[0])
        mine = (column // c == (first + jnp.arange(b))[:, None]) & (column % c < positives)
        positive = mine & (flat != NO_PASSAGE)
        negative = ~mine & (flat != NO_PASSAGE)
        if mask_known_positives:
            negative &= ~among(flat, known)
        if mask_duplicates:
            negative &= ~among(flat, own[:, :positives])
        return Masks(positive, negative)


# ---- the compiled step -----------------------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass
class ContrastiveBatch:
    """The examples of one step, sharded by row. Passages are rows of the corpus, NO_PASSAGE where there is none."""

    tokens: jax.Array
    """[CLS] q [SEP], integers [B, L]."""
    lengths: jax.Array
    """int32 [B]."""
    rows: jax.Array
    """int32 [B, C]: places of positives, then of negatives; the retrieved ones are not among them yet."""
    known: jax.Array
    """Contents (first rows with that title and text) of all judged positives, int32 [B, Q]."""
    teacher: jax.Array | None
    """A teacher's scores of `rows`, float32 [B, C], NaN where it gave none; None without distillation."""


@dataclass(frozen=True)
class ContrastiveProgram(IndexProgram):
    """All that is fixed while a contrastive run's programs are compiled; the fields are the config's."""

    positives: int
    """Places of positives among each question's passages."""
    retrieved: int
    first_rank: int
    last_rank: int
    draw: Literal["random", "top"]
    margin: float | None
    mask_known_positives: bool
    mask_duplicates: bool
    temperature: float
    symmetric: bool
    corpus_softmax: bool
    sizes: tuple[int, ...]
    """Of the embedding's prefixes, the whole included, whose losses are summed."""
    write_back: bool
    distillation: Literal["none", "margin_mse", "kl"]
    distillation_weight: float
    contrastive_weight: float
    teacher_temperature: float

    @property
    def searches(self) -> bool:
        """Whether the step reads the live index."""
        return self.retrieved > 0 or self.corpus_softmax


def make_step(
    program: ContrastiveProgram, optimizer: optax.GradientTransformation, mesh: Mesh
) -> Callable[..., tuple[TrainState, CorpusState | None, dict[str, jax.Array], jax.Array]]:
    """Builds the compiled training step.

    Args:
      program: the run's constants.
      optimizer: applied to both towers.
      mesh: with the axes "data" and "model"; B must be a multiple of its data axis.

    Returns:
      step(state, index, passages, contents, batch) -> (state, index, metrics, rows), where `index` is None unless the
      program searches, `contents` says for every corpus row which is the first with that title and text (int32 [N]),
      `metrics` is a dict of float32 scalars and `rows` are all passages of the batch, int32 [B, C + retrieved].
      `state` and `index` are donated.
    """

    @partial(jax.jit, donate_argnums=(0, 1))
    @partial(
        jax.shard_map,
        mesh=mesh,
        axis_names={DATA},
        in_specs=(P(), P(DATA), P(DATA), P(DATA), P(DATA)),
        out_specs=(P(), P(DATA), P(), P(DATA)),
    )
    def step(
        state: TrainState,
        index: CorpusState | None,
        passages: CorpusTokens,
        contents: jax.Array,
        batch: ContrastiveBatch,
    ) -> tuple[TrainState, CorpusState | None, dict[str, jax.Array], jax.Array]:
        # "Varying" keeps the gradients local; there is one reduction below, outside of every loop.
        params = jax.tree.map(lambda x: lax.pcast(x, DATA, to="varying"), state.params)
        b, c = len(batch.tokens), batch.rows.shape[1] + program.retrieved
        keys = TextKeys.of_step(program, state.step, b, c)

        # 1. Find negatives with the question vectors of this step.
        rows = batch.rows
        if program.retrieved:
            assert index is not None
            searched = embed_questions(program, params, state.frozen, batch.tokens, batch.lengths, keys.questions)
            found = retrieve_negatives(program, mesh, searched, index, contents, batch, keys)
            rows = jnp.concatenate([rows, found], axis=1)  # [b, C]

        # 2. Fetch the passages' tokens for this device's own questions.
        everyone = lax.all_gather(rows, DATA, tiled=True, to="invarying")  # [B, C]
        fetched = jax.tree.map(lambda table: fetch_rows(table, everyone), passages)  # [b, C, L], [b, C]
        own = jnp.where(rows == NO_PASSAGE, NO_PASSAGE, fetch_rows(contents, everyone))  # [b, C]

        # 3. Embed with gradient, compare with the passages of all devices.
        def loss_of(params: Params) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]:
            q = embed_questions(program, params, state.frozen, batch.tokens, batch.lengths, keys.questions)
            p = embed_passages(program, params, state.frozen, fetched, keys.passages)
            loss, metrics = batch_loss(program, q, p, own, everyone, index, contents, batch)
            return loss, (metrics, p)

        (loss, (metrics, fresh)), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)

        # 4. Write the fresh embeddings back, reduce once, update.
        if index is not None:
            if program.write_back:
                index = write_back(index, everyone, fresh, state.step)
            metrics["staleness"] = staleness(index, state.step, program.corpus_rows) / lax.axis_size(DATA)
        # The local losses are parts of the batch's mean, and all_gather's transpose has brought each passage the
        # gradients of all devices' questions: the sum is the gradient that a single device would compute.
        gradients, metrics = lax.psum((gradients, {"loss": loss, **metrics}), DATA)
        metrics["gradient_norm"] = optax.global_norm(gradients)
        return state.apply_gradients(gradients, optimizer), index, metrics, rows

    return step


def batch_loss(
    program: ContrastiveProgram,
    q: jax.Array,
    p: jax.Array,
    own: jax.Array,
    rows: jax.Array,
    index: CorpusState | None,
    corpus_contents: jax.Array,
    batch: ContrastiveBatch,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """This device's part of the batch's loss.

    Args:
      program: the run's constants.
      q: this device's questions, float32 [b, D].
      p: their passages, float32 [b, C, D].
      own: these passages' contents, int32 [b, C].
      rows: all passages' corpus rows, int32 [B, C].
      index: this device's part of the live index; read by the corpus-wide softmax only.
      corpus_contents: its rows' contents, int32 [n].
      batch: this device's part of it.

    Returns:
      A float32 scalar and a dict of them; their sums over the devices are the batch's means.
    """
    b, c, _ = p.shape
    size = b * lax.axis_size(DATA)
    first = lax.axis_index(DATA) * b
    contents, known = (lax.all_gather(x, DATA, tiled=True, to="invarying") for x in (own, batch.known))
    settings = {
        "positives": program.positives,
        "mask_known_positives": program.mask_known_positives,
        "mask_duplicates": program.mask_duplicates,
    }
    masks = Masks.of_batch(own, contents, batch.known, first=first, **settings)
    false_negatives = jnp.concatenate(
        [
            known if program.mask_known_positives else known[:, :0],
            contents[:, : program.positives if program.mask_duplicates else 0],
        ],
        axis=1,
    )
    all_q, all_p = (lax.all_gather(x, DATA, tiled=True) for x in (q, p))
    loss = jnp.zeros((), jnp.float32)
    metrics: dict[str, jax.Array] = {}
    for dim in program.sizes:  # the whole embedding comes last, and gives the metrics
        of_prefix = partial(_prefix, program, dim)
        scores = _scores(of_prefix(q), of_prefix(all_p).reshape(size * c, dim)) / program.temperature  # [b, M]
        further, distant = None, 0
        if program.corpus_softmax:
            assert index is not None
            of_batch = corpus_logsumexp(
                of_prefix(all_q),
                index.embeddings[:, :dim],
                corpus_contents,
                rows.reshape(-1),
                false_negatives,
                num_valid=program.corpus_rows,
                temperature=program.temperature,
                normalise=program.encoder.normalise and dim < program.encoder.embedding_size,
                block_rows=program.block_rows,
            )  # [B]
            further = lax.dynamic_slice_in_dim(of_batch, first, b)
            distant = program.corpus_rows
        losses = contrastive_losses(scores, masks.positive, masks.negative, further)
        if program.symmetric:
            losses = (losses + _of_passages(program, of_prefix(p), of_prefix(all_q), own, contents, known, first)) / 2
        loss += program.contrastive_weight * losses.sum() / size
        if program.distillation != "none":
            assert batch.teacher is not None
            student = jnp.einsum(
                "bd,bcd->bc", of_prefix(q), of_prefix(p)[:, : batch.rows.shape[1]], precision=lax.Precision.HIGHEST
            )
            loss += program.distillation_weight * _distil(program, student, batch.teacher, batch.rows).sum() / size
        best = jnp.where(masks.negative, scores, -jnp.inf).max(axis=-1)
        metrics["accuracy"] = (jnp.where(masks.positive, scores, -jnp.inf).max(axis=-1) > best).sum() / size
        # The corpus is counted without taking off the batch's own rows: they are few.
        metrics["negatives"] = masks.negative.sum() / size + jnp.float32(distant * b / size)
    return loss, metrics


def _prefix(program: ContrastiveProgram, dim: int, embeddings: jax.Array) -> jax.Array:
    if dim == program.encoder.embedding_size:
        return embeddings
    return truncated(embeddings, dim, normalise=program.encoder.normalise)


def _scores(q: jax.Array, p: jax.Array) -> jax.Array:
    """Inner products float32 [b, M]; HIGHEST keeps GPUs and TPUs from rounding their operands."""
    return jnp.matmul(q, p.T, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def _of_passages(
    program: ContrastiveProgram,
    p: jax.Array,
    all_q: jax.Array,
    own: jax.Array,
    contents: jax.Array,
    known: jax.Array,
    first: jax.Array,
) -> jax.Array:
    """The other direction: each positive passage's question against the batch's questions, float32 [b]."""
    b, places = len(own), program.positives
    passages = p[:, :places].reshape(b * places, -1)
    scores = (_scores(passages, all_q) / program.temperature).reshape(b, places, -1)  # [b, P, B]
    mine = jnp.arange(scores.shape[-1]) == (first + jnp.arange(b))[:, None]  # [b, B]
    losses = []
    for place in range(places):
        content = own[:, place]
        fits = jnp.zeros(mine.shape, bool)
        if program.mask_known_positives:
            fits |= among(content, known).T
        if program.mask_duplicates:
            fits |= among(content, contents[:, :places]).T
        valid = (content != NO_PASSAGE)[:, None]
        losses.append(contrastive_losses(scores[:, place], mine & valid, ~mine & ~fits & valid))
    return sum(losses) / jnp.maximum((own[:, :places] != NO_PASSAGE).sum(axis=-1), 1)


def _distil(program: ContrastiveProgram, student: jax.Array, teacher: jax.Array, rows: jax.Array) -> jax.Array:
    scored = (rows != NO_PASSAGE) & ~jnp.isnan(teacher)
    if program.distillation == "margin_mse":
        return margin_mse(student, teacher, scored)
    return kl_divergence(student / program.temperature, teacher / program.teacher_temperature, scored)


def retrieve_negatives(
    program: ContrastiveProgram,
    mesh: Mesh,
    questions: jax.Array,
    index: CorpusState,
    contents: jax.Array,
    batch: ContrastiveBatch,
    keys: TextKeys,
) -> jax.Array:
    """Draws negatives from the ranks of an exact search of the live index.

    Args:
      program: the window of ranks, the margin, how to draw.
      mesh: of the shard_map.
      questions: this device's embeddings, float32 [b, D].
      index: this device's part of the live index.
      contents: this device's rows' contents, int32 [n].
      batch: its part of the batch.
      keys: of this device's questions.

    Returns:
      int32 [b, retrieved] corpus rows, NO_PASSAGE where too few passages are left.
    """
    b = len(questions)
    depth = min(program.last_rank, program.corpus_rows)
    scores, rows = find_passages(program, mesh, questions, index, depth)  # [B, k], the same everywhere
    found = fetch_rows(contents, rows)  # [b, k]
    first = lax.axis_index(DATA) * b
    scores, rows = (lax.dynamic_slice_in_dim(x, first, b) for x in (scores, rows))
    allowed = jnp.broadcast_to(jnp.arange(depth) >= program.first_rank - 1, rows.shape)
    if program.mask_known_positives:
        allowed &= ~jax.vmap(among)(found, batch.known[:, None])[:, 0]
    # Whatever the masks, a question's own positives and negatives of this step are not taken again.
    everyone = lax.all_gather(batch.rows, DATA, tiled=True, to="invarying")
    own = jnp.where(batch.rows == NO_PASSAGE, NO_PASSAGE, fetch_rows(contents, everyone))
    allowed &= ~jax.vmap(among)(found, own[:, None])[:, 0]
    if program.margin is not None:
        positive = fetch_rows(index.embeddings, everyone[:, :1])[:, 0]  # [b, D]
        its_score = jnp.einsum("bd,bd->b", questions, positive, precision=lax.Precision.HIGHEST)
        allowed &= scores <= (its_score - program.margin)[:, None]
    if program.draw == "top":
        order = jnp.broadcast_to(-jnp.arange(depth, dtype=jnp.float32), rows.shape)
    else:
        order = jax.vmap(lambda key: jax.random.uniform(key, (depth,)))(keys.draws)
    # The highest of the allowed places; the others stand behind all of them.
    value, place = lax.top_k(jnp.where(allowed, order, -jnp.inf), min(program.retrieved, depth))
    taken = jnp.where(value == -jnp.inf, NO_PASSAGE, jnp.take_along_axis(rows, place, axis=1))
    return jnp.pad(taken, ((0, 0), (0, program.retrieved - taken.shape[1])), constant_values=NO_PASSAGE)
