"""The contrastive loss of a batch, at every size of the embedding and with all that can be added to it.

Inside a shard_map over the mesh's "data" axis: b = B / devices questions are local, each with C passages of its own
(positives first, then negatives), and M = B C passages make up the batch. The softmax itself and what decides which
passages count are in contrastive_losses.py.
"""

from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.config import Contrastive, Distillation, Negatives, Typos
from jaxretr.losses.contrastive import NO_PASSAGE, Masks, among, contrastive_losses
from jaxretr.losses.distillation import kl_divergence, margin_mse
from jaxretr.models.embed import truncated
from jaxretr.runtime.parallel.mesh import DATA
from jaxretr.training.state import CorpusState, TokenRows
from jaxretr.training.steps.corpus_softmax import corpus_logsumexp
from jaxretr.training.steps.index_aware import storage_error
from jaxretr.training.steps.live_index import IndexProgram
from jaxretr.training.steps.quantised import StoredRows
from jaxretr.training.steps.typo_terms import form_losses, self_teaching_losses


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
    """Contents (first rows with that title and text) of what is no negative of a question: of passages that are the
    question itself and, with `negatives.mask_known_positives`, of all judged positives; int32 [B, Q], Q may be 0."""
    teacher: jax.Array | None
    """A teacher's scores of `rows`, float32 [B, C], NaN where it gave none; None without distillation."""
    forms: TokenRows | None = None
    """The questions' misspelt forms, tokens [B, V, L] and lengths [B, V]; None without terms for typos."""


@dataclass(frozen=True, kw_only=True)
class ContrastiveProgram(IndexProgram):
    """All that is fixed while a contrastive run's programs are compiled: sections of its config, and what follows."""

    positives: int
    """Places of positives among each question's passages."""
    sizes: tuple[int, ...]
    """Sizes of the embedding's prefixes whose losses are summed, the whole embedding included."""
    contrastive: Contrastive = field(default_factory=Contrastive)
    negatives: Negatives = field(default_factory=Negatives)
    distillation: Distillation = field(default_factory=Distillation)
    typos: Typos = field(default_factory=Typos)

    @property
    def searches(self) -> bool:
        """Whether the step reads the live index."""
        return self.negatives.retrieved > 0 or self.contrastive.corpus_softmax


@dataclass(frozen=True)
class PassagesOfBatch:
    """Arrays about a batch's passages besides their embeddings, on one device inside the step."""

    contents: jax.Array
    """Contents of this device's passages, which are the first rows with the same title and text, int32 [b, C]."""
    rows: jax.Array
    """The corpus rows of all passages, int32 [B, C]."""
    index: CorpusState | None
    """This device's part of the live index; read by the corpus-wide softmax only."""
    corpus_contents: jax.Array
    """Its rows' contents, int32 [n]."""


@jax.named_scope("loss")
def batch_loss(
    program: ContrastiveProgram,
    q: jax.Array,
    p: jax.Array,
    passages: PassagesOfBatch,
    batch: ContrastiveBatch,
    forms: jax.Array | None = None,
    stored: StoredRows | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """This device's part of the batch's loss.

    Args:
      program: the run's constants.
      q: this device's questions, float32 [b, D].
      p: their passages, float32 [b, C, D].
      passages: what else is known of them.
      batch: this device's part of it.
      forms: the questions' misspelt forms, float32 [b, V, D]; None without terms for typos.
      stored: how the passages are stored that are scored; None: as they are.

    Returns:
      A float32 scalar and a dict of them; their sums over the devices are the batch's means.
    """
    b, c, _ = p.shape
    size = b * lax.axis_size(DATA)
    given = _Given.of_batch(program, passages, batch)
    symmetric, typos = program.contrastive.symmetric, program.typos
    every_q, every_p = (lax.all_gather(x, DATA, tiled=True) for x in (q, p))
    every_form = None if forms is None else lax.all_gather(forms, DATA, tiled=True)
    loss = jnp.zeros((), jnp.float32)
    metrics: dict[str, jax.Array] = {}
    for dim in program.sizes:  # the whole embedding comes last, and gives the metrics
        own_q, own_p, all_q, all_p = (_prefix(program, dim, x) for x in (q, p, every_q, every_p))
        all_forms = None if every_form is None else _prefix(program, dim, every_form)
        if stored is not None:
            error = storage_error(stored, own_p)  # [b, C]
            own_p = stored(own_p)
            all_p = lax.all_gather(own_p, DATA, tiled=True)
            there = passages.contents != NO_PASSAGE
            error = jnp.where(there, error, 0.0).sum() / lax.psum(there.sum(), DATA)
            loss += program.index_aware.commitment * error
            metrics["storage_error"] = error
        to_passages = _ToPassages(given, own_p, all_p.reshape(size * c, dim), stored)
        losses, scores = (x[:, 0] for x in to_passages.softmax(own_q[:, None], all_q[:, None]))
        if symmetric:
            asked = all_q[:, None]
            if typos.multi_positive and all_forms is not None:
                asked = jnp.concatenate([asked, all_forms], axis=1)
            losses = (losses + _of_passages(given, own_p, asked)) / 2
        losses = to_passages.with_distillation(losses[:, None], own_q[:, None])[:, 0]
        if forms is not None and all_forms is not None:
            counted = jnp.broadcast_to(given.contents.reshape(-1) != NO_PASSAGE, scores.shape)
            of_forms, terms = form_losses(
                typos,
                own_q,
                _prefix(program, dim, forms),
                scores,
                counted,
                partial(to_passages.losses, everyone=all_forms),
                tokens=batch.tokens,
                temperature=program.contrastive.temperature,
            )
            losses = typos.clean_weight * losses + of_forms
            if typos.passage_self_teaching_weight:
                taught = _passages_taught(program, own_p[:, 0], all_q, all_forms)
                losses += typos.passage_self_teaching_weight * taught
                terms["typo_passage_self_teaching"] = taught
            metrics |= {name: of_term.sum() / size for name, of_term in terms.items()}
        loss += losses.sum() / size
        masks = given.masks
        best = jnp.where(masks.negative, scores, -jnp.inf).max(axis=-1)
        metrics["accuracy"] = (jnp.where(masks.positive, scores, -jnp.inf).max(axis=-1) > best).sum() / size
        # The corpus is counted without taking off the batch's own rows: they are few.
        distant = program.corpus_rows if program.contrastive.corpus_softmax else 0
        metrics["negatives"] = masks.negative.sum() / size + jnp.float32(distant * b / size)
    return loss, metrics


@dataclass(frozen=True)
class _Given:
    """Inputs that the loss reads at every size of the embedding."""

    program: ContrastiveProgram
    passages: PassagesOfBatch
    batch: ContrastiveBatch
    first: jax.Array  # the place of this device's first question in the batch
    contents: jax.Array  # of all passages [B, C]
    known: jax.Array  # of all questions [B, Q]
    masks: Masks
    false_negatives: jax.Array  # contents that are not negatives of a question [B, X]

    @staticmethod
    def of_batch(program: ContrastiveProgram, passages: PassagesOfBatch, batch: ContrastiveBatch) -> "_Given":
        own, negatives = passages.contents, program.negatives
        first = lax.axis_index(DATA) * len(own)
        contents, known = (lax.all_gather(x, DATA, tiled=True, to="invarying") for x in (own, batch.known))
        masks = Masks.of_batch(
            own,
            contents,
            batch.known,
            first=first,
            positives=program.positives,
            mask_duplicates=negatives.mask_duplicates,
        )
        copies = contents[:, : program.positives if negatives.mask_duplicates else 0]
        false_negatives = jnp.concatenate([known, copies], axis=1)
        return _Given(program, passages, batch, first, contents, known, masks, false_negatives)


@dataclass(frozen=True)
class _ToPassages:
    """The way from questions to the batch's passages, at one size D' of the embedding.

    Vectors come with their forms, [b, F, D'] (F = 1 for the questions themselves); `everyone` is them of all devices,
    [B, F, D'].
    """

    given: _Given
    own_p: jax.Array  # [b, C, D']
    all_p: jax.Array  # [M, D']
    stored: StoredRows | None

    def losses(self, vectors: jax.Array, everyone: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The run's loss from question to passages [b, F], with the scores [b, F, M]."""
        losses, scores = self.softmax(vectors, everyone)
        return self.with_distillation(losses, vectors), scores

    def with_distillation(self, losses: jax.Array, vectors: jax.Array) -> jax.Array:
        """Contrastive losses of vectors and what they learn from a teacher, each with its weight, [b, F]."""
        distillation = self.given.program.distillation
        losses = distillation.contrastive_weight * losses
        if distillation.loss != "none":
            losses += distillation.weight * self.distilled(vectors)
        return losses

    def softmax(self, vectors: jax.Array, everyone: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The cross-entropy over the passages [b, F], with the scores [b, F, M]."""
        given, program = self.given, self.given.program
        temperature = program.contrastive.temperature
        b, f, dim = vectors.shape
        scores = (_scores(vectors.reshape(b * f, dim), self.all_p) / temperature).reshape(b, f, -1)
        further = None
        if program.contrastive.corpus_softmax:
            assert given.passages.index is not None
            of_batch = corpus_logsumexp(
                everyone.reshape(-1, dim),
                given.passages.index.embeddings[:, :dim],
                given.passages.corpus_contents,
                given.passages.rows.reshape(-1),
                jnp.repeat(given.false_negatives, f, axis=0),
                num_valid=program.corpus_rows,
                temperature=temperature,
                normalise=program.encoder.normalise and dim < program.encoder.embedding_size,
                block_rows=program.index.block_rows,
                stored=self.stored,
            )  # [B F]
            further = lax.dynamic_slice_in_dim(of_batch, given.first * f, b * f).reshape(b, f)
        masks = given.masks
        return contrastive_losses(scores, masks.positive[:, None], masks.negative[:, None], further), scores

    def distilled(self, vectors: jax.Array) -> jax.Array:
        """The loss against the teacher's scores of the examples' own passages, [b, F]."""
        program, batch = self.given.program, self.given.batch
        assert batch.teacher is not None
        own = self.own_p[:, : batch.rows.shape[1]]
        student = jnp.einsum("bfd,bcd->bfc", vectors, own, precision=lax.Precision.HIGHEST)
        teacher = batch.teacher[:, None]
        scored = (batch.rows[:, None] != NO_PASSAGE) & ~jnp.isnan(teacher)
        if program.distillation.loss == "margin_mse":
            return margin_mse(student, teacher, scored)
        temperature = program.contrastive.temperature
        return kl_divergence(student / temperature, teacher / program.distillation.teacher_temperature, scored)


def _prefix(program: ContrastiveProgram, dim: int, embeddings: jax.Array) -> jax.Array:
    if dim == program.encoder.embedding_size:
        return embeddings
    return truncated(embeddings, dim, normalise=program.encoder.normalise)


def _scores(q: jax.Array, p: jax.Array) -> jax.Array:
    """Inner products float32 [b, M]; HIGHEST keeps GPUs and TPUs from rounding their operands."""
    return jnp.matmul(q, p.T, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def _of_passages(given: _Given, p: jax.Array, asked: jax.Array) -> jax.Array:
    """The other direction: each positive passage's question against the batch's questions, float32 [b].

    With the questions' misspelt forms, `asked` [B, F, D'], all forms of its question are positives of a passage.
    """
    program, own, contents, known, first = (
        given.program,
        given.passages.contents,
        given.contents,
        given.known,
        given.first,
    )
    b, places = len(own), program.positives
    size, f, dim = asked.shape
    passages = p[:, :places].reshape(b * places, dim)
    scores = _scores(passages, asked.reshape(size * f, dim)) / program.contrastive.temperature
    scores = scores.reshape(b, places, size * f)
    mine = jnp.arange(size) == (first + jnp.arange(b))[:, None]  # [b, B]
    losses = []
    for place in range(places):
        content = own[:, place]
        fits = among(content, known).T
        if program.negatives.mask_duplicates:
            fits |= among(content, contents[:, :places]).T
        valid = (content != NO_PASSAGE)[:, None]
        positive, negative = (jnp.repeat(mask, f, axis=1) for mask in (mine & valid, ~mine & ~fits & valid))
        losses.append(contrastive_losses(scores[:, place], positive, negative))
    return sum(losses) / jnp.maximum((own[:, :places] != NO_PASSAGE).sum(axis=-1), 1)


def _passages_taught(program: ContrastiveProgram, p: jax.Array, all_q: jax.Array, all_forms: jax.Array) -> jax.Array:
    """KL of each first positive's distribution over the questions, [b, D'], and over their misspelt forms, float32 [b]."""
    b, (size, v, dim) = len(p), all_forms.shape
    clean = _scores(p, all_q) / program.contrastive.temperature
    misspelt = (_scores(p, all_forms.reshape(size * v, dim)) / program.contrastive.temperature).reshape(b, size, v)
    return self_teaching_losses(clean, misspelt.swapaxes(1, 2), jnp.ones(clean.shape, bool))
