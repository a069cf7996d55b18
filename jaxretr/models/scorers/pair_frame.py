"""Rows of token ids for pairs of a question and a passage, as cross-encoders and causal language models read them."""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxretr.models.backbones.packed_rows import are_packed
from jaxretr.models.scorers.splicing import splice

Order = Literal["question_first", "passage_first"]


@dataclass(frozen=True)
class PairFrame:
    """The fixed ids around a question and a passage, and the rule for cutting a row that would be too long."""

    before: tuple[int, ...]
    """Ids before the first text: [CLS], or the beginning of an instruction."""
    between: tuple[int, ...]
    """Ids between the texts: [SEP], or the instruction's middle."""
    after: tuple[int, ...]
    """Ids after the second text: [SEP], or the instruction's end."""
    max_length: int
    """Largest number of ids of a row, fixed ones included."""
    order: Order = "question_first"
    cut: Literal["longest", "passage"] = "longest"
    """Text that is cut. longest: the longer of the two, and both to equal lengths where that is not enough (tokenizers'
    "longest_first"); passage: the passage alone, and the question only once nothing is left of it."""
    tells_apart: bool = True
    """Whether the tokenizer gives the second text another token type. If not, rows have no second text."""

    @property
    def fixed(self) -> int:
        """Number of ids of a row that are neither the question's nor the passage's."""
        return len(self.before) + len(self.between) + len(self.after)

    @property
    def room(self) -> int:
        """Number of ids that are left to question and passage together."""
        return self.max_length - self.fixed

    def fit(self, questions: Any, passages: Any) -> tuple[Any, Any]:
        """Return how many ids of questions and passages fit, int32 [n] and [n], by their lengths (numpy's or JAX's)."""
        xp: Any = np if isinstance(questions, np.ndarray) else jnp
        if self.cut == "passage":
            questions = xp.minimum(questions, self.room)
            return questions, xp.minimum(passages, self.room - questions)
        # Cut the longer text; both to half of the room where that is not enough, with an odd id for the longer one.
        shorter, longer = xp.minimum(questions, passages), xp.maximum(questions, passages)
        half = self.room // 2
        both = (shorter > self.room) | (shorter + xp.maximum(shorter, self.room - shorter) > self.room)
        short = xp.where(both, half, shorter)
        long = xp.minimum(longer, xp.where(both, half + self.room % 2, self.room - shorter))
        swapped = questions > passages
        return xp.where(swapped, long, short), xp.where(swapped, short, long)

    def rows(self, questions: list[list[int]], passages: list[list[int]]) -> tuple[list[list[int]], list[int], int]:
        """Build rows on the host.

        Args:
          questions: n lists of ids without special ones.
          passages: n lists of ids without special ones.

        Returns:
          n rows; the start of the second text in each, which is the row's end if it is not told apart; and the number
          of rows that were cut.
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
          passages: token ids without special ones, [n, P], padded on the right.
          passage_lengths: int32 [n].

        Returns:
          (tokens int32 [n, L], lengths int32 [n], start of the second text int32 [n]).
        """
        q_fit, p_fit = self.fit(question_lengths, passage_lengths)
        first, second = (questions, q_fit), (passages, p_fit)
        if self.order == "passage_first":
            first, second = second, first
        spliced = splice((self.before, first, self.between, second, self.after), self.max_length)
        seconds = jnp.asarray(spliced.starts[3], jnp.int32) if self.tells_apart else spliced.lengths
        return spliced.tokens, spliced.lengths, seconds


def marked(tokens: jax.Array, lengths: jax.Array, seconds: jax.Array, vocabulary: int) -> jax.Array:
    """Return rows that mark the start of their second text: from there on ids are offset by the vocabulary's size.

    For functions that take only rows of ids and their lengths: chunks of a step, batches of an encoding. `unmarked`
      reads them.
    """
    place = jnp.arange(tokens.shape[1])
    second = (place >= seconds[:, None]) & (place < lengths[:, None])
    return jnp.where(second, tokens + vocabulary, tokens)


def unmarked(tokens: jax.Array, lengths: jax.Array, vocabulary: int) -> tuple[jax.Array, jax.Array]:
    """Return the ids of marked rows, [n, L], and the starts of their second texts, int32 [n].

    Of packed rows, which hold several pairs, it is whether a token is of a second text, bool [n, L].
    """
    second = tokens >= vocabulary
    return tokens % vocabulary, second if are_packed(lengths) else lengths - second.sum(axis=1)


def frame_of_pairs(tokenizer: Any, max_length: int) -> PairFrame:
    """Return the frame that a tokenizer puts around two texts: [CLS] question [SEP] passage [SEP] for BERT's kin."""
    pair = tokenizer("a", "b")
    whole: list[int] = pair["input_ids"]
    first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("a", "b"))
    start = next(at for at in range(len(whole)) if whole[at : at + len(first)] == first)
    end = start + len(first)
    again = next(at for at in range(end, len(whole)) if whole[at : at + len(second)] == second)
    before, between, after = whole[:start], whole[end:again], whole[again + len(second) :]
    types = pair.get("token_type_ids") or ()
    return PairFrame(tuple(before), tuple(between), tuple(after), max_length, tells_apart=any(types))
