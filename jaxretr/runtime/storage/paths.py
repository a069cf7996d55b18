"""Paths that the user types: local ones, and paths in a bucket, which are used in the same way."""

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Any, cast

from jaxretr.runtime.errors import UsageError, import_extra, path_text

SCHEMES = ("gs", "s3")


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is gs://... or s3://..., and not a local one."""
    return path_text(path).startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def as_path(text: str | os.PathLike[str]) -> Path:
    """Make a path of the text that the user typed.

    Args:
      text: a local path, `~` included, or gs://bucket/... or s3://bucket/...

    Returns:
      A `pathlib.Path`, or for a bucket an `epath.Path`, which has `/`, `name`, `parent`, `exists`, `is_file`, `is_dir`,
      `iterdir`, `glob` without `**`, `read_text`, `read_bytes`, `unlink` and `open("rb")` in common with it. Code whose
      path may lie in a bucket uses these alone; `str` gives back the text that the user typed.

    Raises:
      UserError: the packages for that bucket are not installed.
      UsageError: no bucket is named, or the scheme is unknown.
    """
    text = path_text(text)
    scheme = re.match(r"([a-z][a-z0-9+.-]+)://", text)
    if scheme is None:
        return Path(text).expanduser()
    if scheme[1] not in SCHEMES:
        raise UsageError(f"{text}: no such storage; give a local path, gs://BUCKET/... or s3://BUCKET/...")
    if not re.match(r"[^/]+", text[scheme.end() :]):
        raise UsageError(f"{text}: names no bucket; give {scheme[0]}BUCKET/...")
    _prepare(scheme[1])
    from etils import epath

    return cast(Path, epath.Path(text))


def filesystem(path: str | os.PathLike[str]) -> Any:
    """The fsspec file system of a path in a bucket, with this package's retries."""
    import fsspec

    scheme = os.fspath(path).split("://")[0]
    _prepare(scheme)
    # The arguments are epath's, so this is the same object, with one pool of connections.
    return fsspec.filesystem("gcs", finalize_on_close=True) if scheme == "gs" else fsspec.filesystem(scheme)


def cache_root() -> Path:
    """The folder of files that can be made again: $JAXRETR_CACHE, or ~/.cache/jaxretr."""
    stated = os.environ.get("JAXRETR_CACHE")
    return Path(stated).expanduser() if stated else Path.home() / ".cache/jaxretr"


def cache_folder(kind: str, path: str | os.PathLike[str]) -> Path:
    """The folder of the local copies of something in a bucket.

    Args:
      kind: "runs", "folders" or "stores".
      path: the path in the bucket.
    """
    text = os.fspath(path).rstrip("/")
    name = re.sub(r"[^A-Za-z0-9._-]", "_", text.rsplit("/", 1)[1])[:60]
    return cache_root() / "buckets" / kind / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def move(source: Path, target: Path) -> None:
    """Move a folder within its storage; in a bucket each object is copied and then removed."""
    if is_remote(source):
        store, paths = filesystem(source), [str(path) for path in files_below(source)]
        for path in paths:
            store.cp_file(path, f"{target}{path[len(str(source)) :]}")
        # Files that vouch for the rest lie at the top and go first: a folder that is half removed must not look whole.
        for path in sorted(paths, key=lambda path: path.count("/")):
            store.rm_file(path)
        return
    target.parent.mkdir(exist_ok=True)
    shutil.move(source, target)


def files_below(folder: Path) -> list[Path]:
    """All files of a folder and of those in it, by their names."""
    if not is_remote(folder):
        return [path for path in sorted(folder.rglob("*")) if path.is_file()]
    root = str(folder).rstrip("/")
    scheme = root.split("://")[0]
    # Some tools mark a "folder" with an object whose name ends in "/".
    return [as_path(f"{scheme}://{name}") for name in sorted(filesystem(folder).find(root)) if not name.endswith("/")]


def _prepare(scheme: str) -> None:
    # Otherwise epath goes through TensorFlow wherever that is installed, with other credentials and without s3.
    os.environ["EPATH_USE_TF"] = "false"
    if scheme == "gs":
        import_extra("gcsfs", "gcs")
    else:
        import_extra("s3fs", "s3")
    from jaxretr.runtime.storage import filesystems

    filesystems.register(scheme)
