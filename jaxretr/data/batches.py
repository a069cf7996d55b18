"""The examples of a training step, a function of the seed and the step alone, and how they are made ahead of time."""

from collections.abc import Callable
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
        import grain

        self.num_examples = num_examples
        self.batch_size = batch_size
        self.seed = seed
        # Grain adds the epoch to its 32-bit seed: neighbouring seeds would share epochs (seed 1's second = seed 2's
        # first) unless they are spread out before.
        spread = int(np.random.SeedSequence(seed).generate_state(1, np.uint32)[0])
        self._stream: Any = grain.MapDataset.range(num_examples).shuffle(seed=spread).repeat().batch(batch_size)

    def indices(self, step: int) -> np.ndarray:
        """Return the examples of a step, counted from 0: int64 [batch_size], each in [0, num_examples)."""
        if step < 0:
            raise ValueError(f"step {step}: steps count from 0")
        return np.asarray(self._stream[int(step)], np.int64)


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
