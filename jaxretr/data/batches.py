"""The examples of a training step, a function of the seed and the step alone, and how they are made ahead of time."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

T = TypeVar("T")

# Steps that are made in advance: one in progress and one ready.
_AHEAD = 2


class QuestionBatches:
    """Shuffled batches without state: a resumed run needs the step counter alone, on any number of hosts.

    The examples form an endless stream of epochs, each a new permutation with every example exactly once. Batches are
    cut from that stream, so a batch may span two epochs (or more, if it is larger than an epoch), and no example is
    left out at the end of an epoch. Any step is found in the same time.

    Attributes:
      num_examples: examples in an epoch.
      batch_size: examples in a batch, over all hosts and devices.
      seed: the seed of the permutations.
    """

    def __init__(self, num_examples: int, batch_size: int, seed: int):
        """Set up the stream.

        Args:
          num_examples: at least 1.
          batch_size: at least 1; may exceed `num_examples`.
          seed: any integer from 0.
        """
        if num_examples < 1 or batch_size < 1 or seed < 0:
            raise ValueError(f"{num_examples} examples, batches of {batch_size}, seed {seed}: too small")
        self.num_examples = num_examples
        self.batch_size = batch_size
        self.seed = seed
        self._stream: Any = _epochs(0, num_examples, seed).batch(batch_size)

    def indices(self, step: int) -> np.ndarray:
        """Return the examples of a step, counted from 0: int64 [batch_size], each in [0, num_examples)."""
        if step < 0:
            raise ValueError(f"step {step}: steps count from 0")
        return np.asarray(self._stream[int(step)], np.int64)


class MixtureBatches(QuestionBatches):
    """Batches of several sets, each with a stream of epochs of its own; also without state.

    Batches (or, in mixed batches, examples) of the sets take turns in a fixed order, in which each has its share as evenly
    as possible. The sets' examples are numbered one set after the other.
    """

    def __init__(self, sizes: Sequence[int], shares: Sequence[float], batch_size: int, seed: int, *, mixed: bool):
        """Set up the streams.

        Args:
          sizes: numbers of the sets' examples, each at least 1.
          shares: the sets' shares, above 0; only their relation counts.
          batch_size: at least 1.
          seed: any integer from 0.
          mixed: whether a batch has examples of several sets.
        """
        import grain

        super().__init__(sum(sizes), batch_size, seed)
        streams, firsts = [], itertools.accumulate(sizes, initial=0)
        for number, (first, size) in enumerate(zip(firsts, sizes, strict=False)):
            # Sets of one size, which may be one file with two objectives, have orders of their own.
            streams.append(_epochs(first, size, seed, sizes[:number].count(size)))
        if mixed:
            self._stream = grain.MapDataset.mix(streams, shares).batch(batch_size)
        else:
            self._stream = grain.MapDataset.mix([each.batch(batch_size) for each in streams], shares)


def _epochs(first: int, count: int, seed: int, order: int = 0) -> Any:
    """Return the endless stream of epochs of `count` examples, numbered from `first`; in another order for each `order`."""
    import grain

    # Grain adds the epoch to its 32-bit seed: neighbouring seeds would share epochs (seed 1's second = seed 2's
    # first) unless they are spread out before.
    spread = int(np.random.SeedSequence(seed, spawn_key=(order,) * bool(order)).generate_state(1, np.uint32)[0])
    return grain.MapDataset.range(first, first + count).shuffle(seed=spread).repeat()


class MadeAhead(Generic[T]):
    """Inputs that the host makes for each step, in a thread while the devices work on earlier steps."""

    def __init__(self, make: Callable[[int], T]):
        """Make nothing yet.

        Args:
          make: a function of the step alone, whose result is not None.
        """
        import grain

        self._steps: Any = grain.MapDataset.range(2**31).map(make)
        self._options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_AHEAD)
        self._next: int | None = None
        self._iterator: Any = None

    def __getitem__(self, step: int) -> T:
        """Return `make(step)`, at once if the step follows the previous call's."""
        if step != self._next:
            self._iterator = iter(self._steps[step:].to_iter_dataset(self._options))
        self._next = step + 1
        return next(self._iterator)
