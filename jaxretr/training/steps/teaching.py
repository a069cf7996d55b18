"""The teacher's scores of a step's pairs: read from the table where they are known, computed in blocks otherwise.

If reading the code, start at `teach`. There is one loop for each width that rows are padded to, and each runs as many
blocks as it has rows: a step whose pairs are all known runs none. Devices take different numbers of blocks; no device
waits for another before the end, when the scores are added up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxretr.config import Replacement
from jaxretr.models.backbones.layers import Params
from jaxretr.models.scorers.teachers import PairTeacher, Teacher
from jaxretr.runtime.parallel.mesh import DATA
from jaxretr.training.state import CorpusTokens, TokenRows
from jaxretr.training.steps.blocks import num_blocks, while_counted
from jaxretr.training.steps.dealing import Share, deal, first_of_equals, share
from jaxretr.training.steps.live_index import fetch_rows
from jaxretr.training.steps.score_table import TableState, look_up, remember
from jaxretr.training.steps.widths import TeacherWidths

# Number of blocks that a device's rows make, about, so that the last one's empty places are few.
_BLOCKS = 32
# Tokens of a block on CPUs, about: attention over long rows is slow where its scores do not fit into a core's cache.
_TOKENS_ON_CPUS = 1536


@dataclass(frozen=True, kw_only=True)
class Teaching:
    """Constants of a teacher's compiled program."""

    teacher: Teacher
    widths: TeacherWidths
    dtype: Any
    """Type of the matmuls' operands."""
    chunk: int
    """Rows of full length that the teacher reads at once; of shorter rows, as many as have the same tokens."""
    replacement: Replacement
    """Rule by which a full row of the table loses a score."""
    on_cpus: bool = False
    """Whether the program runs on CPUs, which want smaller blocks of longer rows."""


class Questions(NamedTuple):
    """A batch's questions in the form that the teacher reads; each device has its own b."""

    numbers: jax.Array
    """Numbers of the questions in the training data, int32 [b]."""
    targets: jax.Array
    """Token ids by the teacher's template, integers [b, T]."""
    lengths: jax.Array
    """Lengths of the targets in tokens, int32 [b]."""


class Work(NamedTuple):
    """Amount of work that a step asked of the teacher; float32 scalars, summed over the devices and the same on all."""

    blocks: jax.Array
    """Number of blocks of rows that its encoder read."""
    row_tokens: jax.Array
    """Number of tokens in these blocks, padding and empty places included."""
    question_tokens: jax.Array
    """Number of tokens of questions that a T5's decoder read, padding and empty places included."""


class TeacherAnswer(NamedTuple):
    """The teacher's answer, the same on all devices except for the table."""

    scores: jax.Array
    """Scores of all pairs, float32 [B, K]."""
    table: TableState | None
    """The table with the new scores; None without one."""
    hits: jax.Array
    """Share of the pairs that the table knew, float32 scalar."""
    work: Work


@jax.named_scope("teacher")
def teach(
    teaching: Teaching,
    params: Params,
    passages: CorpusTokens,
    rows: jax.Array,
    questions: Questions,
    table: TableState | None,
) -> TeacherAnswer:
    """Score every question of the batch with its passages; call it inside the shard_map.

    A pair that stands in the batch several times is asked for once, and not at all if the table has it.

    Args:
      passages: this device's part of the corpus in the teacher's tokens.
      rows: the passages of the whole batch's questions, int32 [B, K], the same everywhere.
      questions: this device's own questions.
      table: this device's part of the table, or None.
    """
    numbers, targets, lengths = (lax.all_gather(x, DATA, tiled=True, to="invarying") for x in questions)
    known, kept = jnp.zeros(rows.shape, bool), jnp.zeros(rows.shape, jnp.float32)
    if table is not None:
        known, kept = look_up(table, numbers, rows)
    first = first_of_equals(numbers, rows)
    # Pairs without a score, the first of equal ones, bool [B K]; the others read that one's.
    is_new = (first == jnp.arange(rows.size)) & ~known.reshape(-1)
    fresh, work = _score_new(teaching, params, passages, rows, is_new, targets, lengths)
    scores = lax.stop_gradient(jnp.where(known, kept, fresh[first].reshape(rows.shape)))
    if table is not None:
        table = remember(table, numbers, rows, scores, known, teaching.replacement)
    return TeacherAnswer(scores, table, known.astype(jnp.float32).mean(), work)


def _score_new(
    teaching: Teaching,
    params: Params,
    passages: CorpusTokens,
    rows: jax.Array,
    is_new: jax.Array,
    targets: jax.Array,
    lengths: jax.Array,
) -> tuple[jax.Array, Work]:
    """Return the scores of the new pairs, float32 [B * K], 0 for the others; run by all devices."""
    teacher, widths, devices = teaching.teacher, teaching.widths, lax.axis_size(DATA)
    k, count = rows.shape[1], rows.size
    shared = not isinstance(teacher, PairTeacher)
    units = min(count, passages.lengths.size * devices) if shared else count
    # Tokens of each pair's passage and question, int32 [B * K].
    of_passages = lax.all_gather(fetch_rows(passages.lengths, rows), DATA, tiled=True, to="invarying").reshape(-1)
    of_questions = jnp.repeat(lengths, k)
    dealt = deal(
        rows.reshape(-1),
        is_new,
        teacher.row_lengths(of_passages, of_questions),
        widths.rows,
        devices=devices,
        slots=num_blocks(units, devices),
        shared=shared,
    )
    # The tokens that each device will read are sent to it together, before any loop.
    found: TokenRows = jax.tree.map(lambda x: x[0], fetch_rows(passages, dealt.rows))
    # Where each unit is a pair, its question's width does not matter: the pairs stand in the order of their units.
    own = share(dealt, lax.axis_index(DATA), of_questions, widths.questions if shared else widths.questions[-1:])
    row_lengths = dealt.row_lengths[lax.axis_index(DATA)]
    ask = _ask_in_pairs if isinstance(teacher, PairTeacher) else _ask_by_passage
    block = ask(teaching, params, found, own, dealt.slot, Questions(jnp.arange(count) // k, targets, lengths))

    # Scores and the counts of `Work` in one array, [B * K + counts], which one reduction sums over the devices.
    done = lax.pcast(jnp.zeros(count + len(Work._fields), jnp.float32), DATA, to="varying")
    taken = lax.pcast(jnp.zeros((), jnp.int32), DATA, to="varying")
    slots = len(row_lengths)
    shorter = (0, *widths.rows[:-1])
    for width, below in zip(reversed(widths.rows), reversed(shorter), strict=True):
        size = _block_rows(slots, width, teaching)

        # A block that rows of its own width do not fill takes shorter rows as well, which need a place anyway.
        def is_left(carry: tuple[jax.Array, jax.Array], below: int = below) -> jax.Array:
            taken, _ = carry
            return (taken < slots) & (row_lengths[jnp.minimum(taken, slots - 1)] > below)

        def next_block(
            carry: tuple[jax.Array, jax.Array], width: int = width, size: int = size
        ) -> tuple[jax.Array, jax.Array]:
            taken, done = carry
            done = _counted(block(taken, done, width, size), count, blocks=1, row_tokens=size * width)
            return taken + size, done

        # A plan counts every row as one of average length.
        trips = num_blocks(slots, size) if width == widths.average[0] else 0
        with jax.named_scope(f"width_{width}"):
            taken, done = while_counted(is_left, next_block, (taken, done), trips)
    done = lax.psum(done, DATA)
    return done[:count], Work(*done[count:])


def _block_rows(slots: int, width: int, teaching: Teaching) -> int:
    """Return the number of rows in a block of this width."""
    most = teaching.chunk * teaching.widths.rows[-1] // width
    wanted = _TOKENS_ON_CPUS // width if teaching.on_cpus else -(-num_blocks(slots, _BLOCKS) // 8) * 8
    return min(max(1, min(most, wanted)), slots)


def _counted(done: jax.Array, count: int, **work: int) -> jax.Array:
    """Add to the numbers of `Work`, which follow the scores."""
    added = [work.get(name, 0) for name in Work._fields]
    return done.at[count:].add(jnp.array(added, jnp.float32))


Block = Callable[[jax.Array, jax.Array, int, int], jax.Array]
"""Function (the first unit, the results so far, width, units) -> the results with the block's scores."""


def _ask_by_passage(
    teaching: Teaching, params: Params, found: TokenRows, own: Share, slots: jax.Array, pairs: Questions
) -> Block:
    """Return a function for blocks of passages, each read once, whose questions then form separate blocks.

    Args:
      found: the passages of this device's units, tokens [m, L] and lengths [m].
      slots: the unit of each pair, int32 [P].
      pairs: the question of each pair [P], and the questions' tokens [B, T] and lengths [B].
    """
    teacher: Any = teaching.teacher
    widths = tuple(reversed(teaching.widths.questions))
    of_pair, targets, lengths = pairs
    count, units = len(of_pair), len(found.lengths)

    def block(taken: jax.Array, done: jax.Array, width: int, size: int) -> jax.Array:
        # Units of the block, [size], and the passages' encodings.
        unit = jnp.minimum(taken + jnp.arange(size), units - 1)
        read = teacher.read(params, found.tokens[unit], found.lengths[unit], width=width, dtype=teaching.dtype)
        begins = own.starts[:, taken]
        until = jnp.cumsum(own.starts[:, jnp.minimum(taken + size, units)] - begins)  # [W], of the block's pairs
        # The block's pairs of wider questions, which come before those of each width, [W].
        before = jnp.concatenate([jnp.zeros_like(until[:1]), until[:-1]])
        several = min(max(4, -(-size // 4 // 4) * 4), count)

        def of_questions(carry: tuple[jax.Array, jax.Array], question_width: int) -> tuple[jax.Array, jax.Array]:
            first, done = carry
            # The next pairs of the block, [several], with their class of question widths and their questions.
            number = first + jnp.arange(several)
            part = jnp.minimum((number[:, None] >= until).sum(axis=1), len(widths) - 1)
            pair = own.pairs[jnp.clip(begins[part] + number - before[part], 0, count - 1)]
            question = of_pair[pair]
            scores = teacher.score(
                params,
                read,
                jnp.clip(slots[pair] - taken, 0, size - 1),
                targets[question, :question_width],
                lengths[question],
                dtype=teaching.dtype,
            )
            # Pairs beyond the block's last are written out of bounds, which drops them.
            done = done.at[jnp.where(number < until[-1], pair, len(done))].set(scores, mode="drop")
            return first + several, _counted(done, count, question_tokens=several * question_width)

        first = lax.pcast(jnp.zeros((), jnp.int32), DATA, to="varying")
        # Pairs of a block if every unit had equally many: the count that a plan assumes.
        own_pairs = -(-count * size // (units * lax.axis_size(DATA)))
        for rank, question_width in enumerate(widths):
            trips = num_blocks(own_pairs, several) if question_width == teaching.widths.average[1] else 0
            first, done = while_counted(
                lambda carry, rank=rank: carry[0] < until[rank],
                lambda carry, width=question_width: of_questions(carry, width),
                (first, done),
                trips,
            )
        return done

    return block


def _ask_in_pairs(
    teaching: Teaching, params: Params, found: TokenRows, own: Share, _: jax.Array, pairs: Questions
) -> Block:
    """Return a function for blocks of pairs, each of which is a unit; arguments as those of `_ask_by_passage`."""
    teacher: Any = teaching.teacher
    of_pair, targets, lengths = pairs
    units = len(found.lengths)

    def block(taken: jax.Array, done: jax.Array, width: int, size: int) -> jax.Array:
        # Units of the block, [size], each of one pair. Places beyond the device's own pairs are dropped below.
        unit = taken + jnp.arange(size)
        inside = jnp.minimum(unit, units - 1)
        pair = own.pairs[inside]
        question = of_pair[pair]
        scores = teacher.score(
            params,
            found.tokens[inside],
            found.lengths[inside],
            targets[question],
            lengths[question],
            width=width,
            dtype=teaching.dtype,
        )
        return done.at[jnp.where(unit < own.starts[0, units], pair, len(done))].set(scores, mode="drop")

    return block
