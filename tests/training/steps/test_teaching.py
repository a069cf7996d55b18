"""Which pairs the teacher is asked for, in which blocks, and what they cost; with teachers that add up token ids.

Their scores are integers, so that every comparison is exact, and a passage or a question that is cut shows.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from tiny import compiled_quickly

from jaxretr.assets import QUICKSTART, SCORER_SMALL
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.data.tokens import load_tokenizer, scorer_passage, scorer_target
from jaxretr.models.scorers.pair_frame import PairFrame
from jaxretr.models.scorers.teachers import PairTeacher
from jaxretr.runtime.parallel.mesh import DATA
from jaxretr.training.state import CorpusTokens
from jaxretr.training.steps import dealing
from jaxretr.training.steps.score_table import EMPTY, TableState
from jaxretr.training.steps.teaching import Questions, TeacherAnswer, Teaching, teach
from jaxretr.training.steps.widths import TeacherWidths, fewest_widths

SEED = 11
N, L, Q, T = 64, 40, 24, 12
FIXED = 3
PROMPT = 16  # Of T0's tokenizer.
WIDTHS = TeacherWidths((11, 19, 27, 43), (4, 12), (27, 12))


def total(tokens: jax.Array, lengths: jax.Array) -> jax.Array:
    return jnp.where(jnp.arange(tokens.shape[1]) < lengths[:, None], tokens, 0).sum(axis=1).astype(jnp.float32)


@dataclass(frozen=True)
class Adding:
    """A score is the sum of the passage's ids and 1000 times that of the question's."""

    fixed: int = FIXED

    def row_lengths(self, passage_lengths: Any, question_lengths: Any) -> Any:
        return passage_lengths + self.fixed

    def longest_row(self, passage_width: int, question_width: int) -> int:
        return passage_width + self.fixed

    def abstract_params(self) -> Any:
        return {}

    def read(self, params: Any, passages: Any, lengths: Any, *, width: int, dtype: Any) -> jax.Array:
        return total(passages[:, : width - self.fixed], lengths)

    def score(self, params: Any, read: Any, of: Any, questions: Any, lengths: Any, *, dtype: Any) -> jax.Array:
        return read[of] + 1000 * total(questions, lengths)


class AddingPairs(PairTeacher):
    """The same, with question and passage in one row."""

    def score_rows(self, params: Any, tokens: Any, lengths: Any, seconds: Any, *, dtype: Any) -> jax.Array:
        first = total(tokens, jnp.minimum(seconds, lengths))
        return 1000 * first + total(tokens, lengths) - first


TEACHERS = {
    "by passage": (Adding(), WIDTHS),
    "in pairs": (
        AddingPairs(None, PairFrame((0,), (0,), (0,), 200)),  # pyright: ignore[reportArgumentType]
        TeacherWidths((15, 31, 55), (12,), (31, 12)),
    ),
}


@dataclass(frozen=True)
class Texts:
    """Random token ids; passages and questions have from 1 token on."""

    passages: np.ndarray
    lengths: np.ndarray
    questions: np.ndarray
    question_lengths: np.ndarray

    @staticmethod
    def draw() -> "Texts":
        rng = np.random.default_rng(SEED)
        lengths, asked = rng.integers(1, L + 1, N), rng.integers(1, T + 1, Q)
        passages = np.where(np.arange(L) < lengths[:, None], rng.integers(1, 20, (N, L)), 0)
        questions = np.where(np.arange(T) < asked[:, None], rng.integers(1, 20, (Q, T)), 0)
        return Texts(*(x.astype(np.int32) for x in (passages, lengths, questions, asked)))

    def of(self, numbers: np.ndarray) -> Questions:
        return Questions(*map(jnp.array, (numbers, self.questions[numbers], self.question_lengths[numbers])))

    def scores(self, numbers: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Pair by pair."""
        return np.array(
            [
                [float(self.passages[row].sum() + 1000 * self.questions[number].sum()) for row in found]
                for number, found in zip(numbers, rows, strict=True)
            ]
        )


SPECS: Any = P(), P(DATA), P(), P()


def asking(
    teacher: Any,
    widths: TeacherWidths,
    mesh: Mesh,
    *,
    chunk: int = 4,
    replacement: Any = "unused",
    on_cpus: bool = False,
) -> Any:
    """taught(passages, lengths, rows, questions, table) -> TeacherAnswer."""
    teaching = Teaching(
        teacher=teacher, widths=widths, dtype="float32", chunk=chunk, replacement=replacement, on_cpus=on_cpus
    )

    @jax.jit
    @partial(
        jax.shard_map,
        mesh=mesh,
        axis_names={DATA},
        in_specs=(P(DATA), P(), P(DATA), P(DATA)),
        out_specs=TeacherAnswer(*SPECS),
    )
    def taught(passages: CorpusTokens, rows: Any, questions: Questions, table: TableState | None) -> TeacherAnswer:
        return teach(teaching, {}, passages, rows, questions, table)

    return compiled_quickly(taught)


def in_rows(tokens: np.ndarray, lengths: np.ndarray, devices: int) -> CorpusTokens:
    """Padded rows [n, width] as a corpus that so many devices share, for each of which the rows are counted anew."""
    n, width = tokens.shape
    offsets = np.arange(n, dtype=np.int32) % (n // devices) * width
    return CorpusTokens(jnp.array(tokens.reshape(-1)), jnp.array(offsets), jnp.array(lengths), width)


def step(rng: np.random.Generator, b: int = 16, k: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Questions, of which the first stands in the batch twice, and their passages, of which a few are popular."""
    numbers = rng.choice(Q, b, replace=False)
    numbers[5] = numbers[0]
    popular = np.concatenate([np.full(8, 3.0), np.ones(N - 8)])
    rows = np.stack([rng.choice(N, k, replace=False, p=popular / popular.sum()) for _ in numbers])
    rows[5] = np.setdiff1d(np.arange(N), rows[0])[:k]
    rows[5, 1:3] = rows[0, 2:0:-1]  # Shared by the two; their other passages are not, as with dropout.
    return numbers.astype(np.int32), rows.astype(np.int32)


@pytest.mark.parametrize("kind", TEACHERS)
@pytest.mark.parametrize(("devices", "on_cpus"), [(1, False), (8, False), (8, True)])
def test_scores_are_those_of_each_pair(kind: str, devices: int, on_cpus: bool, mesh1: Mesh, mesh8: Mesh) -> None:
    """With known pairs among them, and without any; what was asked for once is not asked for again."""
    texts, rng = Texts.draw(), np.random.default_rng(SEED)
    teacher, widths = TEACHERS[kind]
    taught = asking(teacher, widths, mesh1 if devices == 1 else mesh8, on_cpus=on_cpus)
    corpus = in_rows(texts.passages, texts.lengths, devices)
    table = TableState(jnp.full((Q, 16), EMPTY, jnp.int32), jnp.zeros((Q, 16), jnp.float32))
    for number in range(3):
        numbers, rows = step(rng)
        questions = texts.of(numbers)
        expected = texts.scores(numbers, rows)
        before = table
        result = taught(corpus, rows, questions, table)
        np.testing.assert_array_equal(result.scores, expected)
        known = np.array(
            [[row in set(before.rows[q].tolist()) for row in of] for q, of in zip(numbers, rows, strict=True)]
        )
        np.testing.assert_allclose(result.hits, known.mean(), rtol=1e-6)
        assert (float(result.hits) > 0) == (number > 0) and float(result.work.blocks) > 0
        # All but the further passages of the question that stands twice are known now, and nothing is asked for.
        rows[5], expected[5] = rows[0], expected[0]
        again = taught(corpus, rows, questions, result.table)
        np.testing.assert_array_equal(again.scores, expected)
        assert float(again.hits) == 1 and [float(x) for x in again.work] == [0, 0, 0]
        table = result.table


def test_without_a_table_scores_are_those_of_each_pair(mesh8: Mesh) -> None:
    texts = Texts.draw()
    numbers, rows = step(np.random.default_rng(SEED))
    questions = texts.of(numbers)
    corpus = in_rows(texts.passages, texts.lengths, 8)
    result = asking(Adding(), WIDTHS, mesh8)(corpus, rows, questions, None)
    np.testing.assert_array_equal(result.scores, texts.scores(numbers, rows))
    assert result.table is None and float(result.hits) == 0


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("shared", [True, False])
def test_units_are_dealt_out_evenly_and_each_once(devices: int, shared: bool) -> None:
    rng = np.random.default_rng(SEED)
    rows = step(rng, b=16, k=6)[1]
    flat, asked = rows.reshape(-1), rng.random(rows.size) < 0.7
    lengths = rng.integers(1, L + 1, N)[flat] + FIXED
    question_lengths = np.repeat(rng.integers(1, T + 1, 16), 6)
    slots = -(-rows.size // devices)
    arrays = map(jnp.array, (flat, asked, lengths))
    dealt = dealing.deal(*arrays, widths=WIDTHS.rows, devices=devices, slots=slots, shared=shared)
    device, slot, of_rows, row_lengths = map(np.asarray, (dealt.device, dealt.slot, dealt.rows, dealt.row_lengths))
    np.testing.assert_array_equal(device == devices, ~asked)
    np.testing.assert_array_equal(of_rows[device[asked], slot[asked]], flat[asked])
    np.testing.assert_array_equal(row_lengths[device[asked], slot[asked]], lengths[asked])
    expected = len(set(flat[asked])) if shared else asked.sum()
    assert (of_rows >= 0).sum() == expected == len(set(zip(device[asked], slot[asked], strict=True)))
    width = np.searchsorted(WIDTHS.rows, row_lengths)
    for number in range(len(WIDTHS.rows)):
        counts = ((width == number) & (of_rows >= 0)).sum(axis=1)
        assert counts.max() - counts.min() <= 1
    for number in range(devices):
        own = (of_rows[number] >= 0).sum()
        assert (of_rows[number, :own] >= 0).all() and (np.diff(width[number, :own]) <= 0).all()
        share = dealing.share(dealt, jnp.int32(number), jnp.array(question_lengths), WIDTHS.questions)
        pairs, starts = np.asarray(share.pairs), np.asarray(share.starts)
        for rank, (above, upto) in enumerate(((4, 12), (0, 4))):
            for unit in range(slots):
                mine = (device == number) & (slot == unit) & (question_lengths > above) & (question_lengths <= upto)
                assert sorted(pairs[starts[rank, unit] : starts[rank, unit + 1]]) == np.flatnonzero(mine).tolist()


def test_equal_pairs_have_one_first() -> None:
    numbers, rows = step(np.random.default_rng(SEED))
    first = np.asarray(dealing.first_of_equals(jnp.array(numbers), jnp.array(rows)))
    pairs = [(q, row) for q, of in zip(numbers, rows, strict=True) for row in of]
    assert first.tolist() == [pairs.index(pair) for pair in pairs]
    assert (first != np.arange(len(pairs))).sum() == 2


def test_the_widths_have_the_least_padding_of_all_that_are_as_many() -> None:
    """Against every choice of multiples of 8."""
    rng = np.random.default_rng(SEED)
    lengths = np.minimum(rng.gamma(4.0, 8.0, 300).astype(int) + 1, 60)

    def padded(widths: tuple[int, ...]) -> int:
        return int(np.array(widths)[np.searchsorted(widths, lengths)].sum())

    found = fewest_widths(lengths, 60, padding=0.0, most=3, multiple=8)
    every = [(a, b, 60) for a in range(8, 60, 8) for b in range(a + 8, 60, 8)]
    assert padded(found) == min(map(padded, every)) and found[-1] == 60
    for padding in (1.0, 0.3, 0.15):
        few = fewest_widths(lengths, 60, padding=padding, most=8, multiple=8)
        assert padded(few) <= (1 + padding) * lengths.sum()
        fewer = fewest_widths(lengths, 60, padding=0.0, most=len(few) - 1, multiple=8) if len(few) > 1 else ()
        assert not fewer or padded(fewer) > (1 + padding) * lengths.sum()


@lru_cache
def real_lengths() -> tuple[np.ndarray, np.ndarray]:
    """Of the embedded passages and questions, in the small scorer's tokens."""
    tokenizer, corpus = load_tokenizer(SCORER_SMALL), read_corpus(QUICKSTART)
    passages = scorer_passage(tokenizer, list(corpus.titles), list(corpus.texts), 490).ids
    questions = scorer_target(tokenizer, [question.text for question in read_questions(QUICKSTART)], 128).ids
    return np.array([len(row) for row in passages], np.int32), np.array([len(row) for row in questions], np.int32)


@pytest.mark.parametrize("devices", [1, 8])
def test_padding_costs_a_quarter_at_most(devices: int, mesh1: Mesh, mesh8: Mesh) -> None:
    """Of T0-3B's matrix products, in a step of 64 questions with 32 passages each: padded tokens against real ones.

    Real is each distinct passage once, and each pair's question once.
    """
    lengths, question_lengths = real_lengths()
    teacher, rng = Adding(PROMPT), np.random.default_rng(SEED)
    columns = -(-lengths.max() // 8) * 8, -(-question_lengths.max() // 8) * 8
    widths = TeacherWidths.of_lengths(teacher, lengths, question_lengths, *columns)
    n = len(lengths) // 8 * 8
    numbers = rng.choice(len(question_lengths), 64, replace=False).astype(np.int32)
    # Some passages are found more often than others: about 1.3 questions a passage.
    near = rng.integers(0, n, (64, 1)) + rng.integers(-150, 150, (64, 32))
    rows = (near % n).astype(np.int32)
    pairs = len(set(zip(np.repeat(numbers, 32), rows.reshape(-1), strict=True)))
    corpus = in_rows(np.ones((n, columns[0]), np.int32), lengths[:n], devices)
    questions = Questions(
        jnp.array(numbers), jnp.ones((64, columns[1]), jnp.int32), jnp.array(question_lengths[numbers])
    )
    taught = asking(teacher, widths, mesh1 if devices == 1 else mesh8, chunk=16)
    work = taught(corpus, rows, questions, None).work
    d, inner, ff, layers, vocabulary = 2048, 2048, 5120, 24, 32128
    of_row = 2 * layers * (4 * d * inner + 3 * d * ff + 2 * d * inner)  # The last: the decoder's keys and values.
    of_question = 2 * layers * (6 * d * inner + 3 * d * ff) + 2 * d * vocabulary
    distinct = np.unique(rows)
    same = {(int(q), int(row)): question_lengths[q] for q, of in zip(numbers, rows, strict=True) for row in of}
    real = of_row * float((lengths[distinct] + PROMPT).sum()) + of_question * float(sum(same.values()))
    padded = of_row * float(work.row_tokens) + of_question * float(work.question_tokens)
    print(f"{widths}: {padded / real:.3f} with {pairs / len(distinct):.2f} questions a passage")
    assert len(widths.rows) <= 8 and len(widths.questions) <= 2
    assert 1 < padded / real <= 1.25
