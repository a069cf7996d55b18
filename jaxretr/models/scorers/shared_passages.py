"""Questions about the same passage, which a causal language model reads once for all of them."""

import math
from collections import deque
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

# Passages are shared where this saves at least so large a part of the places for tokens.
_WORTH = 0.1

# A passage's token ids, and the numbers of the rows that begin with them.
Group = tuple[tuple[int, ...], list[int]]


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

    A shared batch has at most the logits of a full batch of rows of their own.

    Attributes:
      plain: shapes of rows of their own.
      vocabulary: from this id on, ids are of a row's second text; see `pair_frame.marked`.
      longest_text: largest number of tokens of a second text, of which a row of its own has the logits.
    """

    plain: Shapes
    vocabulary: int
    longest_text: int

    def batches(self, ids: Sequence[Sequence[int]], start: int) -> Sequence[Any]:
        """Divide marked rows into batches, see `Shapes.batches`."""
        apart = self.plain.batches(ids, start)
        texts = [[id - self.vocabulary for id in row if id >= self.vocabulary] for row in ids]
        followers: dict[tuple[int, ...], list[int]] = {}
        for number, (row, text) in enumerate(zip(ids, texts, strict=True)):
            followers.setdefault(tuple(row[: len(row) - len(text)]), []).append(number)
        if len(followers) == len(ids):
            return apart
        shared = self._shared(followers, texts, start)
        places = sum(batch.arrays[0].size + batch.arrays[2].size for batch in shared)
        return shared if places <= (1 - _WORTH) * sum(batch.tokens.size for batch in apart) else apart

    def _shared(
        self, followers: dict[tuple[int, ...], list[int]], texts: Sequence[Sequence[int]], start: int
    ) -> list[SharedBatch]:
        waiting: dict[tuple[int, int], deque[Group]] = {}
        for first, numbers in sorted(followers.items(), key=lambda group: len(group[1])):
            longest = max(len(texts[number]) for number in numbers)
            size = self._few.length(len(first)), Shapes(self.longest_text, 1, 0, steps=2).length(longest)
            waiting.setdefault(size, deque()).append((first, numbers))
        # As many questions to a passage as there are, up to the logits of rows of their own.
        each = {
            size: min(_questions(groups) / len(groups), self.longest_text // size[1])
            for size, groups in waiting.items()
        }
        batches = []
        while waiting:
            size = max(waiting)
            rows = self._few.rows(sum(size)) // self.plain.devices
            room = math.ceil(rows * each[size])
            devices = []
            for others in reversed(range(self.plain.devices)):
                passages, questions = sum(map(len, waiting.values())), sum(map(_questions, waiting.values()))
                share = min(rows, -(-passages // (others + 1))), min(room, -(-questions // (others + 1)))
                devices.append(_taken(waiting, size, *share))
            # A passage that has as many questions as fit is read alone.
            rows = rows if max(map(len, devices)) > 1 else 1
            batches.append(self._filled(devices, texts, size, rows, room, start))
        return batches

    @property
    def _few(self) -> Shapes:
        """Programs for every length of a passage and of a question would be many."""
        return self.plain if self.plain.steps else replace(self.plain, steps=2)

    def _filled(
        self,
        devices: Sequence[Sequence[Group]],
        texts: Sequence[Sequence[int]],
        size: tuple[int, int],
        rows: int,
        room: int,
        start: int,
    ) -> SharedBatch:
        firsts = np.zeros((len(devices) * rows, size[0]), np.int32)
        first_lengths = np.ones(len(firsts), np.int32)
        asked = np.zeros((len(devices) * room, size[1]), np.int32)
        lengths, of_text = np.zeros((2, len(asked)), np.int32)
        positions, slots = [], []
        for device, taken in enumerate(devices):
            slot = device * room
            for row, (first, numbers) in enumerate(taken):
                place = device * rows + row
                firsts[place, : len(first)], first_lengths[place] = first, len(first)
                for number in numbers:
                    text = texts[number]
                    asked[slot, : len(text)], lengths[slot], of_text[slot] = text, len(text), row
                    positions.append(start + number)
                    slots.append(slot)
                    slot += 1
        arrays = firsts, first_lengths, asked, lengths, of_text
        return SharedBatch(np.array(positions), np.array(slots), arrays)


def _taken(waiting: dict[tuple[int, int], deque[Group]], size: tuple[int, int], rows: int, room: int) -> list[Group]:
    """Take at most so many passages, and questions, for one device out of those that wait, and are no longer than `size`."""
    taken: list[Group] = []
    while rows and room and (fitting := [other for other in waiting if other[1] <= size[1]]):
        groups = waiting[max(fitting)]
        # Passages of many questions go with those of few, so that neither rows nor questions' places stay empty.
        first, numbers = groups.pop() if len(groups[-1][1]) + rows - 1 <= room else groups.popleft()
        taken.append((first, numbers[:room]))
        if numbers[room:]:
            groups.appendleft((first, numbers[room:]))
        elif not groups:
            del waiting[max(fitting)]
        rows, room = rows - 1, room - len(taken[-1][1])
    return taken


def _questions(groups: Iterable[Group]) -> int:
    return sum(len(numbers) for _, numbers in groups)


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
