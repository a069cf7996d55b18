"""Buckets in the place of folders: `gs://bucket/...` and `s3://bucket/...`, through epath and fsspec.

`paths` makes a path of what the user typed, `retries` says what is tried again and for how long, `filesystems` are
gcsfs and s3fs with that, `copies` moves whole files and folders to and fro, `run_folder` is a training run's.
"""
