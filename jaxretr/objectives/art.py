"""ART: learning to retrieve from questions alone (Sachan et al. 2023, section 2).

One compiled step does everything: it embeds the questions, finds the top K passages of the whole corpus, fetches
their tokens, embeds them with gradient, asks the frozen scorer how well each explains its question, and moves both
towers so that the retriever's distribution over the K passages comes nearer to the scorer's. A second compiled
program encodes the corpus anew. If reading the code, start at `art_loss`, then go to `make_step`.

Everything runs inside a shard_map over the mesh's "data" axis: b = B / devices questions and n = N / devices corpus
rows are local. The "model" axis, which splits large matrices, is left to the compiler.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxretr.models.dual_encoder import DualEncoderConfig, embed, tower
from jaxretr.models.layers import Params
from jaxretr.models.scorer import Prompt, score_pairs
from jaxretr.models.t5 import T5Config
from jaxretr.parallel.mesh import DATA
from jaxretr.search.topk import search_step
from jaxretr.state import CorpusState, CorpusTokens, TrainState


def art_loss(
    student: jax.Array, teacher: jax.Array, *, temperature: float, teacher_temperature: float = 1.0
) -> jax.Array:
    """KL(teacher || student) over each question's K passages (equations 2 to 4).

    Its gradient in the scaled student's scores is (student distribution - teacher distribution) / B.

    Args:
      student: inner products of question and passage embeddings, float32 [B, K].
      teacher: mean log-probability of the question given each passage, float32 [B, K]; no gradient flows into it.
      temperature: tau, which divides the student's scores.
      teacher_temperature: divides the teacher's.

    Returns:
      float32 scalar: the batch's mean, in nats.
    """
    target = jax.nn.log_softmax(lax.stop_gradient(teacher).astype(jnp.float32) / teacher_temperature, axis=-1)
    model = jax.nn.log_softmax(student.astype(jnp.float32) / temperature, axis=-1)
    return (jnp.exp(target) * (target - model)).sum(axis=-1).mean()


@jax.tree_util.register_dataclass
@dataclass
class QuestionBatch:
    """The questions of one step, in the encoder's and in the scorer's tokens, sharded by row."""

    tokens: jax.Array
    """[CLS] q [SEP], integers [B, L]."""
    lengths: jax.Array
    """int32 [B]."""
    targets: jax.Array
    """"Question: {q}</s>", integers [B, T]."""
    target_lengths: jax.Array
    """int32 [B]."""


@dataclass(frozen=True)
class ArtProgram:
    """All that is fixed while an ART run's programs are compiled."""

    encoder: DualEncoderConfig
    t5: T5Config
    prompt: Prompt
    corpus_rows: int
    """Passages of the corpus; the sharded arrays' further rows are padding."""
    top_k: int
    temperature: float
    teacher_temperature: float
    write_back: bool
    shuffle_teacher: bool
    teacher_chunk: int
    block_rows: int
    encode_rows: int
    encoder_dtype: Any
    scorer_dtype: Any
    seed: int


def make_step(program: ArtProgram, optimizer: optax.GradientTransformation, mesh: Mesh) -> Callable[..., Any]:
    """Builds the compiled training step.

    Args:
      program: the run's constants.
      optimizer: applied to both towers.
      mesh: with the axes "data" and "model"; B must be a multiple of its data axis.

    Returns:
      step(state, index, passages, scorer_passages, scorer_params, batch) -> (state, index, metrics, rows), where
      `passages` and `scorer_passages` are the corpus's CorpusTokens for the encoder and for the scorer, `metrics`
      a dict of float32 scalars and `rows` the retrieved corpus rows, int32 [B, K]. `state` and `index` are donated.
    """
    # The mesh's platform, not this process's default: a program can be compiled for devices that are not here.
    on_cpu = mesh.devices.flat[0].platform == "cpu"

    @partial(jax.jit, donate_argnums=(0, 1))
    @partial(
        jax.shard_map,
        mesh=mesh,
        axis_names={DATA},
        in_specs=(P(), P(DATA), P(DATA), P(DATA), P(), P(DATA)),
        out_specs=(P(), P(DATA), P(), P()),
    )
    def step(
        state: TrainState,
        index: CorpusState,
        passages: CorpusTokens,
        scorer_passages: CorpusTokens,
        scorer_params: Params,
        batch: QuestionBatch,
    ) -> tuple[TrainState, CorpusState, dict[str, jax.Array], jax.Array]:
        # "Varying" keeps the gradients local; there is one reduction below, outside of every loop.
        params = jax.tree.map(lambda x: lax.pcast(x, DATA, to="varying"), state.params)
        keys = DropoutKeys.of_step(program, state.step, len(batch.tokens))
        questions = partial(embed, program.encoder, dtype=program.encoder_dtype)

        # 1. Search with the question vectors of this step, dropout and all, as the authors do.
        searched = questions(tower(params, "question"), batch.tokens, batch.lengths, keys=keys.questions)
        _, rows = search_step(
            searched if on_cpu else searched.astype(index.embeddings.dtype),
            index.embeddings,
            program.top_k,
            num_valid=program.corpus_rows,
            queries_sharded=True,
            block_rows=program.block_rows,
        )  # [B, K]

        # 2. Fetch the found passages' tokens for this device's own questions.
        found = jax.tree.map(lambda table: fetch_rows(table, rows), passages)  # [b, K, L], [b, K]
        scorer_found = jax.tree.map(lambda table: fetch_rows(table, rows), scorer_passages)

        # 3. Ask the teacher.
        teacher = teach(program, scorer_params, scorer_found, batch)  # [b, K]
        if program.shuffle_teacher:
            teacher = jax.vmap(jax.random.permutation)(keys.shuffle, teacher)

        # 4. Embed questions and passages with gradient, compare.
        def loss_of(params: Params) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            q = questions(tower(params, "question"), batch.tokens, batch.lengths, keys=keys.questions)  # [b, D]
            flat = found.tokens.reshape(-1, found.tokens.shape[-1])
            p = embed(
                program.encoder,
                tower(params, "passage"),
                flat,
                found.lengths.reshape(-1),
                dtype=program.encoder_dtype,
                keys=None if keys.passages is None else keys.passages.reshape(-1),
            ).reshape(len(q), program.top_k, -1)  # [b, K, D]
            student = jnp.einsum("bd,bkd->bk", q, p, precision=lax.Precision.HIGHEST)
            loss = art_loss(
                student,
                teacher,
                temperature=program.temperature,
                teacher_temperature=program.teacher_temperature,
            )
            return loss, (student, p)

        (loss, (student, fresh)), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)

        # 5. Write the fresh embeddings back, reduce once, update.
        if program.write_back:
            index = write_back(index, rows, fresh, state.step)
        metrics = {
            "loss": loss,
            "teacher_score": teacher.mean(),
            "agreement": (student.argmax(-1) == teacher.argmax(-1)).astype(jnp.float32).mean(),
            "staleness": staleness(index, state.step, program.corpus_rows),
        }
        gradients, metrics = lax.pmean((gradients, metrics), DATA)
        metrics["gradient_norm"] = optax.global_norm(gradients)
        return state.apply_gradients(gradients, optimizer), index, metrics, rows

    return step


def teach(program: ArtProgram, params: Params, found: CorpusTokens, batch: QuestionBatch) -> jax.Array:
    """The teacher's scores of this device's questions and their passages, float32 [b, K], in chunks of pairs."""
    b, k = found.lengths.shape
    pairs = (
        found.tokens.reshape(b * k, -1),
        found.lengths.reshape(-1),
        jnp.repeat(batch.targets, k, axis=0),
        jnp.repeat(batch.target_lengths, k, axis=0),
    )
    size = largest_divisor(b * k, program.teacher_chunk)
    score = partial(score_pairs, program.t5, program.prompt, params, dtype=program.scorer_dtype)
    chunks = jax.tree.map(lambda x: x.reshape(b * k // size, size, *x.shape[1:]), pairs)
    return lax.stop_gradient(lax.map(lambda chunk: score(*chunk), chunks).reshape(b, k))


def fetch_rows(table: jax.Array, rows: jax.Array) -> jax.Array:
    """Brings rows of a sharded table to the devices that asked for them; call it inside the shard_map.

    Args:
      table: this device's rows, integers [n, ...].
      rows: global rows wanted by all devices, int32 [B, K], the same everywhere.

    Returns:
      int32 [b, K, ...]: the wanted rows of this device's b questions.
    """
    local = rows - lax.axis_index(DATA) * len(table)
    mine = (local >= 0) & (local < len(table))
    values = table[jnp.clip(local, 0, len(table) - 1)].astype(jnp.int32)
    values = jnp.where(mine.reshape(*mine.shape, *[1] * (values.ndim - 2)), values, 0)
    # Each row is on exactly one device, so the sum moves it.
    return lax.psum_scatter(values, DATA, scatter_dimension=0, tiled=True)


def write_back(index: CorpusState, rows: jax.Array, fresh: jax.Array, step: jax.Array) -> CorpusState:
    """Puts freshly computed embeddings into the index.

    Args:
      index: this device's part of the index.
      rows: the retrieved global rows of the whole batch, int32 [B, K].
      fresh: their embeddings as far as this device computed them, float32 [b, K, D].
      step: the number of updates that the weights had seen, int32 scalar.
    """
    everyone = lax.all_gather(fresh.astype(index.embeddings.dtype), DATA, tiled=True)  # [B, K, D]
    flat = rows.reshape(-1)
    # A passage that several questions found has several embeddings (dropout); the first question's counts, so that
    # the result does not depend on the order in which a device scatters.
    order = jnp.argsort(flat, stable=True)
    repeats = jnp.concatenate([jnp.zeros(1, bool), jnp.diff(flat[order]) == 0])
    first = jnp.zeros(flat.shape, bool).at[order].set(~repeats)
    n = len(index.encoded_at)
    local = flat - lax.axis_index(DATA) * n
    place = jnp.where(first & (local >= 0) & (local < n), local, n)  # n is out of bounds: dropped
    return CorpusState(
        index.embeddings.at[place].set(everyone.reshape(len(flat), -1), mode="drop"),
        index.encoded_at.at[place].set(step, mode="drop"),
    )


def staleness(index: CorpusState, step: jax.Array, corpus_rows: int) -> jax.Array:
    """This device's share of the mean age of the index's rows, in steps; the devices' mean is the corpus's mean."""
    n = len(index.encoded_at)
    real = lax.axis_index(DATA) * n + jnp.arange(n) < corpus_rows
    age = jnp.where(real, step - index.encoded_at, 0).astype(jnp.float32)
    return age.sum() * lax.axis_size(DATA) / corpus_rows


@dataclass
class DropoutKeys:
    """One PRNG key for every text that a device embeds, by its place in the global batch."""

    questions: jax.Array | None
    passages: jax.Array | None
    shuffle: jax.Array

    @staticmethod
    def of_step(program: ArtProgram, step: jax.Array, b: int) -> "DropoutKeys":
        """Keys that depend on (seed, step, place in the batch) only: any number of devices draws the same masks."""
        key = jax.random.fold_in(jax.random.key(program.seed), step)
        place = lax.axis_index(DATA) * b + jnp.arange(b)
        fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        shuffle = fold(jax.random.fold_in(key, 2), place)
        bert = program.encoder.bert
        if not (bert.hidden_dropout_prob or bert.attention_probs_dropout_prob):
            return DropoutKeys(None, None, shuffle)
        each = place[:, None] * program.top_k + jnp.arange(program.top_k)
        return DropoutKeys(
            fold(jax.random.fold_in(key, 0), place),
            jax.vmap(fold, in_axes=(None, 0))(jax.random.fold_in(key, 1), each),
            shuffle,
        )


def make_refresh(program: ArtProgram, mesh: Mesh) -> Callable[..., CorpusState]:
    """Builds the compiled program that encodes the whole corpus on the devices, dropout off.

    Returns:
      refresh(params, passages, index, step) -> index. `index` is donated and overwritten.
    """

    @partial(jax.jit, donate_argnums=(2,))
    @partial(
        jax.shard_map,
        mesh=mesh,
        axis_names={DATA},
        in_specs=(P(), P(DATA), P(DATA), P()),
        out_specs=P(DATA),
    )
    def refresh(params: Params, passages: CorpusTokens, index: CorpusState, step: jax.Array) -> CorpusState:
        n, width = passages.tokens.shape
        size = largest_divisor(n, program.encode_rows)
        widths = bucket_widths(width)
        # Shortest first, so that a block's rows have about the same length and none pays for a longer one.
        order = jnp.argsort(passages.lengths, stable=True).reshape(n // size, size)
        weights = tower(params, "passage")

        def encode(tokens: jax.Array, lengths: jax.Array, width: int) -> jax.Array:
            return embed(program.encoder, weights, tokens[:, :width], lengths, dtype=program.encoder_dtype)

        def block(number: jax.Array, embeddings: jax.Array) -> jax.Array:
            rows = order[number]
            lengths = passages.lengths[rows]
            bucket = (lengths.max() > jnp.array(widths[:-1], jnp.int32)).sum()  # the first width that is enough
            branches = [partial(encode, width=width) for width in widths]
            fresh = lax.switch(bucket, branches, passages.tokens[rows], lengths)
            return embeddings.at[rows].set(fresh.astype(embeddings.dtype))

        embeddings = lax.fori_loop(0, n // size, block, index.embeddings)
        return CorpusState(embeddings, jnp.zeros_like(index.encoded_at) + step)

    return refresh


def bucket_widths(width: int) -> list[int]:
    """The padded lengths that a refresh chooses from: quarters of the longest, in multiples of 16."""
    return sorted({min(width, -(-width * part // 4 // 16) * 16) for part in (1, 2, 3, 4)} | {width})


def largest_divisor(n: int, limit: int) -> int:
    """The largest divisor of n that is at most `limit` (at least 1)."""
    return next(size for size in range(max(1, min(n, limit)), 0, -1) if n % size == 0)


def make_search(program: ArtProgram, mesh: Mesh, k: int) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Builds the compiled search of evaluation questions over the live index, dropout off.

    Returns:
      search(params, index, tokens [B, L], lengths [B]) -> (scores float32 [B, k], rows int32 [B, k]), the same on
      all devices.
    """

    @jax.jit
    @partial(
        jax.shard_map,
        mesh=mesh,
        axis_names={DATA},
        in_specs=(P(), P(DATA), P(DATA), P(DATA)),
        out_specs=(P(), P()),
    )
    def search(
        params: Params, index: CorpusState, tokens: jax.Array, lengths: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        q = embed(program.encoder, tower(params, "question"), tokens, lengths, dtype=program.encoder_dtype)
        return search_step(
            q,
            index.embeddings,
            k,
            num_valid=program.corpus_rows,
            queries_sharded=True,
            block_rows=program.block_rows,
        )

    return search
