"""Every test sees eight CPU devices without units for bfloat16, and compiled programs are kept between runs."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Through the environment, so that the processes that tests start keep and read the same programs.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parents[1] / ".jax_cache")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"

import jax
import pytest

# Before anything asks for a device: the backend reads the number once.
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(autouse=True, scope="module")
def logging_left_as_it_was() -> Iterator[None]:
    """Commands set up the process's logging; no other file of tests gets to see that."""
    root, ours = logging.getLogger(), logging.getLogger("jaxretr")
    before = root.level, list(root.handlers), ours.level
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    ours.setLevel(before[2])


@pytest.fixture(autouse=True, scope="session")
def float32_is_the_fastest() -> Iterator[None]:
    """`--compute auto` takes float32 on every processor: commands are compared with what the library gives in float32."""
    from jaxretr.parallel import machine

    flags = machine.cpu_flags() - {"avx512_bf16", "amx_bf16"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "cpu_flags", lambda: flags)
        yield


@pytest.fixture(scope="session")
def mesh8() -> jax.sharding.Mesh:
    from jaxretr.parallel.mesh import make_mesh

    assert jax.device_count() == 8, "the backend started before tests/conftest.py"
    return make_mesh()


@pytest.fixture(scope="session")
def mesh1() -> jax.sharding.Mesh:
    from jaxretr.parallel.mesh import make_mesh

    return make_mesh(jax.devices()[:1])


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `encoder` and `scorer`, tiny random Hugging Face models."""
    from tiny import write_models

    folder = tmp_path_factory.mktemp("tiny")
    write_models(folder)
    return folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what tests measured (`record_property`), also where other processes ran them."""
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name}: {value}")
