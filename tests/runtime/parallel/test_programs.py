"""XLA's options, several programs compiled side by side, and their number."""

import jax
import numpy as np
import pytest

from jaxretr.runtime.parallel.programs import accepted, compile_all, compiler_options, device_jit, programs


def test_unknown_options_are_left_out_and_the_users_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"xla_gpu_enable_triton_gemm": False, "xla_gpu_no_such_option": False}
    monkeypatch.setenv("XLA_FLAGS", "")
    assert accepted(options) == {"xla_gpu_enable_triton_gemm": False}
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=true")
    assert accepted(options) == {}
    assert compiler_options() is None  # on CPUs


def test_programs_compiled_side_by_side_are_those_that_calls_use() -> None:
    doubled = device_jit(lambda x, y: 2 * x + y, donate_argnums=0)
    before = programs()
    compile_all(doubled, [(jax.ShapeDtypeStruct((rows,), np.float32), np.float32(1)) for rows in (3, 4, 5)])
    news = programs() - before
    assert news.compiled + news.cached == 3 and news.seconds > 0
    assert str(news).startswith(f"{news.compiled} programs compiled and {news.cached} read from the cache in ")
    before = programs()
    for rows in (3, 4, 5):
        np.testing.assert_array_equal(doubled(np.ones(rows, np.float32), np.float32(1)), np.full(rows, 3))
    assert programs() == before
