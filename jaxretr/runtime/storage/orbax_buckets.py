"""Orbax's checkpoints in buckets: support for s3://, and the time that tensorstore retries.

Orbax 0.12 writes the arrays of a checkpoint with tensorstore, straight from every host. It does so for gs:// alone,
though tensorstore has the same driver for s3://, and it has no option for it: therefore four of its private functions
are replaced here. Their names are pinned with Orbax's version in requirements.txt, and
tests/training/runs/test_storage_training.py fails where another version does without them.
"""

import functools
import os
from typing import Any
from urllib.parse import urlsplit

from jaxretr.runtime.storage.retries import storage_seconds


@functools.cache
def teach_orbax() -> None:
    """Make Orbax take s3:// paths like gs:// ones; further calls do nothing."""
    from orbax.checkpoint._src.path import gcs_utils
    from orbax.checkpoint._src.serialization import tensorstore_utils

    normalised = tensorstore_utils._normalize_path
    # A checkpoint is complete with its last object, `commit_success.txt`, and not by a rename, which no bucket has.
    gcs_utils._GCS_PATH_PREFIX = ("gs://", "s3://")
    gcs_utils.get_kvstore_for_gcs = _key_value_store
    tensorstore_utils._use_gcs_driver = lambda directory: directory.startswith(("gs://", "s3://"))
    tensorstore_utils._normalize_path = lambda path: normalised(path).replace("s3:/", "s3://")


def _key_value_store(path: str) -> dict[str, Any]:
    """Tensorstore's description of a folder in a bucket."""
    parts = urlsplit(str(path))
    place = {"bucket": parts.netloc, "path": parts.path.lstrip("/")}
    if parts.scheme == "gs":
        driver = os.environ.get("TENSORSTORE_GCS_BACKEND", "gcs")
        return {"driver": driver, **place, "gcs_request_retries": _attempts()}
    spec: dict[str, Any] = {"driver": "s3", **place, "s3_request_retries": _attempts()}
    # The variables that botocore reads, which s3fs uses.
    if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        spec["endpoint"] = endpoint
        # A server that is not Amazon's does not tell its region.
        spec["aws_region"] = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        # Otherwise it looks for files first, and warns about missing ones.
        spec["aws_credentials"] = {"type": "environment"}
    return spec


def _attempts() -> dict[str, Any]:
    """The attempts of tensorstore, with pauses of 1, 2, 4, ... seconds and some jitter: about the time of `retries`."""
    seconds, count, total = storage_seconds(), 0, 0.0
    while total + min(2.0**count, 32.0) <= seconds:
        total += min(2.0**count, 32.0)
        count += 1
    return {"max_retries": max(count, 1), "initial_delay": "1s", "max_delay": "32s"}
