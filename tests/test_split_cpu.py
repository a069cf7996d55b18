"""A training run on a CPU uses all its cores, each as a device, unless it is told otherwise."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
os.sched_getaffinity = lambda pid: set(range(6))
from jaxretr.parallel.mesh import split_cpu
split_cpu(int(sys.argv[1]))
import jax
before = jax.device_count()
split_cpu(1)  # the backend has started: nothing happens
print(before, jax.device_count())
"""


@pytest.mark.parametrize(
    ("batch_size", "variable", "devices"), [(64, None, 4), (48, None, 6), (7, None, 1), (48, "2", 2)]
)
def test_the_devices_are_the_most_cores_that_divide_the_batch(
    batch_size: int, variable: str | None, devices: int
) -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    if variable is not None:
        environment["JAX_NUM_CPU_DEVICES"] = variable
    program = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(batch_size)], env=environment, capture_output=True, text=True, check=True
    )
    assert program.stdout.split() == [str(devices)] * 2
