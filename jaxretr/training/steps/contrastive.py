"""Contrastive learning: each question's passage against all other passages of the batch (Karpukhin et al. 2020).

`make_step` puts embedding, in-step retrieval, loss and update together as one compiled program; batch_loss.py compares
questions and passages by the losses of jaxretr/losses/. When reading the code for the first time, skip the branches that
are marked as side roads: misspelt questions (typo_terms.py) and quantised indexes (index_aware.py).

Everything runs inside a shard_map over the mesh's "data" axis: b = B / devices questions are local, each with C
passages of its own (positives first, then negatives), and M = B C passages make up the batch.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxretr.indexes.topk import NO_ROW
from jaxretr.losses.contrastive import NO_PASSAGE, among
from jaxretr.models.backbones.layers import Params
from jaxretr.runtime.parallel.mesh import DATA
from jaxretr.runtime.parallel.sharding import PARAMETERS_OR_STATE, compiled_over_data
from jaxretr.runtime.parallel.split_parameters import global_norm, reduced, varying
from jaxretr.training.state import CorpusState, CorpusTokens, TokenRows, TrainState
from jaxretr.training.steps.batch_loss import (
    ContrastiveBatch,
    ContrastiveProgram,
    PassagesOfBatch,
    batch_loss,
    sparsity,
)
from jaxretr.training.steps.encoding import TextKeys, embed_batch, embed_side
from jaxretr.training.steps.index_aware import loss_on_index
from jaxretr.training.steps.live_index import (
    fetch_rows,
    find_passages,
    staleness,
    staleness_max,
    staleness_of,
    write_back,
)


def make_step(
    program: ContrastiveProgram, optimizer: optax.GradientTransformation, mesh: Mesh
) -> Callable[..., tuple[TrainState, CorpusState | None, dict[str, jax.Array], jax.Array]]:
    """Build the compiled training step.

    Args:
      optimizer: applied to both towers.
      mesh: with the axes "data" and "model"; B must be a multiple of its data axis.

    Returns:
      step(state, index, passages, text_ids, batch) -> (state, index, metrics, rows), where `index` is None unless the
      program searches, `text_ids` has every corpus row's text id (int32 [N]), `metrics` is a dict of float32
      scalars and `rows` are all passages of the batch, int32 [B, C + retrieved]. `state` and `index` are donated.
    """

    @compiled_over_data(
        mesh,
        (P(DATA), P(DATA), P(DATA), P(DATA)),
        (PARAMETERS_OR_STATE, P(DATA), P(), P(DATA)),
        split=program.shard_parameters,
        donate=(0, 1),
    )
    def step(
        state: TrainState,
        index: CorpusState | None,
        passages: CorpusTokens,
        text_ids: jax.Array,
        batch: ContrastiveBatch,
    ) -> tuple[TrainState, CorpusState | None, dict[str, jax.Array], jax.Array]:
        # "Varying" keeps the gradients local; there is one reduction below, outside of every loop.
        params = varying(state.params)
        b, c = len(batch.tokens), batch.rows.shape[1] + program.negatives.retrieved
        keys = TextKeys.of_step(program, state.key, b, c, program.typos.forms)

        # 1. Find negatives with the question vectors of this step.
        rows = batch.rows
        if program.negatives.retrieved:
            assert index is not None
            texts = TokenRows(batch.tokens, batch.lengths)
            searched = embed_side(program, "question", params, state.frozen, texts, keys.questions)
            # A batch of a mixture is of one set, and is searched for in its corpus.
            allowed = None if passages.sets is None or batch.sets is None else passages.sets == batch.sets[0]
            found = retrieve_negatives(program, mesh, searched, index, text_ids, batch, keys, allowed)
            rows = jnp.concatenate([rows, found], axis=1)  # [b, C]

        # 2. Fetch the passages' tokens for this device's own questions.
        everyone = lax.all_gather(rows, DATA, tiled=True, to="invarying")  # [B, C]
        fetched = fetch_rows(passages, everyone)  # [b, C, L], [b, C]
        own = jnp.where(rows == NO_PASSAGE, NO_PASSAGE, fetch_rows(text_ids, everyone))  # [b, C]
        guide = None if passages.guide is None else fetch_rows(passages.guide, everyone)

        # 3. Embed with gradient, compare with the passages of all devices.
        def loss_of(params: Params) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]:
            # Forms [b, V, D] of the questions are a side road: there are some where the loss has terms for misspelt ones.
            q, forms, p = embed_batch(program, params, state.frozen, batch, fetched, keys)
            in_batch = PassagesOfBatch(own, everyone, index, text_ids, guide)
            loss_on = partial(batch_loss, program, q, p, in_batch, batch, forms=forms)
            loss, metrics = loss_on_index(program.index_aware, state.codes, loss_on)
            if program.encoder.sparse:
                added, entries = sparsity(program.contrastive, state.step, q, p, own)
                loss, metrics = loss + added, {**metrics, **entries}
            return loss, (metrics, p)

        (loss, (metrics, fresh)), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)

        # 4. Write the fresh embeddings back, reduce once, update.
        if index is not None:
            # Added up over the devices below, as all of these metrics are.
            devices = lax.axis_size(DATA)
            if program.negatives.retrieved:
                found_rows = everyone[:, batch.rows.shape[1] :]
                metrics["staleness_retrieved"] = staleness_of(index, found_rows, state.step) / devices
            if program.index.write_back:
                written = everyone
                if program.contrastive.corpus_softmax:
                    # On CPUs XLA copies the whole index unless what is written depends on what has read it; it drops an
                    # optimization_barrier before it decides. The loss has read the index; a NaN loss writes nothing.
                    written = jnp.where(jnp.isnan(loss), NO_PASSAGE, everyone)
                index = write_back(index, written, fresh, state.step)
            metrics["staleness"] = staleness(index, state.step, program.corpus_rows) / devices
        # The local losses are parts of the batch's mean, and all_gather's transpose has brought each passage the
        # gradients of all devices' questions: the sum is the gradient that a single device would compute.
        gradients, metrics = reduced(gradients, state.params, state.opt_state, {"loss": loss, **metrics})
        metrics["gradient_norm"] = global_norm(gradients)
        if index is not None:
            metrics["staleness_max"] = staleness_max(index, state.step, program.corpus_rows)
        return state.apply_gradients(gradients, optimizer), index, metrics, rows

    return step


def retrieve_negatives(
    program: ContrastiveProgram,
    mesh: Mesh,
    questions: jax.Array,
    index: CorpusState,
    text_ids: jax.Array,
    batch: ContrastiveBatch,
    keys: TextKeys,
    searched: jax.Array | None = None,
) -> jax.Array:
    """Draw negatives from the ranks of an exact search of the live index.

    Args:
      program: the window of ranks, the margin, how to draw.
      questions: this device's embeddings, float32 [b, D].
      index: this device's part of the live index.
      text_ids: text ids of this device's rows, int32 [n].
      batch: its part of the batch.
      keys: of this device's questions.
      searched: this device's rows that may be found, bool [n]; None: all.

    Returns:
      int32 [b, retrieved] corpus rows, NO_PASSAGE where too few passages are left.
    """
    b = len(questions)
    depth = min(program.negatives.last_rank, program.corpus_rows)
    scores, rows = find_passages(program, mesh, questions, index, depth, searched)  # [B, k], the same everywhere
    found = fetch_rows(text_ids, rows)  # [b, k]
    first = lax.axis_index(DATA) * b
    scores, rows = (lax.dynamic_slice_in_dim(x, first, b) for x in (scores, rows))
    # Whatever the masks, a question's own positives and negatives of this step are not taken again.
    everyone = lax.all_gather(batch.rows, DATA, tiled=True, to="invarying")
    own = jnp.where(batch.rows == NO_PASSAGE, NO_PASSAGE, fetch_rows(text_ids, everyone))
    excluded = jnp.concatenate([batch.known, own], axis=1)
    # Ranks that may be drawn, bool [b, k].
    allowed = jnp.broadcast_to(jnp.arange(depth) >= program.negatives.first_rank - 1, rows.shape)
    allowed &= ~jax.vmap(among)(found, excluded[:, None])[:, 0]
    if searched is not None:  # A small corpus has fewer rows than ranks.
        allowed &= rows != NO_ROW
    if program.negatives.margin is not None:
        # Passages that score nearly as high as the positive, by the index's embedding of it, may be positives too.
        positive = fetch_rows(index.embeddings, everyone[:, :1])[:, 0]  # [b, D]
        its_score = jnp.einsum("bd,bd->b", questions, positive, precision=lax.Precision.HIGHEST)
        allowed &= scores <= (its_score - program.negatives.margin)[:, None]
    # The order of the draw, float32 [b, k], highest first: by rank, or at random.
    if program.negatives.draw == "top":
        order = jnp.broadcast_to(-jnp.arange(depth, dtype=jnp.float32), rows.shape)
    else:
        order = jax.vmap(lambda key: jax.random.uniform(key, (depth,)))(keys.draws)
    # The highest of the allowed places; the others rank below all of them.
    value, place = lax.top_k(jnp.where(allowed, order, -jnp.inf), min(program.negatives.retrieved, depth))
    taken = jnp.where(value == -jnp.inf, NO_PASSAGE, jnp.take_along_axis(rows, place, axis=1))
    return jnp.pad(taken, ((0, 0), (0, program.negatives.retrieved - taken.shape[1])), constant_values=NO_PASSAGE)
