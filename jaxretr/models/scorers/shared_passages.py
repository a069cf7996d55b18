"""Questions about the same passage, which a causal language model reads once for all of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxretr.models.backbones.layers import Params
from jaxretr.models.batches import Batch, Shapes
from jaxretr.models.encode import Engine
from jaxretr.models.scorers.causal_lm import CausalLmConfig, likelihoods_behind
from jaxretr.runtime.parallel.mesh import DATA
from jaxretr.runtime.parallel.programs import compile_all, device_jit

# Passages are shared where this saves at least so large a part of the tokens.
_WORTH = 0.2


class SharedBatch(NamedTuple):
    """Rows of one program call that begin alike: D devices x P passages, and D x B questions behind them.

    Attributes:
      positions, slots: as those of `Batch`, of the questions.
      arrays: firsts int32 [D P, L], their lengths [D P], texts int32 [D B, T], their lengths [D B], and the row among its
        device's P that each text follows [D B].
    """

    positions: np.ndarray
    slots: np.ndarray
    arrays: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class SharedShapes:
    """Batches of marked rows: shared where many begin alike, and otherwise rows of their own.

    Attributes:
      plain: shapes of rows of their own.
      vocabulary: from this id on, ids are of a row's second text; see `pair_frame.marked`.
      longest_text: largest number of tokens of a second text.
    """

    plain: Shapes
    vocabulary: int
    longest_text: int

    def batches(self, ids: Sequence[Sequence[int]], start: int) -> list[Any]:
        """Divide marked rows into batches, see `Shapes.batches`."""
        texts = [[id - self.vocabulary for id in row if id >= self.vocabulary] for row in ids]
        followers: dict[tuple[int, ...], list[int]] = {}
        for number, (row, text) in enumerate(zip(ids, texts, strict=True)):
            followers.setdefault(tuple(row[: len(row) - len(text)]), []).append(number)
        read = sum(map(len, followers)) + sum(map(len, texts))
        if not followers or read > (1 - _WORTH) * sum(map(len, ids)):
            return self.plain.batches(ids, start)
        # As many questions to a passage as there are, up to those that a batch of rows of their own computes logits for.
        each = min(-(-len(ids) // len(followers)), max(2, self.longest_text // self._text_length(max(map(len, texts)))))

        def size(group: tuple[tuple[int, ...], list[int]]) -> tuple[int, int]:
            return self.plain.length(len(group[0])), max(len(texts[number]) for number in group[1])

        waiting = sorted(followers.items(), key=size)
        batches = []
        while waiting:
            length = self.plain.length(len(waiting[-1][0]))
            devices = [self._taken(waiting, length, each) for _ in range(self.plain.devices)]
            batches.append(self._filled(devices, texts, length, each, start))
        return batches

    def _taken(self, waiting: list[Any], length: int, each: int) -> list[tuple[tuple[int, ...], list[int]]]:
        """Take one device's passages and questions from the end of those that wait."""
        taken, room = [], self._passages(length) * each
        while waiting and room and len(taken) < self._passages(length):
            first, numbers = waiting.pop()
            taken.append((first, numbers[:room]))
            if numbers[room:]:
                waiting.append((first, numbers[room:]))
            room -= len(taken[-1][1])
        return taken

    def _filled(
        self, devices: Sequence[Any], texts: Sequence[Sequence[int]], length: int, each: int, start: int
    ) -> SharedBatch:
        passages = self._passages(length)
        count, positions, slots = len(devices) * passages, [], []
        longest = max(len(texts[number]) for device in devices for _, numbers in device for number in numbers)
        firsts, first_lengths = np.zeros((count, length), np.int32), np.ones(count, np.int32)
        asked = np.zeros((count * each, self._text_length(longest)), np.int32)
        lengths, of_text = np.zeros((2, count * each), np.int32)
        for device, taken in enumerate(devices):
            slot = device * passages * each
            for row, (first, numbers) in enumerate(taken):
                place = device * passages + row
                firsts[place, : len(first)], first_lengths[place] = first, len(first)
                for number in numbers:
                    text = texts[number]
                    asked[slot, : len(text)], lengths[slot], of_text[slot] = text, len(text), row
                    positions.append(start + number)
                    slots.append(slot)
                    slot += 1
        arrays = firsts, first_lengths, asked, lengths, of_text
        return SharedBatch(np.array(positions), np.array(slots), arrays)

    def _passages(self, length: int) -> int:
        """Return P of a padded length."""
        return self.plain.rows(length) // self.plain.devices

    def _text_length(self, tokens: int) -> int:
        return Shapes(self.longest_text, 1, 0, steps=2).length(tokens)


class SharingEngine(Engine):
    """Scores marked rows of passages and questions; see `SharedShapes`.

    Args:
      config: the model.
      rows: arguments of an `Engine`.
    """

    def __init__(self, config: CausalLmConfig, *rows: Any):
        super().__init__(*rows)
        self._config, self._shared = config, _score_shared(config, self.mesh, rows[2])

    def _shapes_of(self, *job: Any) -> Any:
        plain = super()._shapes_of(*job)
        assert isinstance(plain, Shapes)
        # Programs for every length of a passage and of a question would be many.
        plain = plain if plain.steps else replace(plain, steps=2)
        return SharedShapes(plain, self._config.backbone.vocab_size, self._config.max_question_length)

    def _compile(self, batches: Iterable[Any]) -> None:
        batches = list(batches)
        super()._compile(batch for batch in batches if isinstance(batch, Batch))
        by_row = NamedSharding(self.mesh, P(DATA))
        shapes = {tuple(x.shape for x in batch.arrays) for batch in batches if isinstance(batch, SharedBatch)}
        ids = partial(jax.ShapeDtypeStruct, dtype=np.int32, sharding=by_row)
        new = sorted((False, shape) for shape in shapes if (False, shape) not in self._compiled)
        compile_all(self._shared, [(self.stacked, *map(ids, shape)) for _, shape in new])
        self._compiled.update(new)

    def _run(self, batch: Any) -> Any:
        if isinstance(batch, Batch):
            return super()._run(batch)
        scores = self._shared(self.stacked, *jax.device_put(batch.arrays, NamedSharding(self.mesh, P(DATA))))
        scores.copy_to_host_async()
        return scores


@cache
def _score_shared(config: CausalLmConfig, mesh: Mesh, dtype: str) -> Callable[..., jax.Array]:
    """Return the compiled scores float32 [D B, 1] of the arrays of a `SharedBatch`."""

    @device_jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), *(5 * [P(DATA)])), out_specs=P(DATA), axis_names={DATA})
    def score(params: Params, *arrays: jax.Array) -> jax.Array:
        return likelihoods_behind(config, params, *arrays, dtype=jnp.dtype(dtype))[:, None]

    return score
