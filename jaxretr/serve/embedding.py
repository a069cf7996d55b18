"""The service's encoders: one queue and one worker for all of them, so that they take turns on the device."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxretr.embeddings.encoding import Encoder, name_of
from jaxretr.embeddings.fingerprints import model_fingerprint
from jaxretr.indexes.index import Standing
from jaxretr.models.embed import Side
from jaxretr.runtime.errors import UserError
from jaxretr.serve.batching import Batcher, Lane
from jaxretr.serve.encoding import SIDES, BatchEncoder
from jaxretr.serve.metrics import Metrics
from jaxretr.serve.problems import Invalid, Overloaded
from jaxretr.serve.settings import Settings

# Seconds until a backfill looks again whether the queue has room.
_PATIENCE = 0.05


@dataclass(frozen=True)
class Embedded:
    """The vectors of a request's texts, and what they took.

    Attributes:
      vectors: float32 [n, D], the model's.
      tokens: tokens of all texts together.
      cut: texts that were longer than the model reads.
    """

    vectors: np.ndarray
    tokens: int
    cut: int


@dataclass(frozen=True)
class Model:
    """An encoder as the service runs it, with its queues.

    Attributes:
      name: its name in answers.
      fingerprint: the fingerprint of its passages' vectors.
      encoder: the encoder itself.
      lanes: the names of its sides' queues.
    """

    name: str
    fingerprint: str
    encoder: BatchEncoder
    lanes: dict[Side, str]


class Embedding:
    """Embeds texts with the service's model, and with those that its indexes are moved to.

    Args:
      name: the model's name in answers; None: the place it was loaded from.
      settings: the queue's limits.
      threads: threads that tokenise.

    Attributes:
      model: the service's model.
      models: all models, by their fingerprints.
      batcher: the queue.
    """

    def __init__(
        self, encoder: Encoder, name: str | None, settings: Settings, metrics: Metrics, threads: ThreadPoolExecutor
    ):
        self._settings, self._metrics, self._threads = settings, metrics, threads
        limits = {"max_requests": settings.max_queue, "max_tokens": settings.max_queue_tokens}
        self.batcher = Batcher([], **limits, observer=metrics)
        self.models: dict[str, Model] = {}
        self.model = self.add(encoder, name)

    def add(self, encoder: Encoder, name: str | None = None) -> Model:
        """Add an encoder, if it is not there; blocks, and compiles nothing yet."""
        fingerprint = model_fingerprint(encoder, "passage")
        if fingerprint not in self.models:
            batch_encoder = BatchEncoder(encoder, self._settings.max_batch_tokens)
            number = f" {len(self.models) + 1}" if self.models else ""
            lanes: dict[Side, str] = {side: f"{side}{number}" for side in SIDES}
            for side, lane in lanes.items():
                self.batcher.add(_lane(batch_encoder, side, lane))
            self.models[fingerprint] = Model(name or name_of(encoder), fingerprint, batch_encoder, lanes)
        return self.models[fingerprint]

    def of(self, standing: Standing) -> Model:
        """The model of an index's vectors: the service's, or the one that the index was moved to."""
        return self.models.get(standing.model_fingerprint or "", self.model)

    async def embed(
        self,
        side: Side,
        texts: Sequence[Any],
        *,
        prompt: str | None = None,
        weights: Sequence[float] | None = None,
        model: Model | None = None,
        tokenised: bool = False,
    ) -> Embedded:
        """Embed texts with one of the models, in the queue of its side.

        Args:
          side: the side of the model.
          texts: questions, or passages as `encode_passages` takes them.
          prompt: the name of a prompt of the model; None: its own of that side.
          weights: weights of a combined model's parts; None: its own.
          model: the model to embed with; None: the service's.
          tokenised: whether the texts are rows of the model's token ids.

        Raises:
          Overloaded: the queue is full.
          Invalid: a text is not text, or there is no such prompt or token.
        """
        model = model or self.model
        try:
            text = None if prompt is None else model.encoder.prompt(prompt)
        except UserError as error:
            raise Invalid(str(error), "prompt") from None
        try:
            with self.batcher.accepted():
                return await self._computed(model, side, texts, text, weights, tokenised)
        except Overloaded:
            self._metrics.refused("encode")
            raise

    async def backfill(self, model: Model, passages: Sequence[Any]) -> np.ndarray:
        """Embed passages that no request waits for, when the queue has room; float32 [n, D]."""
        while True:
            try:
                return (await self._computed(model, "passage", passages, None, None)).vectors
            except Overloaded:
                await asyncio.sleep(_PATIENCE)

    async def _computed(
        self,
        model: Model,
        side: Side,
        texts: Sequence[Any],
        prompt: str | None,
        weights: Sequence[float] | None,
        tokenised: bool = False,
    ) -> Embedded:
        loop, encoder = asyncio.get_running_loop(), model.encoder
        try:
            if tokenised:
                found = encoder.checked(side, texts)
            else:
                found = await loop.run_in_executor(self._threads, encoder.tokenise, side, texts, prompt)
        except UserError as error:
            raise Invalid(str(error), "input" if tokenised else None) from None
        rows = await self.batcher.run(model.lanes[side], found.rows, found.lengths)
        computed = np.stack(rows) if rows else np.empty((0, encoder.slices()[-1].stop), np.float32)
        vectors = encoder.vectors(side, computed, weights)
        return Embedded(vectors, sum(found.lengths), found.cut)


def _lane(encoder: BatchEncoder, side: Side, name: str) -> Lane:
    return Lane(
        name,
        lambda rows: encoder.compute(side, rows),
        encoder.budget,
        encoder.pads,
        lambda length: encoder.padded(side, length),
    )
