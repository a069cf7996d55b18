"""The environment in which libtpu compiles programs with no TPU at hand. Imports nothing: JAX reads it at its import."""

import os


def compile_for_tpus() -> None:
    """Lets libtpu compile in this process without touching or waiting for chips; call it before JAX is imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    # No chip is touched, so that other processes may have libtpu loaded too; its lock file is for those that run on chips.
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    # What is compiled without a client of the device can be written to the cache, but not be read from it.
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
