"""A batch is a function of the seed and the step alone."""

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxretr.data.batches import QuestionBatches


@settings(max_examples=20, deadline=None)
@given(
    num_examples=st.integers(1, 40), batch_size=st.integers(1, 60), seed=st.integers(0, 2**40), epochs=st.integers(1, 3)
)
def test_every_epoch_has_every_example_once(num_examples, batch_size, seed, epochs):
    batches = QuestionBatches(num_examples, batch_size, seed)
    steps = -(-num_examples * epochs // batch_size)
    stream = np.concatenate([batches.indices(step) for step in range(steps)])
    for epoch in range(epochs):
        part = stream[epoch * num_examples : (epoch + 1) * num_examples]
        assert sorted(part) == list(range(num_examples))


def test_epochs_and_seeds_differ():
    orders = {
        tuple(QuestionBatches(50, 50, seed).indices(step).tolist()) for seed in (0, 1, 2, 2**32) for step in (0, 1, 2)
    }
    # Seed s, epoch e + 1 must not be seed s + 1, epoch e either.
    assert len(orders) == 12


def test_shapes_and_what_is_refused():
    batches = QuestionBatches(num_examples=10, batch_size=4, seed=3)
    assert batches.indices(0).dtype == np.int64 and batches.indices(0).shape == (4,)
    assert QuestionBatches(3, 8, 0).indices(5).shape == (8,)
    for wrong in ((0, 1, 0), (1, 0, 0), (1, 1, -1)):
        with pytest.raises(ValueError):
            QuestionBatches(*wrong)
    with pytest.raises(ValueError):
        batches.indices(-1)


def test_any_step_in_any_order_and_far_ahead():
    batches = QuestionBatches(22_129, 64, seed=7)
    forward = [batches.indices(step) for step in range(5)]
    again = QuestionBatches(22_129, 64, seed=7)
    for step in (3, 0, 4, 1, 2):
        np.testing.assert_array_equal(again.indices(step), forward[step])
    begin = time.perf_counter()
    far = batches.indices(10**12)
    # Walking there would take years; a fixed cost stays far below a second even on a busy machine.
    assert time.perf_counter() - begin < 1.0
    np.testing.assert_array_equal(far, again.indices(10**12))


def test_another_process_finds_the_same_batches_without_touching_flags():
    code = (
        "import sys; import jaxretr.data.batches as b; assert 'grain' not in sys.modules;"
        "print(b.QuestionBatches(1000, 8, 5).indices(333).tolist())"
    )
    # Unknown flags on the command line: absl would stop at them if it parsed.
    run = subprocess.run(
        [sys.executable, "-c", code, "--no-such-flag=1"], capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout.strip() == str(QuestionBatches(1000, 8, 5).indices(333).tolist())
    # The order itself is part of what a checkpoint resumes: a change of it must not come unnoticed with an upgrade.
    assert run.stdout.strip() == "[542, 395, 715, 968, 707, 567, 525, 475]"
