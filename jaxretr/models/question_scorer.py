"""The question scorer for users: texts in, scores out. scorers/t5_scorer.py has the mathematics."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxretr.config import Dtype
from jaxretr.data.tokens import Template, load_tokenizer, scorer_passage, scorer_target, vocabulary_size
from jaxretr.models.backbones.adapter_layers import count
from jaxretr.models.backbones.layers import Params
from jaxretr.models.backbones.t5 import T5Config
from jaxretr.models.given_texts import Passages, given_pairs, given_passages, given_texts
from jaxretr.models.hub import t5_params
from jaxretr.models.hub.dual_encoder_folder import model_folder
from jaxretr.models.hub.hf_files import resolve
from jaxretr.models.hub.name_table import Place
from jaxretr.models.pair_scorer import scorer_digest
from jaxretr.models.scorers.t5_scorer import Prompt, score_pairs
from jaxretr.models.scorers.t5_shapes import T5Shapes
from jaxretr.models.scorers.teachers import T5Teacher
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel.compilation_cache import keep_programs, keep_short_programs
from jaxretr.runtime.parallel.programs import device_jit


class QuestionScorer:
    """Scores passages by how well they explain a question, with a T5.

    Args:
      config: shape of the T5.
      params: parameters of the T5.
      tokenizer: tokenizer of the T5.
      max_length: largest number of tokens of the encoder's input, instruction included; only the passage is cut.
      max_question_length: largest number of tokens of "Question: {q}</s>".
      dtype: type of the matmuls' operands.

    Attributes:
      source: path or name that it was loaded from; None if it was not loaded.
      teacher: constants of the compiled programs.
      passage_length: number of tokens that the instruction leaves to a passage.
      question_length: largest number of ids of a question in a row of its own.
    """

    passage_template: ClassVar[Template] = Template.SCORER_PASSAGE
    question_template: ClassVar[Template] = Template.SCORER_TARGET
    passage_form: ClassVar[str] = ""
    question_form: ClassVar[str] = ""

    def __init__(
        self,
        config: T5Config,
        params: Params,
        tokenizer: Any,
        *,
        max_length: int = 512,
        max_question_length: int = 128,
        dtype: Dtype = "float32",
    ):
        self.config, self.params, self.tokenizer = config, params, tokenizer
        self.prompt = Prompt.of(tokenizer)
        self.max_length, self.max_question_length, self.dtype = max_length, max_question_length, dtype
        self.passage_length, self.question_length = passage_length(self.prompt, max_length), max_question_length
        self.teacher = T5Teacher(config, self.prompt)
        self.source: str | None = None

    def __repr__(self) -> str:
        source = "" if self.source is None else f"{self.source!r}, "
        config = self.config
        return (
            f"QuestionScorer({source}T5 of {config.num_layers} + {config.num_decoder_layers} x {config.d_model}, "
            f"{count(self.params):,} parameters, {self.dtype})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and copy: the parameters as numpy arrays."""
        return {**self.__dict__, "params": jax.device_get(self.params)}

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str | Path,
        *,
        max_length: int = 512,
        max_question_length: int = 128,
        dtype: Dtype = "float32",
        place: Place | None = None,
    ) -> "QuestionScorer":
        """Load a Hugging Face T5 (v1.0, v1.1, flan, T0); its weights are kept in `dtype`.

        With `place` each parameter is passed to it as soon as it is read, and its result is kept instead.

        Raises:
          UserError: no such model, or not a T5.
        """
        folder = model_folder(resolve(path_or_name))
        config, params = t5_params.read(folder, np.dtype(dtype), place)
        tokenizer = load_tokenizer(folder)
        if vocabulary_size(tokenizer) > config.vocab_size:
            raise UserError(f"{folder}: the tokenizer has more entries than the model; use the model's own tokenizer")
        scorer = cls(
            config,
            params,
            tokenizer,
            max_length=max_length,
            max_question_length=max_question_length,
            dtype=dtype,
        )
        scorer.source = str(path_or_name)
        return scorer

    def fingerprint(self) -> str:
        """Return a sha256 (hexadecimal) over all that decides scores: shape, weights, tokenizer, lengths, dtype."""
        facts = {"config": dataclasses.asdict(self.config), "prompt": dataclasses.asdict(self.prompt)}
        lengths = {"passages": self.passage_length, "questions": self.max_question_length, "dtype": self.dtype}
        return scorer_digest({**facts, **lengths}, self.tokenizer, self.params)

    def score(
        self,
        questions: Sequence[str],
        passages: Passages,
        *,
        batch_size: int = 32,
        shapes: T5Shapes | None = None,
    ) -> np.ndarray:
        """Score question i against passage i.

        A passage that occurs several times goes through the encoder once.

        Args:
          questions: n questions.
          passages: n passages, as for `TextEncoder.encode_passages`.
          batch_size: pairs at once.
          shapes: shapes from `few_shapes`, whose programs `compile` compiles in advance, instead of `batch_size`; None:
            shapes that suit each batch.

        Returns:
          float32 [n]: mean log p(question token | passage), in nats; higher is better.

        Raises:
          UsageError: the two have different lengths.
        """
        questions, given = given_pairs(questions, passages)
        if not questions:
            return np.zeros(0, np.float32)
        rows, targets, _ = self.rows(questions, given)
        # Pairs of one passage are adjacent and share its encoding; similar lengths share a batch.
        order = sorted(range(len(rows)), key=lambda n: (len(rows[n]), rows[n], len(targets[n])))
        scores = np.zeros(len(rows), np.float32)
        params = jax.device_put(self.params)
        if shapes is None:
            starts = range(0, len(order), batch_size)
            batches = ((order[start : start + batch_size], batch_size) for start in starts)
        else:
            batches = shapes.batches(order)
        for batch, size in batches:
            pairs = [rows[n] for n in batch], [targets[n] for n in batch]
            scores[batch] = self._score_batch(params, *pairs, size, shapes)
        return scores

    def rows(self, questions: Sequence[str], passages: Passages) -> tuple[list[list[int]], list[list[int]], int]:
        """Return the token ids of the passages and of the questions, and the number of pairs that were cut."""
        questions, given = given_texts(questions, "questions"), given_passages(passages)
        titles, bodies = [passage.title for passage in given], [passage.text for passage in given]
        read = scorer_passage(self.tokenizer, titles, bodies, self.passage_length)
        asked = scorer_target(self.tokenizer, questions, self.max_question_length)
        return read.ids, asked.ids, max(read.truncated, asked.truncated)

    def _score_batch(
        self, params: Params, rows: list[list[int]], targets: list[list[int]], size: int, shapes: T5Shapes | None
    ) -> np.ndarray:
        distinct = {tuple(row): None for row in rows}
        number = {row: n for n, row in enumerate(distinct)}
        of_pair = np.zeros(size, np.int32)
        of_pair[: len(rows)] = [number[tuple(row)] for row in rows]
        if shapes is None:
            # Powers of two, so that few shapes are ever compiled.
            passages = rectangle(list(distinct), min(size, 1 << (len(distinct) - 1).bit_length()), 32)
            asked = rectangle(targets, size, 8)
        else:
            passages = padded(list(distinct), size, shapes.passage(max(map(len, distinct))))
            asked = padded(targets, size, shapes.question(max(map(len, targets))))
        pairs = (*passages, *asked, of_pair)
        scores = _score_shared(self.config, self.prompt, params, *pairs, dtype=self.dtype)
        return np.asarray(scores)[: len(rows)]

    # ---- for callers that score a few pairs at a time ------------------------------------------------------------------

    def few_shapes(self) -> T5Shapes:
        """Return shapes for pairs that come a few at a time, so few that all can be compiled in advance."""
        return T5Shapes.of(self.passage_length, self.max_question_length)

    def compile(self, shapes: T5Shapes) -> None:
        """Compile the programs of all shapes, or read them from the cache; the device then holds the parameters."""
        keep_programs()
        self.params = jax.device_put(self.params)
        with keep_short_programs():
            for size, passage, question in shapes.every():
                pairs = [[0] * passage] * size, [[0] * question] * size
                self._score_batch(self.params, *pairs, size, shapes)


def passage_length(prompt: Prompt, max_length: int) -> int:
    """Return the tokens that the instruction leaves to a passage in `max_length`; UsageError if there are none."""
    if max_length <= prompt.size:
        raise UsageError(
            f"scorer.max_length={max_length}: the instruction alone takes {prompt.size} tokens; "
            "leave room for the passage"
        )
    return max_length - prompt.size


def rectangle(rows: Sequence[Sequence[int]], count: int, multiple: int) -> tuple[np.ndarray, np.ndarray]:
    """Pad rows to [count, width] with width a multiple of `multiple`; returns (tokens int32, lengths int32)."""
    return padded(rows, count, max(multiple, -(-max(len(row) for row in rows) // multiple) * multiple))


def padded(rows: Sequence[Sequence[int]], count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Pad rows to [count, width]; returns (tokens int32, lengths int32)."""
    tokens, lengths = np.zeros((count, width), np.int32), np.zeros(count, np.int32)
    for n, row in enumerate(rows):
        tokens[n, : len(row)] = row
        lengths[n] = len(row)
    return tokens, lengths


@partial(device_jit, static_argnums=(0, 1), static_argnames=("dtype",))
def _score_shared(config: T5Config, prompt: Prompt, params: Params, *pairs: jax.Array, dtype: str) -> jax.Array:
    """`score_pairs`, compiled."""
    return score_pairs(config, prompt, params, *pairs, dtype=jnp.dtype(dtype))
