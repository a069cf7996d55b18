"""An encoder as the service runs it: texts are tokenised apart from the computation, and any texts share a batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxretr.models.combined_encoder import CombinedEncoder, parts_of
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import Side
from jaxretr.runtime.errors import UserError

# Bytes of one compiled program per layer; measured on a CPU with a model of 6 layers of 384.
_BYTES_A_LAYER = 5 * 2**19

Row = tuple[list[int], ...]
"""The token ids of one text, by each part's tokenizer."""


SIDES: tuple[Side, ...] = ("question", "passage")


@dataclass(frozen=True)
class Tokenised:
    """Texts as rows of token ids.

    Attributes:
      rows: n.
      lengths: the length of each text in tokens, by the part whose row is the longest.
      cut: texts that were longer than the model reads, in the part that cut most.
    """

    rows: list[Row]
    lengths: list[int]
    cut: int


class BatchEncoder:
    """Embeds texts as `encode_queries` and `encode_passages` do, up to the rounding of another batch.

    Args:
      encoder: the encoder to run; of a combined one, each part runs.
      batch_tokens: tokens of a batch on each device; None: chosen for the device.
    """

    def __init__(self, encoder: DualEncoder | CombinedEncoder, batch_tokens: int | None = None):
        self.encoder, self.parts = encoder, parts_of(encoder)
        self._all_shapes = {
            side: [part.engine(side).few_shapes(_length(part, side), batch_tokens) for part in self.parts]
            for side in SIDES
        }
        self._shapes = dict(self._all_shapes)
        engines = [part.engine("passage") for part in self.parts]
        self.budget = min(engine.devices * (batch_tokens or engine.batch_tokens) for engine in engines)
        """Tokens of a batch."""
        self.pads = any(engine.pads for engine in engines)
        """Whether short texts cost as much as the longest of their batch."""

    @property
    def dim(self) -> int:
        """The vectors' dimensions, D."""
        return self.encoder.config.embedding_size

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of the parts' question vectors; (1.0,) for a dual encoder."""
        return self.encoder.config.weights if isinstance(self.encoder, CombinedEncoder) else (1.0,)

    def program_bytes(self) -> int:
        """The approximate memory of the compiled programs, in bytes."""
        return sum(
            _BYTES_A_LAYER * part.config.backbone.num_hidden_layers * len(shape.every())
            for part, shape in {
                (part, shape) for side in SIDES for part, shape in zip(self.parts, self._all_shapes[side], strict=True)
            }
            if part.engine("passage").compiles
        )

    def compile(self, *, first: bool = False, stopped: Callable[[], bool] | None = None) -> None:
        """Compile every program that a text can need.

        Args:
          first: whether to compile only the few with which any text can be computed, a row at a time; these alone are
            used until the others are compiled.
          stopped: asked before each program whether to compile no more, see `Engine.compile`.
        """
        done = set()
        for side in SIDES:
            engines = [part.engine(side) for part in self.parts]
            chosen = [
                shapes.first() if first and engine.compiles else shapes
                for engine, shapes in zip(engines, self._all_shapes[side], strict=True)
            ]
            for engine, shapes in zip(engines, chosen, strict=True):
                if (key := (id(engine), shapes)) not in done:
                    engine.compile(shapes, stopped)
                    done.add(key)
            if stopped is None or not stopped():
                self._shapes[side] = chosen

    def prompt(self, name: str) -> str:
        """The text of a prompt that the model names.

        Raises:
          UserError: it has no such prompt.
        """
        config = self.parts[0].config
        named = {**dict(config.prompts), "query": config.query_prompt, "document": config.passage_prompt}
        if isinstance(self.encoder, CombinedEncoder):
            raise UserError("prompt: a combined model's parts have prompts of their own; leave it out")
        if name not in named:
            raise UserError(f"prompt: the model has no prompt of this name; it has {', '.join(sorted(named))}")
        return named[name]

    @property
    def unit_length(self) -> bool:
        """Whether the model's vectors have length 1."""
        return isinstance(self.encoder, DualEncoder) and self.encoder.config.normalise

    def tokenise(self, side: Side, texts: Sequence[Any], prompt: str | None = None) -> Tokenised:
        """Make rows of ids; may be called in any thread.

        Args:
          side: the tower to tokenise for.
          texts: n questions or passages, as `encode_queries` and `encode_passages` take them.
          prompt: the text to put before each; None: the model's own.

        Raises:
          UserError: one of the texts is not text.
        """
        part_rows = [part.tokenise(side, texts, prompt=prompt) for part in self.parts]
        rows = list(zip(*(ids for ids, _ in part_rows), strict=True))
        return Tokenised(rows, [max(1, *map(len, row)) for row in rows], max(cut for _, cut in part_rows))

    def checked(self, side: Side, rows: Sequence[list[int]]) -> Tokenised:
        """Take rows of ids that were tokenised elsewhere.

        Raises:
          UserError: the model's parts have tokenizers of their own, it has no such token, or a row is longer than it reads.
        """
        if isinstance(self.encoder, CombinedEncoder):
            raise UserError("each part of a combined model has token ids of its own; give texts to /v1/embeddings")
        longest, tokens = _length(self.encoder, side), self.encoder.config.backbone.vocab_size
        for number, row in enumerate(rows):
            if len(row) > longest:
                raise UserError(f"text {number} has {len(row)} ids, and the model reads {longest}; cut it")
            if max(row) >= tokens:
                raise UserError(
                    f"text {number} has the id {max(row)}, and the model's end at {tokens - 1}; use its tokenizer"
                )
        return Tokenised([(row,) for row in rows], [len(row) for row in rows], 0)

    def padded(self, side: Side, length: int) -> int:
        """The length at which a batch is computed, given its longest text's tokens, in the part that pads most."""
        return max(shapes.length(length) for shapes in self._shapes[side])

    def compute(self, side: Side, rows: Sequence[Row]) -> np.ndarray:
        """Embed rows of token ids in this thread.

        Returns:
          float32 [n, sum of the parts' D]: the parts' vectors one after the other, not weighted; `vectors` makes the
          model's of them.
        """
        embeddings = [
            part.engine(side).embed_rows([row[number] for row in rows], part.config.embedding_size, shapes)
            for number, (part, shapes) in enumerate(zip(self.parts, self._shapes[side], strict=True))
        ]
        return embeddings[0] if len(embeddings) == 1 else np.concatenate(embeddings, axis=1)

    def vectors(self, side: Side, computed: np.ndarray, weights: Sequence[float] | None = None) -> np.ndarray:
        """Make the model's vectors, float32 [n, D], of the numbers that `compute` returned.

        Args:
          side: only questions are weighted.
          computed: float32 [n, sum of the parts' D].
          weights: one weight for each part; None: the model's own.
        """
        if not isinstance(self.encoder, CombinedEncoder):
            return computed
        parts = [computed[:, part] for part in self.slices()]
        if side == "question":
            parts = [np.float32(weight) * vector for weight, vector in zip(weights or self.weights, parts, strict=True)]
        return np.concatenate(parts, axis=1) if self.encoder.config.how == "concatenate" else np.sum(parts, axis=0)

    def slices(self) -> list[slice]:
        """The slice of each part's vector in the computed numbers, which in a concatenation is also its slice of D."""
        ends = np.cumsum([part.config.embedding_size for part in self.parts]).tolist()
        return [slice(end - part.config.embedding_size, end) for end, part in zip(ends, self.parts, strict=True)]


def _length(part: DualEncoder, side: Side) -> int:
    return part.config.max_question_length if side == "question" else part.config.max_passage_length
