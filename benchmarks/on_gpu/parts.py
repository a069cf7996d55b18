"""What is measured, part by part: the library's own compiled programs on random weights and text of real lengths."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxretr.config import Art, LiveIndex, Negatives, Optimizer
from jaxretr.indexes.topk import BLOCK_ROWS, search_step
from jaxretr.indexes.topk.accelerators import GPU, pyramid_topk
from jaxretr.indexes.topk.shard import Shard
from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.models.backbones.layers import define
from jaxretr.models.backbones.masked_lm import MaskedLm
from jaxretr.models.backbones.t5 import T5Config, T5Model
from jaxretr.models.embed import DualEncoderConfig, abstract_params
from jaxretr.models.scorers.teachers import T5Teacher
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.mesh import DATA, padded_rows, put_rows
from jaxretr.training import optim
from jaxretr.training.state import CorpusState, TrainState
from jaxretr.training.steps import art, contrastive
from jaxretr.training.steps.batch_loss import ContrastiveBatch, ContrastiveProgram
from jaxretr.training.steps.index_refresh import make_refresh
from jaxretr.training.steps.live_index import IndexProgram, find_passages
from jaxretr.training.steps.mlm import mask, masked_lm_loss
from jaxretr.training.steps.teaching import Teaching
from jaxretr.training.steps.token_step import make_token_step
from jaxretr.training.steps.widths import TeacherWidths, passage_widths
from on_gpu import formulas
from on_gpu.art_sizes import ArtSizes
from on_gpu.encoding import assert_near
from on_gpu.inputs import mesh_of_one, random_corpus, random_params, random_rows, random_tokens
from on_gpu.measuring import Part, compiled, waits
from on_gpu.shapes import BERT_BASE, PROMPT, TOY_PROMPT, TOY_T5, WIDTH, encoder_of, words_of

# Of Wikipedia in passages of 100 words, as ART and DPR search it.
WIKIPEDIA = 21_015_324

_WITHOUT_LIMIT = 1 << 60


# ---- the machine -----------------------------------------------------------------------------------------------------


def machine(part: Part) -> None:
    """What this card reaches: a copy and a product of matrices, as jax runs them."""
    n = part.scaled(2**30, 2**16)
    values = jax.random.normal(jax.random.key(0, impl="rbg"), (n,), jnp.bfloat16)
    copy, _ = compiled(jax.jit(lambda x: x + jnp.bfloat16(1)), values)
    part.compare("copy", waits(partial(copy, values)), None, share=0.4, bytes=4.0 * n, shape=f"{n} bfloat16")
    del values
    side = part.scaled(8192, 64)
    one, other = jax.random.normal(jax.random.key(1, impl="rbg"), (2, side, side), jnp.bfloat16)
    product, _ = compiled(jax.jit(jnp.matmul), one, other)
    shape = f"{side} x {side} x {side} bfloat16"
    part.compare("matmul", waits(partial(product, one, other)), None, share=0.9, flops=2.0 * side**3, shape=shape)


# ---- search ----------------------------------------------------------------------------------------------------------


def search(part: Part) -> None:
    """Exact search of resident rows: as a training step does it, and as ExactIndex does."""
    k, dim = (10, 32) if part.toy else (100, 768)
    mesh = mesh_of_one()
    n = part.scaled(_rows_that_fit(2 * dim, 0.75, _device_bytes()), 4096)
    rows = random_rows(mesh, padded_rows(n, mesh), dim)
    index = CorpusState(rows, jnp.zeros(len(rows), jnp.int32))
    program = _index_program(encoder_of(part, BERT_BASE), n)
    part.say(f"{n:,} x {dim}")

    # What `find_passages` rounds questions to.
    kept = jnp.float32 if mesh.devices.flat[0].platform == "cpu" else index.embeddings.dtype

    def of_training(questions: jax.Array, index: CorpusState) -> Any:
        return find_passages(program, mesh, questions, index, k)

    def of_index(questions: jax.Array, index: CorpusState) -> Any:
        return search_step(questions, index.embeddings, k, num_valid=n, block_rows=BLOCK_ROWS)

    def in_blocks(questions: jax.Array, index: CorpusState) -> Any:
        """What a training step does on GPUs that the kernel is not for."""
        shard = Shard(index.embeddings, jnp.int32(n))
        return pyramid_topk(questions.astype(kept), shard, k, program.index.block_rows, kind=GPU)

    counts = (1, 8) if part.toy else (1, 8, 64, 512)
    cases = [
        (count, name, step) for count in counts for name, step in (("training", of_training), ("ExactIndex", of_index))
    ]
    compared = counts[-1] if part.toy else 64
    cases.append((compared, "training, XLA alone", in_blocks))
    found = {}
    for done, (count, name, step) in enumerate(cases):
        questions = np.random.default_rng(count).standard_normal((count, dim), np.float32)
        sharded = P() if step is of_index else P(DATA)
        out = P() if step is not in_blocks else P(DATA)
        jitted = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(sharded, P(DATA)), out_specs=out))
        case = f"search for {count} ({name})"
        call, seconds = part.compiled(case, jitted, questions, index)
        with_peer = part.torch and step is of_training
        part.compare(
            case,
            waits(partial(call, questions, index)),
            (lambda questions=questions: part.torch.search(rows, questions, k)) if with_peer else None,
            share=1 / (len(cases) - done),
            bytes=formulas.search_bytes(n, dim, 2),
            flops=2.0 * count * n * dim,
            rate=("questions/s", count),
            compile=seconds,
            shape=f"{n} x {dim} bfloat16, k = {k}" + ("" if n == WIKIPEDIA or part.toy else ", the most that fits"),
        )
        found[count, name] = jax.device_get(call(questions, index))
        _assert_near_scores(found[count, name], questions.astype(np.float32 if step is of_index else kept), index)
    _assert_same_rows(found[compared, "training"], found[compared, "training, XLA alone"])
    _assert_same_rows(found[compared, "training"], found[compared, "ExactIndex"], least=0.9)


def _assert_near_scores(found: Any, questions: np.ndarray, index: CorpusState) -> None:
    """Scores belong to the rows that they came with; raises where they do not."""
    scores, rows = found
    vectors = np.asarray(index.embeddings[rows[:1]], np.float64)[0]
    error = np.abs(vectors @ questions[0].astype(np.float64) - scores[0]).max() / np.abs(scores[0]).max()
    if not error < 1e-5:
        raise ValueError(f"scores differ from those of their rows by {error:.2g} of the largest")


def _assert_same_rows(found: Any, others: Any, least: float = 0.999) -> None:
    """Two searches find the same rows but for those whose scores are equal up to rounding; raises where they do not."""
    same = np.mean([np.isin(one, other).mean() for one, other in zip(found[1], others[1], strict=True)])
    if not same >= least:
        raise ValueError(f"two formulations of the search have only {same:.4f} of their rows in common")


def _device_bytes() -> float:
    """What JAX may take of the device's memory; without a limit, infinity."""
    return (jax.devices()[0].memory_stats() or {}).get("bytes_limit", math.inf)


def _rows_that_fit(row_bytes: int, share: float, limit: float) -> int:
    """Wikipedia's passages, or half as often as it takes until they fit into a share of a device's memory."""
    n = WIKIPEDIA
    while n * row_bytes > share * limit:
        n //= 2
    return n


def _index_program(encoder: DualEncoderConfig, rows: int, passages: np.ndarray | None = None) -> IndexProgram:
    """A run's; `passages` are their lengths, which a run knows."""
    return IndexProgram(
        encoder=encoder,
        encoder_dtype="bfloat16",
        corpus_rows=rows,
        index=LiveIndex(),
        chunk=64,
        activation_bytes=0,
        passage_widths=() if passages is None else passage_widths(passages, WIDTH),
    )


def refresh(part: Part) -> None:
    """The index's refresh: tokens on the device to embeddings on the device."""
    mesh, encoder = mesh_of_one(), encoder_of(part, BERT_BASE)
    n = part.scaled(131_072, 1024, 1024)
    lengths = formulas.draw_lengths(formulas.PASSAGE_TOKENS, n, WIDTH)
    passages = random_corpus(mesh, lengths, WIDTH, encoder.backbone.vocab_size)
    params = random_params(abstract_params(encoder), mesh)
    index = CorpusState(jnp.zeros((n, encoder.embedding_size), jnp.bfloat16), jnp.zeros(n, jnp.int32))
    index = jax.device_put(index, passages.lengths.sharding)
    program = _index_program(encoder, n, lengths)
    call, seconds = part.compiled("refresh", make_refresh(program, mesh), params, passages, index, jnp.int32(0))

    def run() -> None:
        nonlocal index
        index = jax.block_until_ready(call(params, passages, index, jnp.int32(0)))

    def peer() -> Callable[[], Any]:
        weights = params["passage"]["bert"]
        theirs = part.torch.refresh(
            encoder.backbone,
            weights,
            np.asarray(passages.take(jnp.arange(n)).tokens),
            lengths,
            program.index.encode_rows,
        )
        assert_near(np.asarray(index.embeddings[:256], np.float32), theirs()[:256].float().cpu().numpy())
        return theirs

    part.compare(
        "refresh",
        run,
        peer if part.torch else None,
        flops=formulas.bert_flops(encoder.backbone, lengths),
        rate=("passages/s", n),
        compile=seconds,
        shape=f"{words_of(encoder.backbone)}, {n} passages of {lengths.mean():.0f} tokens, blocks of {program.index.encode_rows}",
    )


# ---- training --------------------------------------------------------------------------------------------------------


class _Stepped:
    """A compiled step whose state is carried from call to call."""

    def __init__(self, call: Callable[..., Any], carried: tuple[Any, ...], *others: Any):
        self.call, self.carried, self.others = call, carried, others

    def __call__(self) -> None:
        *carried, metrics = self.call(*self.carried, *self.others)[: len(self.carried) + 1]
        self.carried = tuple(carried)
        loss = float(metrics["loss"])  # waits
        if not math.isfinite(loss):
            raise ValueError(f"the loss is {loss}")


def contrastive_step(part: Part, chunk: int, *, keep: bool = False) -> None:
    """DPR's step: 128 questions with a positive and a hard negative each; `keep` the activations of all chunks, or none."""
    mesh, encoder = mesh_of_one(), encoder_of(part, BERT_BASE, dropout=0.1)
    c, n, width = (2, 1024, 32) if part.toy else (2, 65_536, WIDTH)
    # What does not fit is made smaller by the chunk, or by the batch where all of it is kept.
    b = part.scaled(128, 8) if keep else 8 if part.toy else 128
    chunk = chunk if keep and not part.toy else part.scaled(chunk, chunk // 16)
    optimizer = optim.build(Optimizer(learning_rate=1e-6, clip=2.0, weight_decay=0.0), 1000)
    rng = np.random.default_rng(0)
    question_lengths = formulas.draw_lengths(formulas.QUESTION_TOKENS, b, 32)
    questions = random_tokens(mesh, question_lengths, 32, encoder.backbone.vocab_size)
    rows = rng.choice(n, (b, c), replace=False).astype(np.int32)
    params = random_params(abstract_params(encoder), mesh)
    contents = put_rows(mesh, np.arange(n, dtype=np.int32), (n,), np.int32)
    known = np.full((b, 1), NO_PASSAGE, np.int32)
    batch = ContrastiveBatch(
        questions.tokens, questions.lengths, *(put_rows(mesh, x, x.shape, np.int32) for x in (rows, known)), None
    )
    # The first step donates what it is given.
    state = jax.tree.map(jnp.copy, sharding.put(TrainState.create(params, optimizer), mesh))
    step, seconds = None, 0.0
    how = f"chunk {chunk}, activations kept" if keep else f"chunk {chunk}"
    of_text = {
        "real lengths": formulas.draw_lengths(formulas.PASSAGE_TOKENS, n, width),
        f"all of {width} tokens": np.full(n, width, np.int32),
    }
    program = _contrastive_program(encoder, of_text["real lengths"], chunk, _WITHOUT_LIMIT if keep else 0)
    for place, (name, lengths) in enumerate(of_text.items()):
        case = f"contrastive step, {name}, {how}"
        passages = random_corpus(mesh, lengths, width, encoder.backbone.vocab_size, room=True)
        arguments = state, None, passages, contents, batch
        if step is None:
            call, seconds = part.compiled(case, contrastive.make_step(program, optimizer, mesh), *arguments)
            step = _Stepped(call, (state, None), passages, contents, batch)
        step.others = passages, contents, batch
        read = lengths[rows]
        flops = 3 * sum(formulas.bert_flops(encoder.backbone, x) for x in (question_lengths, read.reshape(-1)))

        def peer(passages: Any = passages, read: np.ndarray = read) -> Callable[[], float]:
            chosen = np.asarray(passages.take(jnp.asarray(rows.reshape(-1))).tokens)
            asked = np.asarray(questions.tokens), question_lengths
            return part.torch.contrastive(encoder.backbone, params, asked, (chosen, read.reshape(-1)))

        part.compare(
            case,
            step,
            peer if part.torch else None,
            share=1 / (2 - place),
            flops=flops,
            rate=("questions/s", b),
            compile=seconds,
            shape=f"2 x {words_of(encoder.backbone)}, {b} questions x {c} passages, dropout {encoder.backbone.hidden_dropout_prob:g}, {how}",
        )


def _contrastive_program(
    encoder: DualEncoderConfig, passages: np.ndarray, chunk: int, activation_bytes: int
) -> ContrastiveProgram:
    """As configs/dpr_nq.py has it."""
    return ContrastiveProgram(
        **{
            **_fields(_index_program(encoder, len(passages), passages)),
            "chunk": chunk,
            "activation_bytes": activation_bytes,
        },
        positives=1,
        negatives=Negatives(mask_known_positives=False, mask_duplicates=False),
        sizes=(encoder.embedding_size,),
    )


def _fields(program: IndexProgram) -> dict[str, Any]:
    return {field.name: getattr(program, field.name) for field in dataclasses.fields(program)}


def art_sizes(part: Part, t5: T5Config, limit: float) -> ArtSizes:
    """The sizes of ART's step for a device with `limit` bytes of memory."""
    encoder = encoder_of(part, BERT_BASE, dropout=0.1)
    t5, prompt = (TOY_T5, TOY_PROMPT) if part.toy else (t5, PROMPT)
    b, k = (4, 4) if part.toy else (64, 32)
    width, scorer_width = (32, 32) if part.toy else (WIDTH, 496)
    # Of a passage: an embedding of bfloat16, two rows of token ids, and what goes with them.
    ids = np.mean(formulas.PASSAGE_TOKENS) + np.mean(formulas.T5_PASSAGE_TOKENS)
    row_bytes = 2 * encoder.embedding_size + 2 * int(ids) + 20
    n = part.scaled(_rows_that_fit(row_bytes, 0.5, limit), 1024)
    return ArtSizes(encoder, t5, prompt, b, k, width, scorer_width, n, padded_rows(n, mesh_of_one()))


def art_peer(part: Part, t5: T5Config, teacher_chunk: int) -> None:
    """The same as `art_step` in plain PyTorch, in a process that has the card for itself."""
    if part.torch is None:
        raise ValueError("PyTorch does not run here")
    from on_gpu import art_peer

    art_peer.measure(part, art_sizes(part, t5, art_peer.device_bytes()), part.scaled(teacher_chunk, 4))


def art_step(part: Part, t5: T5Config, teacher_chunk: int) -> None:
    """ART's step: 64 questions, the first 32 passages of the index for each, a frozen T5."""
    sizes = art_sizes(part, t5, _device_bytes())
    mesh, encoder, t5, prompt = mesh_of_one(), sizes.encoder, sizes.t5, sizes.prompt
    b, k, n, rows = sizes.b, sizes.k, sizes.n, sizes.rows
    chunk = part.scaled(teacher_chunk, 4)
    part.say(f"{n:,} passages; teacher's chunk {chunk}")
    drawn = sizes.passage_lengths, sizes.scorer_lengths
    passages = random_corpus(mesh, drawn[0], sizes.width, encoder.backbone.vocab_size)
    scorer_passages = random_corpus(mesh, drawn[1], sizes.scorer_width, t5.vocab_size)
    question_lengths, target_lengths = sizes.question_lengths, sizes.target_lengths
    questions = random_tokens(mesh, question_lengths, 32, encoder.backbone.vocab_size)
    targets = random_tokens(mesh, target_lengths, 40, t5.vocab_size)
    numbers = jax.device_put(np.arange(b, dtype=np.int32), questions.lengths.sharding)
    batch = art.QuestionBatch(questions.tokens, questions.lengths, targets.tokens, targets.lengths, numbers)
    scorer = random_params(define(lambda rngs: T5Model(t5, rngs=rngs))[1], mesh, jnp.bfloat16)
    optimizer = optim.build(Optimizer(learning_rate=1e-6), 1000)
    state = sharding.put(TrainState.create(random_params(abstract_params(encoder), mesh), optimizer), mesh)
    index = CorpusState(random_rows(mesh, rows, encoder.embedding_size), jnp.zeros(rows, jnp.int32))
    index = jax.device_put(index, passages.lengths.sharding)
    teacher = T5Teacher(t5, prompt)
    widths = TeacherWidths.of_lengths(teacher, drawn[1], target_lengths, sizes.scorer_width, 40)
    program = art.ArtProgram(
        **_fields(_index_program(encoder, n, drawn[0])),
        # Without a table: every pair is asked for in every step.
        teaching=Teaching(teacher=teacher, widths=widths, dtype="bfloat16", chunk=chunk, replacement="unused"),
        top_k=k,
        temperature=math.sqrt(encoder.embedding_size),
        art=Art(),
    )
    given = state, index, None, passages, scorer_passages, scorer, batch
    call, seconds = part.compiled(sizes.case, art.make_step(program, optimizer, mesh), *given)
    step = _Stepped(call, (state, index, None), passages, scorer_passages, scorer, batch)
    # Random rows are found, so that their lengths are the corpus's.
    pairs = b * k
    read = drawn[0][:pairs], drawn[1][:pairs] + prompt.size
    scored = formulas.t5_flops(t5, read[1], np.repeat(target_lengths, k))
    learnt = 3 * formulas.bert_flops(encoder.backbone, read[0]) + 4 * formulas.bert_flops(
        encoder.backbone, question_lengths
    )
    part.compare(
        sizes.case,
        step,
        None,
        flops=scored + learnt + 2.0 * b * n * encoder.embedding_size,
        rate=("questions/s", b),
        compile=seconds,
        shape=f"2 x {words_of(encoder.backbone)}, {b} questions x {k} of {n} passages, teacher's chunk {chunk}",
    )


def mlm_step(part: Part, chunk: int) -> None:
    """Masked language modelling, as DDR's domain modules learn."""
    mesh = mesh_of_one()
    bert = encoder_of(part, BERT_BASE, dropout=0.1).backbone
    b, width = (8, 32) if part.toy else (1024, 104)
    chunk = part.scaled(chunk, 4)
    lengths = formulas.draw_lengths(formulas.PASSAGE_TOKENS, b, width)
    tokens = np.asarray(random_tokens(mesh, lengths, width, bert.vocab_size).tokens)
    drawn = mask(
        np.random.default_rng(0),
        tokens,
        lengths,
        rate=0.15,
        mask_id=4,
        special=np.arange(5),
        vocab_size=bert.vocab_size,
    )
    batch = jax.tree.map(lambda x: put_rows(mesh, x, x.shape, x.dtype), drawn)
    optimizer = optim.build(Optimizer(learning_rate=1e-6, weight_decay=0.0), 1000)
    params = random_params(define(lambda rngs: MaskedLm(bert, dtype="bfloat16", rngs=rngs))[1], mesh)
    weights = jax.device_get(params["bert"])
    state = sharding.put(TrainState.create(params, optimizer), mesh)
    step = make_token_step(masked_lm_loss(bert, "bfloat16"), optimizer, mesh, chunk=chunk, dropout=True)
    call, seconds = part.compiled("MLM step", step, state, batch)
    part.compare(
        "MLM step",
        _Stepped(call, (state,), batch),
        (lambda: part.torch.mlm(bert, weights, drawn, chunk)) if part.torch else None,
        flops=3 * formulas.mlm_flops(bert, lengths, int(drawn.weights.sum())),
        rate=("tokens/s", int(lengths.sum())),
        compile=seconds,
        shape=f"{words_of(bert)}, {b} rows of {width} tokens, chunk {chunk}, dropout {bert.hidden_dropout_prob:g}",
    )
