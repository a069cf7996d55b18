"""The contrastive loss of a batch, at every size of the embedding and with all that can be added to it.

Inside a shard_map over the mesh's "data" axis: b = B / devices questions are local, each with C passages of its own
(positives first, then negatives), and M = B C passages make up the batch. Here the batch is gathered and cut to each size;
the losses themselves, and what decides which passages count, are in jaxretr/losses/contrastive.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.config import Contrastive, Distillation, Negatives, Typos
from jaxretr.losses.contrastive import (
    NO_PASSAGE,
    Masks,
    among,
    contrastive_losses,
    false_negatives,
    guided,
    others_logsumexp,
    passage_losses,
    scaled_scores,
)
from jaxretr.losses.corpus_softmax import corpus_logsumexp
from jaxretr.losses.distillation import kl_divergence, margin_mse
from jaxretr.losses.quantised import StoredRows, storage_errors
from jaxretr.losses.sparse import flops
from jaxretr.losses.typos import self_teaching_losses
from jaxretr.models.embed import truncated
from jaxretr.runtime.parallel.mesh import DATA
from jaxretr.training.state import CorpusState, TokenRows
from jaxretr.training.steps.live_index import IndexProgram
from jaxretr.training.steps.typo_terms import typo_losses


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
    """Text ids (see jaxretr/losses/contrastive.py) that are no negatives of a question: of passages that are the question
    itself and, with `negatives.mask_known_positives`, of all judged positives; int32 [B, Q], Q may be 0."""
    teacher: jax.Array | None
    """A teacher's scores of `rows`, float32 [B, C], NaN where it gave none; None without distillation."""
    forms: TokenRows | None = None
    """The questions' misspelt forms, tokens [B, V, L] and lengths [B, V]; None without terms for typos."""
    guide: jax.Array | None = None
    """The questions' embeddings by a guide of the negatives, of length 1, float32 [B, D']; None without one."""
    sets: jax.Array | None = None
    """Number of each question's set in a mixture, int32 [B]; None without one."""


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
    loss: Callable[..., jax.Array] = contrastive_losses
    """The loss of scores, positives and negatives."""
    sets: tuple[str, ...] = ()
    """Names of a mixture's sets, where a batch has questions of several; each has a loss in the log."""

    @property
    def searches(self) -> bool:
        """Whether the step reads the live index."""
        return self.negatives.retrieved > 0 or self.contrastive.corpus_softmax


@dataclass(frozen=True)
class PassagesOfBatch:
    """Arrays about a batch's passages besides their embeddings, on one device inside the step."""

    text_ids: jax.Array
    """Text ids of this device's passages, int32 [b, C]."""
    rows: jax.Array
    """The corpus rows of all passages, int32 [B, C]."""
    index: CorpusState | None
    """This device's part of the live index; read by the corpus-wide softmax only."""
    corpus_text_ids: jax.Array
    """Text ids of its rows, int32 [n]."""
    guide: jax.Array | None = None
    """A guide's embeddings of this device's passages, float32 [b, C, D']; None without one, and in validation."""


@jax.named_scope("loss")
def batch_loss(
    program: ContrastiveProgram,
    q: jax.Array,
    p: jax.Array,
    passages: PassagesOfBatch,
    batch: ContrastiveBatch,
    *,
    forms: jax.Array | None = None,
    stored: StoredRows | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return this device's part of the batch's loss, in training and in validation.

    Args:
      q: this device's questions, float32 [b, D].
      p: their passages, float32 [b, C, D].
      passages: what else is known of them.
      batch: this device's part of it.
      forms: the questions' misspelt forms, float32 [b, V, D]; None without terms for typos.
      stored: quantiser of the passages that are scored; None: they are scored exactly.

    Returns:
      A float32 scalar and a dict of them; their sums over the devices are the batch's means.
    """
    size = len(q) * lax.axis_size(DATA)
    counted = _Counted.of_batch(program, passages, batch)
    everyone = [None if x is None else lax.all_gather(x, DATA, tiled=True) for x in (q, p, forms)]
    loss = jnp.zeros((), jnp.float32)
    metrics: dict[str, jax.Array] = {}
    for dim in program.sizes:  # the whole embedding comes last, and gives the metrics
        own_q, own_p, own_forms, all_q, all_p, all_forms = (_prefix(program, dim, x) for x in (q, p, forms, *everyone))
        if stored is not None:
            # An index of quantised passages: their rounding is a loss of its own, and all scores read the rounded ones.
            is_present = passages.text_ids != NO_PASSAGE
            errors = jnp.where(is_present, storage_errors(stored, own_p), 0.0)  # [b, C]
            metrics["storage_error"] = errors.sum() / lax.psum(is_present.sum(), DATA)
            loss += program.index_aware.commitment * metrics["storage_error"]
            own_p = stored(own_p)
            all_p = lax.all_gather(own_p, DATA, tiled=True)
        at_size = _AtSize(program, passages, batch, counted, stored, own_q, own_p, own_forms, all_q, all_p, all_forms)
        losses, scores, terms = at_size.losses()
        loss += losses.sum() / size
        metrics |= {name: of_term.sum() / size for name, of_term in terms.items()}
        for number, name in enumerate(program.sets):
            assert batch.sets is not None
            mine = batch.sets == number
            metrics[f"{name}:loss"] = jnp.where(mine, losses, 0.0).sum() / jnp.maximum(lax.psum(mine.sum(), DATA), 1)
        masks = counted.masks
        best = jnp.where(masks.negative, scores, -jnp.inf).max(axis=-1)
        metrics["accuracy"] = (jnp.where(masks.positive, scores, -jnp.inf).max(axis=-1) > best).sum() / size
        # The corpus is counted without taking off the batch's own rows: they are few.
        distant = program.corpus_rows if program.contrastive.corpus_softmax else 0
        metrics["negatives"] = masks.negative.sum() / size + jnp.float32(distant * len(q) / size)
    return loss, metrics


@jax.named_scope("sparsity")
def sparsity(
    contrastive: Contrastive, step: jax.Array, q: jax.Array, p: jax.Array, text_ids: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return this device's part of the regularisation of sparse embeddings, for training alone.

    Args:
      step: number of the step, from 0.
      q: this device's questions, float32 [b, V].
      p: their passages, float32 [b, C, V].
      text_ids: text ids of these, int32 [b, C].

    Returns:
      A float32 scalar, and how many entries of a question and of a passage are not 0; sums over the devices are the batch's.
    """
    devices, p, present = lax.axis_size(DATA), p.reshape(-1, p.shape[-1]), text_ids.reshape(-1) != NO_PASSAGE
    rise = jnp.minimum(step / max(contrastive.flops_warmup, 1), 1.0) ** 2 if contrastive.flops_warmup else 1.0
    loss = contrastive.flops_questions * flops(q, axis=DATA) + contrastive.flops_passages * flops(p, present, axis=DATA)
    count = jnp.maximum(lax.psum(present.sum(), DATA), 1)
    entries = {
        "question_entries": (q > 0).sum() / (devices * len(q)),
        "passage_entries": ((p > 0) & present[:, None]).sum() / count,
    }
    # Every device's part of the whole, whose gradients the devices add up like those of the other parts.
    part = lax.pcast(rise * loss / devices, DATA, to="varying")
    return part, entries


@dataclass(frozen=True)
class _Counted:
    """Which passages count for which questions, at every size of the embedding."""

    first: jax.Array  # place of this device's first question in the batch
    text_ids: jax.Array  # of all passages, int32 [B, C]
    excluded: jax.Array  # text ids that are no negatives of each question, int32 [B, X]
    masks: Masks  # of this device's questions, [b, M]
    # Only with `among_questions`, `among_positives`: the batch's questions, and positives, that are negatives of each.
    questions: jax.Array | None  # bool [b, B]
    positives: jax.Array | None  # bool [b, B P]
    hardened: jax.Array | None  # the negatives that `hardness` is of, bool [b, M]; None: of none

    @staticmethod
    def of_batch(program: ContrastiveProgram, passages: PassagesOfBatch, batch: ContrastiveBatch) -> "_Counted":
        """Gather the text ids of all devices' passages, and ask the guide, if there is one."""
        own, positives, settings = passages.text_ids, program.positives, program.negatives
        b, first = len(own), lax.axis_index(DATA) * len(own)
        excluded = false_negatives(batch.known, own, positives=positives, mask_duplicates=settings.mask_duplicates)
        text_ids, all_excluded = (lax.all_gather(x, DATA, tiled=True, to="invarying") for x in (own, excluded))
        masks = Masks.of_batch(text_ids, excluded, first=first, positives=positives)
        size, questions, of_positives, hardened = len(text_ids), None, None, None
        if program.contrastive.among_questions:
            # Another question, unless it has the same text, or a positive that is none of this one's negatives.
            tokens = lax.all_gather(batch.tokens, DATA, tiled=True)
            itself = (tokens == batch.tokens[:, None]).all(axis=-1)
            shares = among(text_ids[:, :positives].reshape(-1), excluded).reshape(b, size, positives).any(axis=-1)
            questions = ~itself & ~shares
        if program.contrastive.among_positives:
            of_positives = masks.negative.reshape(b, size, -1)[:, :, :positives].reshape(b, -1)
        if passages.guide is not None and batch.guide is not None:
            all_q, all_p = lax.all_gather((batch.guide, passages.guide), DATA, tiled=True)
            dim = all_q.shape[-1]
            found = scaled_scores(batch.guide, all_p.reshape(-1, dim), 1.0)
            best = jnp.where(masks.positive, found, -jnp.inf).max(axis=-1)
            leaves = partial(guided, own=best, margin=settings.guide_margin, relative=settings.guide_relative)
            masks = Masks(masks.positive, masks.negative & leaves(found))
            if questions is not None:
                questions &= leaves(scaled_scores(batch.guide, all_q, 1.0))
            if of_positives is not None:
                all_own = all_p[:, :positives].reshape(-1, dim)
                of_positives &= leaves(scaled_scores(passages.guide[:, 0], all_own, 1.0))
        if program.contrastive.hardness:
            hardened, of = masks.negative, program.contrastive.hardness_of
            if of != "all":
                is_own = jnp.arange(hardened.shape[1]) // own.shape[1] == (first + jnp.arange(b))[:, None]
                hardened &= is_own if of == "own" else ~is_own
        return _Counted(first, text_ids, all_excluded, masks, questions, of_positives, hardened)


@dataclass(frozen=True)
class _AtSize:
    """The losses of this device's questions at one size D' of the embedding, on the scores of `scaled_scores`.

    What takes vectors takes them with their forms, [b, F, D'] (F = 1 for the questions themselves); `everyone` is them
    of all devices, [B, F, D'].
    """

    program: ContrastiveProgram
    passages: PassagesOfBatch
    batch: ContrastiveBatch
    counted: _Counted
    stored: StoredRows | None
    q: jax.Array  # [b, D']
    p: jax.Array  # [b, C, D']
    forms: jax.Array | None  # [b, V, D']
    all_q: jax.Array  # [B, D']
    all_p: jax.Array  # [B, C, D']
    all_forms: jax.Array | None  # [B, V, D']

    @property
    def temperature(self) -> float:
        return self.program.contrastive.temperature

    def losses(self) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """All losses of the questions [b], their scores of the passages [b, M], and terms by their names in the log."""
        losses, scores = (x[:, 0] for x in self.to_passages(self.q[:, None], self.all_q[:, None]))
        if self.program.contrastive.symmetric:
            losses = (losses + self.to_questions()) / 2
        losses = self.with_distillation(losses[:, None], self.q[:, None])[:, 0]
        if self.forms is None or self.all_forms is None:
            return losses, scores, {}
        return self.with_typos(losses, scores, self.forms, self.all_forms)

    def to_passages(self, vectors: jax.Array, everyone: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The cross-entropy over the passages [b, F], with the scores [b, F, M]."""
        b, f, dim = vectors.shape
        scores = scaled_scores(vectors.reshape(b * f, dim), self.all_p.reshape(-1, dim), self.temperature)
        scores = scores.reshape(b, f, -1)
        masks, settings, further = self.counted.masks, self.program.contrastive, list[jax.Array]()
        if settings.corpus_softmax:
            further.append(self.over_corpus(everyone, b))
        if self.counted.questions is not None:
            of_questions = scaled_scores(vectors.reshape(b * f, dim), self.all_q, self.temperature).reshape(b, f, -1)
            further.append(others_logsumexp(of_questions, self.counted.questions[:, None]))
        if self.counted.positives is not None:
            all_own = self.all_p[:, : self.program.positives].reshape(-1, dim)
            of_own = others_logsumexp(scaled_scores(self.p[:, 0], all_own, self.temperature), self.counted.positives)
            further.append(jnp.broadcast_to(of_own[:, None], (b, f)))
        sums = (reduce(jnp.logaddexp, further),) if further else ()
        weighed = scores
        if self.counted.hardened is not None:
            alpha = (
                settings.hardness * self.temperature
            )  # The scores are divided by the temperature, the addition is not.
            weighed = scores + jnp.where(self.counted.hardened[:, None], alpha * lax.stop_gradient(scores), 0.0)
        return self.program.loss(weighed, masks.positive[:, None], masks.negative[:, None], *sums), scores

    def over_corpus(self, everyone: jax.Array, b: int) -> jax.Array:
        """The logarithm of the sum of exp(score) over the corpus's rows outside the batch, [b, F]."""
        program, encoder = self.program, self.program.encoder
        assert self.passages.index is not None
        f, dim = everyone.shape[1:]
        of_batch = corpus_logsumexp(
            everyone.reshape(-1, dim),
            self.passages.index.embeddings[:, :dim],
            self.passages.corpus_text_ids,
            self.passages.rows.reshape(-1),
            jnp.repeat(self.counted.excluded, f, axis=0),
            axis=DATA,
            num_valid=program.corpus_rows,
            temperature=self.temperature,
            normalise=encoder.normalise and dim < encoder.embedding_size,
            block_rows=program.index.block_rows,
            stored=self.stored,
        )  # [B F]
        return lax.dynamic_slice_in_dim(of_batch, self.counted.first * f, b * f).reshape(b, f)

    def to_questions(self) -> jax.Array:
        """The other direction, from each positive passage to the batch's questions (with `multi_positive`, forms too), [b]."""
        questions = self.all_q[:, None]  # [B, F, D']
        if self.program.typos.multi_positive and self.all_forms is not None:
            questions = jnp.concatenate([questions, self.all_forms], axis=1)
        size, f, dim = questions.shape
        own = self.passages.text_ids[:, : self.program.positives]
        positives = self.p[:, : self.program.positives].reshape(-1, dim)
        scores = scaled_scores(positives, questions.reshape(size * f, dim), self.temperature)
        scores = scores.reshape(*own.shape, size, f)
        counted = self.counted
        return passage_losses(scores, own, counted.excluded, first=counted.first, loss=self.program.loss)

    def with_distillation(self, losses: jax.Array, vectors: jax.Array) -> jax.Array:
        """Contrastive losses of vectors, and those against the teacher's scores, each with its weight, [b, F]."""
        settings, batch = self.program.distillation, self.batch
        losses = settings.contrastive_weight * losses
        if settings.loss == "none":
            return losses
        assert batch.teacher is not None
        own = self.p[:, : batch.rows.shape[1]]
        teacher = batch.teacher[:, None]
        scored = (batch.rows[:, None] != NO_PASSAGE) & ~jnp.isnan(teacher)
        if settings.loss == "margin_mse":
            return losses + settings.weight * margin_mse(scaled_scores(vectors, own, 1.0), teacher, scored)
        student = scaled_scores(vectors, own, self.temperature)
        return losses + settings.weight * kl_divergence(student, teacher / settings.teacher_temperature, scored)

    def with_typos(
        self, losses: jax.Array, scores: jax.Array, forms: jax.Array, all_forms: jax.Array
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """The results of `losses` with the terms of the questions' misspelt forms."""
        typos = self.program.typos

        def losses_of(vectors: jax.Array) -> tuple[jax.Array, jax.Array]:
            losses, scores = self.to_passages(vectors, all_forms)
            return self.with_distillation(losses, vectors), scores

        is_present = jnp.broadcast_to(self.counted.text_ids.reshape(-1) != NO_PASSAGE, scores.shape)
        of_forms, terms = typo_losses(
            typos,
            self.q,
            forms,
            scores,
            is_present,
            losses_of,
            tokens=self.batch.tokens,
            temperature=self.temperature,
        )
        losses = typos.clean_weight * losses + of_forms
        if typos.passage_self_teaching_weight:
            # Each first positive's distribution over the questions [b, B], and over their misspelt forms [b, V, B].
            positives, (size, v, dim) = self.p[:, 0], all_forms.shape
            clean = scaled_scores(positives, self.all_q, self.temperature)
            misspelt = scaled_scores(positives, all_forms.reshape(size * v, dim), self.temperature)
            misspelt = misspelt.reshape(-1, size, v).swapaxes(1, 2)
            teaching = self_teaching_losses(clean, misspelt, jnp.ones(clean.shape, bool))
            losses += typos.passage_self_teaching_weight * teaching
            terms["typo_passage_self_teaching"] = teaching
        return losses, scores, terms


def _prefix(program: ContrastiveProgram, dim: int, embeddings: Any) -> Any:
    """The first `dim` dimensions of embeddings [..., D], of length 1 if the whole ones are; None stays None."""
    if embeddings is None or dim == program.encoder.embedding_size:
        return embeddings
    return truncated(embeddings, dim, normalise=program.encoder.normalise)
