"""`hf:OWNER/NAME/CONFIG[split]` and `hf:/folder/or/file.parquet[split]`: parquet of the Hugging Face hub, or local."""

import fnmatch
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

from jaxretr.data.collection import CORPUS, QRELS, QUERIES, Collection, Row, Table, of_configs, shortened
from jaxretr.data.named.checksums import check_sha256
from jaxretr.runtime.errors import UserError, import_extra

PREFIX = "hf:"

_SUFFIX = ".parquet"
_CARD = "README.md"
# The branch in which the hub keeps the parquet files that it has converted.
_CONVERTED = "refs/convert/parquet"
_SHARD = re.compile(r"-\d{5}-of-\d{5}.*$")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ROWS_AT_ONCE = 4096

_Splits = dict[str, dict[str, list[str]]]
"""The files of each split, in their order: {config: {split: files}}."""


def open_collection(body: str, split: str | None) -> Collection:
    """Return the collection of a repository of data sets, or of a local folder or file.

    Args:
      body: OWNER/NAME or OWNER/NAME/CONFIG; or a path that begins with "/", "~" or ".".

    Raises:
      UserError: it cannot be found, or has no parquet files.
    """
    name = f"{PREFIX}{body}"
    if body.startswith(("/", "~", ".")):
        return of_configs(name, _local_configs(name, Path(body).expanduser()), None, split)
    names = body.split("/")
    if len(names) < 2:
        raise UserError(
            f"{name}: not the name of a data set; write {PREFIX}OWNER/NAME, or {PREFIX}/PATH for local files"
        )
    repository = "/".join(names[:2])
    configs = _hub_configs(repository)
    if {CORPUS, QUERIES} & configs.keys() and not {QRELS, "default"} & configs.keys() and len(names) == 2:
        configs = {**configs, **_separate_qrels(repository)}
    return of_configs(name, configs, "/".join(names[2:]) or None, split)


# ---- which files -----------------------------------------------------------------------------------------------------


def splits_of(files: Sequence[str], card: Mapping[str, Any] | None = None) -> _Splits:
    """Return the configs and splits of a data set's files, by its card or else by their names.

    Args:
      files: paths below the data set's folder.
      card: the metadata at the top of its README.md; its "configs" name files by pattern.
    """
    files = sorted(file for file in files if file.endswith(_SUFFIX))
    found: _Splits = {}
    for config in (card or {}).get("configs") or []:
        data_files = config.get("data_files") or []
        if isinstance(data_files, str | Mapping) or all(isinstance(each, str) for each in data_files):
            data_files = [{"split": "train", "path": data_files}]
        for each in data_files:
            patterns = [each["path"]] if isinstance(each["path"], str) else each["path"]
            matching = [file for file in files if any(fnmatch.fnmatch(file, pattern) for pattern in patterns)]
            if matching:
                found.setdefault(config["config_name"], {})[each["split"]] = matching
    if not found:
        for file in files:
            config, split = _by_name(PurePosixPath(file))
            found.setdefault(config, {}).setdefault(split, []).append(file)
    return found


def _by_name(file: PurePosixPath) -> tuple[str, str]:
    """The config and split in CONFIG/SPLIT-00000-of-00001.parquet, data/SPLIT..., CONFIG/SPLIT/0000.parquet, ..."""
    folders, stem = list(file.parts[:-1]), _SHARD.sub("", file.stem)
    if stem.isdigit() and folders:
        stem = folders.pop().removeprefix("partial-")
    config = folders[-1] if folders and folders[-1] != "data" else "default"
    if config == "default" and stem in (CORPUS, QUERIES, QRELS):
        return stem, "test" if stem == QRELS else stem
    return config, stem


def _card(path: Path) -> Mapping[str, Any] | None:
    """Read the metadata at the top of a README.md; None if there are none that can be read."""
    from huggingface_hub import repocard

    try:
        return repocard.metadata_load(path) if path.is_file() else None
    except Exception:  # The YAML parser's: a broken card counts as none.
        return None


# ---- local files -----------------------------------------------------------------------------------------------------


def _local_configs(name: str, place: Path) -> dict[str, dict[str, Table]]:
    if not place.exists():
        raise UserError(f"{name}: no such file or folder; give a parquet file, or a folder with parquet files")
    root = place if place.is_dir() else place.parent
    files = (
        [path.relative_to(root).as_posix() for path in root.rglob(f"*{_SUFFIX}")] if place.is_dir() else [place.name]
    )
    configs = splits_of(files, _card(root / _CARD) if place.is_dir() else None)
    if not configs:
        raise UserError(f"{name}: has no {_SUFFIX} file; give a parquet file, or a folder with parquet files")
    return {
        config: {
            split: _table(name, [partial(root.joinpath, file) for file in of_split])
            for split, of_split in splits.items()
        }
        for config, splits in configs.items()
    }


# ---- the hub ---------------------------------------------------------------------------------------------------------


def _hub_configs(repository: str) -> dict[str, dict[str, Table]]:
    name = f"{PREFIX}{repository}"
    revision, configs = _listed(repository)
    return {
        config: {
            split: _table(name, [partial(_fetched, repository, revision, file) for file in files])
            for split, files in splits.items()
        }
        for config, splits in configs.items()
    }


def _separate_qrels(repository: str) -> dict[str, dict[str, Table]]:
    """The judgements of BeIR's sets, which are a repository of their own: OWNER/NAME-qrels."""
    try:
        configs = _hub_configs(f"{repository}-qrels")
    except UserError:
        return {}
    return {QRELS: configs.get(QRELS) or next(iter(configs.values()))}


@lru_cache(maxsize=64)
def _listed(repository: str) -> tuple[str, _Splits]:
    """The commit that is read in this process, and its files."""
    import huggingface_hub
    from huggingface_hub import errors

    name = f"{PREFIX}{repository}"
    by_hand = f"download its parquet files by hand and give their folder, {PREFIX}/PATH"
    try:
        api = huggingface_hub.HfApi()
        for revision in (None, _CONVERTED):
            info = api.dataset_info(repository, revision=revision)
            files = [file.rfilename for file in info.siblings or []]
            if any(file.endswith(_SUFFIX) for file in files):
                commit, card = info.sha or "main", None
                if revision is None and _CARD in files:
                    card = _card(_fetched(repository, commit, _CARD))
                return commit, splits_of(files, card)
    except errors.RevisionNotFoundError:
        pass
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"{name}: the hub has no such data set, or it needs a login; check the name, or run: hf auth login"
        ) from None
    except UserError:
        raise
    # Whatever its HTTP library raises: the network is missing or fails.
    except Exception as error:
        if (cached := _cached(repository)) is not None:
            return cached
        raise UserError(
            f"{name}: the hub cannot be reached ({shortened(error)}); check the network, or {by_hand}"
        ) from error
    raise UserError(f"{name}: has no parquet files, and the hub has converted none; {by_hand}")


def _cached(repository: str) -> tuple[str, _Splits] | None:
    """The revision and the splits of an earlier download in the hub's cache; None if there is none."""
    import huggingface_hub

    try:
        folder = Path(huggingface_hub.snapshot_download(repository, repo_type="dataset", local_files_only=True))
    except Exception:
        return None
    files = [path.relative_to(folder).as_posix() for path in folder.rglob(f"*{_SUFFIX}")]
    return (folder.name, splits_of(files, _card(folder / _CARD))) if files else None


def _fetched(repository: str, revision: str, file: str) -> Path:
    """Return the local copy of a file, which is downloaded if it is not in the hub's cache."""
    import huggingface_hub

    name = f"{PREFIX}{repository}"
    try:
        path = Path(huggingface_hub.hf_hub_download(repository, file, repo_type="dataset", revision=revision))
    except Exception as error:
        url = f"https://huggingface.co/datasets/{repository}/resolve/{revision}/{file}"
        raise UserError(
            f"{name}: {file} cannot be fetched ({shortened(error)}); check the network, or download {url} by hand and give "
            f"its folder, {PREFIX}/PATH"
        ) from error
    # Large files are kept under the sha256 that the hub states.
    kept_as = os.path.realpath(path)
    if _SHA256.fullmatch(os.path.basename(kept_as)):
        check_sha256(kept_as, os.path.basename(kept_as), name, "remove it, and it is fetched again")
    return path


# ---- rows ------------------------------------------------------------------------------------------------------------


def local_rows(name: str, file: Path) -> Iterator[Row]:
    """Yield the rows of a local parquet file, with its columns; `name` is for messages."""
    return _rows(name, [lambda: file])


def _table(name: str, files: Sequence[Callable[[], Path]]) -> Table:
    return Table(partial(_rows, name, files), partial(_facts, files))


def _facts(files: Sequence[Callable[[], Path]]) -> list[Any]:
    facts = []
    for fetch in files:
        path = os.path.realpath(fetch())
        if _SHA256.fullmatch(os.path.basename(path)):
            facts.append(os.path.basename(path))
        else:
            status = os.stat(path)
            facts.append([path, status.st_size, status.st_mtime_ns])
    return facts


def _rows(name: str, files: Sequence[Callable[[], Path]]) -> Iterator[Row]:
    arrow = import_extra("pyarrow", "data")
    parquet = import_extra("pyarrow.parquet", "data")
    for fetch in files:
        path = fetch()
        try:
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(_ROWS_AT_ONCE):
                    names = batch.schema.names
                    columns = [_values(arrow, column) for column in batch.columns]
                    for values in zip(*columns, strict=True):
                        yield dict(zip(names, values, strict=True))
        except (arrow.ArrowException, OSError) as error:
            raise UserError(f"{name}: {path} cannot be read ({shortened(error)}); fetch it again") from error


def _values(arrow: Any, column: Any) -> list[Any]:
    """A column as Python values; texts by way of numpy, which is several times as fast."""
    if arrow.types.is_string(column.type) or arrow.types.is_large_string(column.type):
        return column.to_numpy(zero_copy_only=False).tolist()
    return column.to_pylist()
