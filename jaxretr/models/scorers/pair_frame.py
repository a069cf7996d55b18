"""How a question and a passage become one row of token ids: for cross-encoders and causal language models."""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxretr.models.scorers.splicing import splice

Order = Literal["question_first", "passage_first"]


@dataclass(frozen=True)
class PairFrame:
    """The fixed ids around a question and a passage, and what is cut where the row would be too long."""

    before: tuple[int, ...]
    """[CLS], or the beginning of an instruction."""
    between: tuple[int, ...]
    """[SEP], or the instruction's middle."""
    after: tuple[int, ...]
    """[SEP], or the instruction's end."""
    max_length: int
    """Ids of a row, these included."""
    order: Order = "question_first"
    cut: Literal["longest", "passage"] = "longest"
    """longest: the longer of the two, and both to equal lengths where that is not enough (tokenizers' "longest_first");
    passage: the passage alone, and the question only once nothing is left of it."""
    tells_apart: bool = True
    """Whether the tokenizer gives the second text another token type. Where it does not, rows have no second text."""

    @property
    def fixed(self) -> int:
        """Ids of a row that are neither the question's nor the passage's."""
        return len(self.before) + len(self.between) + len(self.after)

    @property
    def room(self) -> int:
        """Ids that are left to question and passage together."""
        return self.max_length - self.fixed

    def fit(self, questions: Any, passages: Any) -> tuple[Any, Any]:
        """How many ids of each question and passage fit: int32 [n] and [n] from their lengths, numpy's or JAX's."""
        xp: Any = np if isinstance(questions, np.ndarray) else jnp
        if self.cut == "passage":
            questions = xp.minimum(questions, self.room)
            return questions, xp.minimum(passages, self.room - questions)
        shorter, longer = xp.minimum(questions, passages), xp.maximum(questions, passages)
        half = self.room // 2
        both = (shorter > self.room) | (shorter + xp.maximum(shorter, self.room - shorter) > self.room)
        short = xp.where(both, half, shorter)
        long = xp.minimum(longer, xp.where(both, half + self.room % 2, self.room - shorter))
        swapped = questions > passages
        return xp.where(swapped, long, short), xp.where(swapped, short, long)

    def rows(self, questions: list[list[int]], passages: list[list[int]]) -> tuple[list[list[int]], list[int], int]:
        """Puts rows together on the host.

        Args:
          questions: n lists of ids without special ones.
          passages: n such lists.

        Returns:
          n rows; where the second text begins in each, the row's end where it is not told apart; and how many rows were
          cut.
        """
        q_lengths, p_lengths = (np.array([len(ids) for ids in rows], np.int32) for rows in (questions, passages))
        q_fit, p_fit = self.fit(q_lengths, p_lengths)
        rows, seconds = [], []
        for question, passage, q_count, p_count in zip(
            questions, passages, q_fit.tolist(), p_fit.tolist(), strict=True
        ):
            first, second = question[:q_count], passage[:p_count]
            if self.order == "passage_first":
                first, second = second, first
            rows.append([*self.before, *first, *self.between, *second, *self.after])
            begin = len(self.before) + len(first) + len(self.between)
            seconds.append(begin if self.tells_apart else len(rows[-1]))
        return rows, seconds, int(((q_fit < q_lengths) | (p_fit < p_lengths)).sum())

    def splice(
        self, questions: jax.Array, question_lengths: jax.Array, passages: jax.Array, passage_lengths: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """`rows`, inside a compiled program.

        Args:
          questions: token ids without special ones, [n, Q], padded on the right.
          question_lengths: int32 [n].
          passages: likewise, [n, P].
          passage_lengths: int32 [n].

        Returns:
          (tokens int32 [n, L], lengths int32 [n], where the second text begins int32 [n]).
        """
        q_fit, p_fit = self.fit(question_lengths, passage_lengths)
        first, second = (questions, q_fit), (passages, p_fit)
        if self.order == "passage_first":
            first, second = second, first
        spliced = splice((self.before, first, self.between, second, self.after), self.max_length)
        seconds = jnp.asarray(spliced.starts[3], jnp.int32) if self.tells_apart else spliced.lengths
        return spliced.tokens, spliced.lengths, seconds


def marked(tokens: jax.Array, lengths: jax.Array, seconds: jax.Array, vocabulary: int) -> jax.Array:
    """Rows that tell by themselves where their second text begins: from there on ids are offset by the vocabulary's size.

    For what carries rows of ids and their lengths alone: chunks of a step, batches of an encoding. `unmarked` reads them.
    """
    place = jnp.arange(tokens.shape[1])
    second = (place >= seconds[:, None]) & (place < lengths[:, None])
    return jnp.where(second, tokens + vocabulary, tokens)


def unmarked(tokens: jax.Array, lengths: jax.Array, vocabulary: int) -> tuple[jax.Array, jax.Array]:
    """The ids of marked rows, [n, L], and where their second texts begin, int32 [n]."""
    return tokens % vocabulary, lengths - (tokens >= vocabulary).sum(axis=1)


def frame_of_pairs(tokenizer: Any, max_length: int) -> PairFrame:
    """What a tokenizer puts around two texts: [CLS] question [SEP] passage [SEP] for BERT's kin."""
    pair = tokenizer("a", "b")
    whole: list[int] = pair["input_ids"]
    first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("a", "b"))
    start = next(at for at in range(len(whole)) if whole[at : at + len(first)] == first)
    end = start + len(first)
    again = next(at for at in range(end, len(whole)) if whole[at : at + len(second)] == second)
    before, between, after = whole[:start], whole[end:again], whole[again + len(second) :]
    types = pair.get("token_type_ids") or ()
    return PairFrame(tuple(before), tuple(between), tuple(after), max_length, tells_apart=any(types))
