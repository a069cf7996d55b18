"""The package's extras: what each is for, and the modules that show whether it is installed."""

import importlib.util
from typing import NamedTuple


class Extra(NamedTuple):
    """An extra: what it is for, and modules that it installs."""

    purpose: str
    modules: tuple[str, ...]


EXTRAS = {
    "cuda": Extra("NVIDIA GPUs", ("jax_cuda12_plugin",)),
    "tpu": Extra("TPUs", ("libtpu",)),
    "scann": Extra("approximate search with ScaNN (Linux)", ("scann",)),
    "export": Extra(
        "exports to ONNX, StableHLO and FAISS; encoding in int8", ("onnx", "onnxruntime", "flatbuffers", "faiss")
    ),
    "serve": Extra("the HTTP service", ("fastapi", "uvicorn", "prometheus_client", "limits", "mcp")),
    "pgvector": Extra("indexes in PostgreSQL with pgvector", ("psycopg", "pgvector")),
    "lance": Extra("indexes in a LanceDB folder", ("lancedb",)),
    "data": Extra("data sets by name", ("ir_datasets", "tensorflow_datasets", "array_record", "pyarrow", "inscriptis")),
    "mteb": Extra("MTEB's data sets and leaderboards", ("mteb",)),
    "wandb": Extra("metrics of a run in Weights & Biases", ("wandb",)),
    "mlflow": Extra("metrics of a run in MLflow", ("mlflow", "sqlalchemy", "alembic")),
    "gcs": Extra("runs, models and stores in gs:// buckets", ("gcsfs",)),
    "s3": Extra("runs, models and stores in s3:// buckets", ("s3fs",)),
    "torch": Extra("weights that are published only as pytorch_model.bin", ("torch",)),
    "docs": Extra("building the documentation", ("sphinx", "myst_nb", "furo")),
    "dev": Extra("tests, lint and benchmarks", ("pytest", "hypothesis", "sentence_transformers")),
}


def requirement(extra: str) -> str:
    """Return the name that pip installs an extra by, quoted for a shell."""
    assert extra in EXTRAS, f"{extra}: no such extra"
    return f"'jaxretr[{extra}]'"


def is_installed(extra: str) -> bool:
    """Whether all modules of an extra are found; none is imported."""
    return all(importlib.util.find_spec(module) for module in EXTRAS[extra].modules)
