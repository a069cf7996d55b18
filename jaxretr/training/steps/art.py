"""ART: learning to retrieve from questions alone (Sachan et al. 2023, section 2).

One compiled step does everything: it embeds the questions, finds the top K passages of the whole corpus, fetches
their tokens, embeds them with gradient, asks the frozen scorer how well each explains its question, and moves both
towers so that the retriever's distribution over the K passages comes nearer to the scorer's. If reading the code, start
at the loss, jaxretr/losses/art.py, then go to `make_step`, and skip the branches that are marked as side roads at first:
misspelt questions (typo_terms.py) and quantised indexes (index_aware.py).

Everything runs inside a shard_map over the mesh's "data" axis: b = B / devices questions and n = N / devices corpus
rows are local. The "model" axis, which splits large matrices, is left to the compiler.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxretr.config import Art, Typos
from jaxretr.losses.art import art_losses, art_target
from jaxretr.losses.contrastive import scaled_scores
from jaxretr.losses.quantised import StoredRows, storage_errors
from jaxretr.models.backbones.layers import Params
from jaxretr.runtime.parallel.mesh import DATA
from jaxretr.runtime.parallel.sharding import PARAMETERS_OR_STATE, compiled_over_data
from jaxretr.runtime.parallel.split_parameters import global_norm, reduced, varying
from jaxretr.runtime.streams import KeyStream
from jaxretr.training.state import CorpusState, CorpusTokens, TokenRows, TrainState
from jaxretr.training.steps.encoding import TextKeys, embed_batch, embed_side
from jaxretr.training.steps.index_aware import loss_on_index
from jaxretr.training.steps.live_index import (
    IndexProgram,
    fetch_rows,
    find_passages,
    staleness,
    staleness_max,
    staleness_of,
    write_back,
)
from jaxretr.training.steps.score_table import TableState
from jaxretr.training.steps.teaching import Questions, Teaching, teach
from jaxretr.training.steps.typo_terms import typo_losses


@jax.tree_util.register_dataclass
@dataclass
class QuestionBatch:
    """The questions of one step, in the encoder's and in the scorer's tokens, sharded by row."""

    tokens: jax.Array
    """Token ids of [CLS] q [SEP], integers [B, L]."""
    lengths: jax.Array
    """Lengths of these rows, int32 [B]."""
    targets: jax.Array
    """Token ids in the form in which the teacher reads questions (a T5: "Question: {q}</s>"), integers [B, T]."""
    target_lengths: jax.Array
    """Lengths of the targets, int32 [B]."""
    numbers: jax.Array
    """Numbers of the questions in the training data, int32 [B]."""
    forms: TokenRows | None = None
    """The questions' misspelt forms, tokens [B, V, L] and lengths [B, V]; None without terms for typos."""
    given: jax.Array | None = None
    """Corpus rows of passages that are compared in addition to the retrieved ones, int32 [B, G], -1 where there is
    none; None without any."""


@dataclass(frozen=True, kw_only=True)
class ArtProgram(IndexProgram):
    """Constants of an ART run's compiled programs: sections of its config, and values that follow from them."""

    teaching: Teaching
    art: Art
    top_k: int
    """`art.top_k`, or the size of a smaller corpus."""
    given: int = 0
    """Number of passages of a question that come with the batch."""
    temperature: float
    """`art.temperature`, or its default for the size of the embedding."""
    typos: Typos = field(default_factory=Typos)

    @property
    def compared(self) -> int:
        """K, the number of passages of a question in a step."""
        return self.top_k + self.given + self.art.uniform


def make_step(program: ArtProgram, optimizer: optax.GradientTransformation, mesh: Mesh) -> Callable[..., Any]:
    """Build the compiled training step.

    Args:
      optimizer: applied to both towers.
      mesh: mesh with the axes "data" and "model"; B must be a multiple of its data axis.

    Returns:
      step(state, index, table, passages, scorer_passages, scorer_params, batch) -> (state, index, table, metrics,
      rows), where `table` is the teacher's TableState or None, `passages` and `scorer_passages` are the corpus's
      CorpusTokens for the encoder and for the scorer, `metrics` a dict of float32 scalars and `rows` the retrieved
      corpus rows, int32 [B, K]. `state`, `index` and `table` are donated.
    """

    @compiled_over_data(
        mesh,
        (P(DATA), P(DATA), P(DATA), P(DATA), P(), P(DATA)),
        (PARAMETERS_OR_STATE, P(DATA), P(DATA), P(), P()),
        split=program.shard_parameters,
        donate=(0, 1, 2),
    )
    def step(
        state: TrainState,
        index: CorpusState,
        table: TableState | None,
        passages: CorpusTokens,
        scorer_passages: CorpusTokens,
        scorer_params: Params,
        batch: QuestionBatch,
    ) -> tuple[TrainState, CorpusState, TableState | None, dict[str, jax.Array], jax.Array]:
        # "Varying" keeps the gradients local; there is one reduction below, outside of every loop.
        params = varying(state.params)
        keys = TextKeys.of_step(program, state.key, len(batch.tokens), program.compared, program.typos.forms)

        # 1. Search with the question vectors of this step, dropout and all, as the authors do.
        rows = jnp.zeros((len(batch.tokens) * lax.axis_size(DATA), 0), jnp.int32)
        if program.top_k:
            texts = TokenRows(batch.tokens, batch.lengths)
            searched = embed_side(program, "question", params, state.frozen, texts, keys.questions)
            _, rows = find_passages(program, mesh, searched, index, program.top_k)  # [B, K]
        if program.compared > program.top_k:
            rows = with_others(program, rows, batch, state.key)

        # 2. Fetch the found passages' tokens for this device's own questions.
        found = fetch_rows(passages, rows)  # [b, K, L], [b, K]

        # 3. Ask the teacher for the pairs that it was not asked for before.
        questions = Questions(batch.numbers, batch.targets, batch.target_lengths)
        answer = teach(program.teaching, scorer_params, scorer_passages, rows, questions, table)
        b = len(batch.numbers)
        teacher = lax.dynamic_slice_in_dim(answer.scores, lax.axis_index(DATA) * b, b)  # [b, K]
        if program.art.shuffle_teacher:
            teacher = jax.vmap(jax.random.permutation)(keys.draws, teacher)

        # The encoder whose scores are the prior: the student itself, or, embedded here, the one that it began as.
        prior = None
        if state.start is not None:
            asked, undropped = replace(batch, forms=None), TextKeys(None, None, None, keys.draws)
            q, _, p = embed_batch(program, varying(state.start), state.frozen, asked, found, undropped)
            prior = scaled_scores(q[:, None], p, program.temperature)[:, 0]  # [b, K]

        # 4. Embed questions and passages with gradient, compare.
        def loss_of(params: Params) -> tuple[jax.Array, tuple[jax.Array, jax.Array, dict[str, jax.Array]]]:
            # [b, D], [b, K, D]; forms [b, V, D] are a side road: there are some where the loss has terms for misspelt ones.
            q, forms, p = embed_batch(program, params, state.frozen, batch, found, keys)
            loss_on = partial(student_loss, program, q, p, teacher, batch, prior=prior, forms=forms)
            loss, (student, terms) = loss_on_index(program.index_aware, state.codes, loss_on)
            return loss, (student, p, terms)

        (loss, (student, fresh, terms)), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)

        # 5. Write the fresh embeddings back, reduce once, update.
        age_found = staleness_of(index, rows, state.step)
        if program.index.write_back:
            index = write_back(index, rows, fresh, state.step)
        metrics = {
            "loss": loss,
            "teacher_score": teacher.mean(),
            "agreement": (student.argmax(-1) == teacher.argmax(-1)).astype(jnp.float32).mean(),
            "staleness": staleness(index, state.step, program.corpus_rows),
            "staleness_retrieved": age_found,
            **terms,
        }
        gradients, metrics = reduced(gradients, state.params, state.opt_state, metrics, mean=True)
        metrics["gradient_norm"] = global_norm(gradients)
        metrics |= {
            "teacher_hits": answer.hits,
            "teacher_blocks": answer.work.blocks,
            "staleness_max": staleness_max(index, state.step, program.corpus_rows),
        }
        return state.apply_gradients(gradients, optimizer), index, answer.table, metrics, rows

    return step


def with_others(program: ArtProgram, rows: jax.Array, batch: QuestionBatch, key: jax.Array) -> jax.Array:
    """Return the retrieved rows int32 [B, top_k], then given and drawn ones, [B, K]; the same on all devices.

    ART takes the first K of a search (section 2.4). Its authors also compare kinds of passages (section 4.3, Table 7):
    judged ones, hard negatives, and passages that are drawn uniformly from the corpus.
    """
    b = len(rows)
    parts = [rows]
    if program.given:
        assert batch.given is not None
        # Given rows come first: of a passage that is both given and retrieved, the given place stays.
        parts.insert(0, lax.all_gather(batch.given, DATA, tiled=True, to="invarying"))
    parts.append(jnp.full((b, program.art.uniform), -1, jnp.int32))
    drawn = jax.random.fold_in(key, KeyStream.UNIFORM_PASSAGES)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(drawn, jnp.arange(b))
    return filled(without_repeats(jnp.concatenate(parts, axis=1)), program.corpus_rows, keys)


def without_repeats(rows: jax.Array) -> jax.Array:
    """Return rows int32 [B, K] with -1 in every place whose row stands in an earlier place of its question."""
    k = rows.shape[1]
    earlier = jnp.arange(k) < jnp.arange(k)[:, None]  # [K, K]
    repeated = ((rows[:, :, None] == rows[:, None, :]) & earlier).any(axis=-1)
    return jnp.where(repeated, -1, rows)


def filled(rows: jax.Array, passages: int, keys: jax.Array) -> jax.Array:
    """Fill the empty places with passages that are drawn uniformly from those that the question does not have yet.

    Args:
      rows: int32 [B, K], -1 in empty places; no row twice.
      passages: number of passages in the corpus, at least K.
      keys: one PRNG key a question, [B].

    Returns:
      int32 [B, K]; no row twice.
    """
    k = rows.shape[1]
    last = jnp.iinfo(jnp.int32).max

    def fill(place: jax.Array, rows: jax.Array) -> jax.Array:
        taken = jnp.sort(jnp.where(rows < 0, last, rows), axis=1)
        free = passages - (rows >= 0).sum(axis=1)
        draw = jax.vmap(lambda key, free: jax.random.randint(jax.random.fold_in(key, place), (), 0, free))
        number = draw(keys, free)  # among those that are not taken
        # A taken row has as many free rows before it as its own number less its place in the order of taken rows.
        drawn = number + (taken - jnp.arange(k) <= number[:, None]).sum(axis=1)
        return rows.at[:, place].set(jnp.where(rows[:, place] < 0, drawn, rows[:, place]))

    return lax.fori_loop(0, k, fill, rows)


def student_loss(
    program: ArtProgram,
    q: jax.Array,
    p: jax.Array,
    teacher: jax.Array,
    batch: QuestionBatch,
    *,
    prior: jax.Array | None = None,
    forms: jax.Array | None = None,
    stored: StoredRows | None = None,
) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array]]]:
    """Return this device's mean loss.

    Args:
      q: this device's questions, float32 [b, D].
      p: embeddings of their passages, float32 [b, K, D].
      teacher: the teacher's scores of them, float32 [b, K].
      prior: the start's scaled scores of them, float32 [b, K]; None: the student's are the prior.
      forms: the questions' misspelt forms, float32 [b, V, D]; None without terms for typos.
      stored: quantiser of the passages that are scored; None: they are scored exactly.

    Returns:
      A float32 scalar; the student's scaled scores, float32 [b, K], and the means of further terms by their names in
      the log.
    """
    terms: dict[str, jax.Array] = {}
    if stored is not None:
        terms["storage_error"] = storage_errors(stored, p)
        p = stored(p)
    student = scaled_scores(q[:, None], p, program.temperature)[:, 0]  # [b, K]
    settings = program.art.teacher_temperature, program.art.prior_weight
    target = art_target(student if prior is None else prior, teacher, *settings)
    losses = art_losses(student, target)
    if forms is not None:

        def losses_of(vectors: jax.Array) -> tuple[jax.Array, jax.Array]:
            # Forms [b, V, D] of each question against the question's own target: losses [b, V], scores [b, V, K].
            scores = scaled_scores(vectors, p, program.temperature)
            return art_losses(scores, target[:, None]), scores

        of_forms, of_typos = typo_losses(
            program.typos,
            q,
            forms,
            student,
            jnp.ones(student.shape, bool),
            losses_of,
            tokens=batch.tokens,
            temperature=program.temperature,
        )
        losses = program.typos.clean_weight * losses + of_forms
        terms |= of_typos
    loss, means = losses.mean(), {name: values.mean() for name, values in terms.items()}
    if stored is not None:
        loss += program.index_aware.commitment * means["storage_error"]
    return loss, (student, means)
