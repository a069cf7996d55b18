"""`tfds:NAME/CONFIG:VERSION[split]` and `tfds:/folder[split]`: TensorFlow Datasets on disk, read without TensorFlow.

A config "corpus", "queries", "qrels" or "examples" is a part of a collection, as `jaxretr data build` writes them.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jaxretr.data.collection import Collection, Row, Table, of_configs, shortened
from jaxretr.data.named.checksums import check_sha256
from jaxretr.runtime.errors import UserError, did_you_mean, import_extra

PREFIX = "tfds:"

CHECKSUMS = "checksums.json"
"""The file beside dataset_info.json with {"sha256": {file: hexadecimal}} of all other files of the folder."""

_INFO = "dataset_info.json"
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_RECORDS_AT_ONCE = 4096
_AGAIN = "copy or build the data set again"

# The first columns of a training set by name: TFDS forgets their order, which sentence-transformers' readers need.
_FIRST_COLUMNS = ("anchor", "query", "question", "sentence", "sentence1", "sentence_a", "premise", "text1", "input")


def open_collection(body: str, split: str | None) -> Collection:
    """Return the collection of a data set that was prepared before.

    Args:
      body: NAME, NAME/CONFIG or NAME/CONFIG:VERSION below one of TFDS's data folders; or the path of such a folder, which
        begins with "/", "~" or ".".
      split: the split to read, also a part of one in TFDS's notation, such as "train[:10%]".

    Raises:
      UserError: a package is not installed, or there is no such data set, config or split.
    """
    name = f"{PREFIX}{body}"
    tfds = import_extra("tensorflow_datasets", "data")
    import_extra("array_record.python.array_record_module", "data")
    folder, config = _by_path(name, body) if body.startswith(("/", "~", ".")) else _by_name(tfds, name, body)
    configs = {}
    for each, place in _folders_of_configs(name, folder, config).items():
        builder = _builder(tfds, name, place)
        splits = list(builder.info.splits)
        if split is not None and split not in splits and _is_part_of_split(builder, split):
            splits.append(split)
        configs[each] = {key: _table(name, builder, key) for key in splits}
    return of_configs(name, configs, config, split)


# ---- folders ---------------------------------------------------------------------------------------------------------


def _by_path(name: str, body: str) -> tuple[Path, str | None]:
    path, _, version = body.partition(":")
    folder = Path(path).expanduser() / version
    if not folder.is_dir():
        raise UserError(f"{name}: no such folder; give one that TFDS or jaxretr data build wrote")
    return folder, None


def _by_name(tfds: Any, name: str, body: str) -> tuple[Path, str | None]:
    place, _, version = body.partition(":")
    data_set, _, config = place.partition("/")
    file_utils = import_extra("tensorflow_datasets.core.utils.file_utils", "data")
    roots = [Path(os.fspath(root)).expanduser() for root in file_utils.list_data_dirs()]
    for root in roots:
        folder = root / data_set
        if folder.is_dir():
            if config and not (folder / config).is_dir():
                there = [entry.name for entry in folder.iterdir() if entry.is_dir()]
                hint = did_you_mean(config, there) or f"; it has {', '.join(sorted(there))}"
                raise UserError(f"{name}: {folder} has no config '{config}'{hint}")
            folder = folder / config / version
            if not folder.is_dir():
                raise UserError(f"{name}: {folder} does not exist; leave the version out for the newest one")
            return folder, None
    there = [entry.name for root in roots if root.is_dir() for entry in root.iterdir()]
    raise UserError(
        f"{name}: not prepared in {' or '.join(map(str, roots))}{did_you_mean(data_set, there)}; make it with jaxretr data "
        f"build, or name its folder as {PREFIX}/PATH, or its parent in TFDS_DATA_DIR"
    )


def _folders_of_configs(name: str, folder: Path, config: str | None) -> dict[str, Path]:
    """Return {config: the folder of its newest version} of a data set's folder, a config's, or a version's."""
    if (place := _newest(folder)) is not None:
        return {_config_name(place): place}
    found = {entry.name: place for entry in sorted(folder.iterdir()) if (place := _newest(entry)) is not None}
    if not found:
        raise UserError(
            f"{name}: no {_INFO} in {folder} or below it; give a folder that TFDS or jaxretr data build wrote"
        )
    return found


def _newest(folder: Path) -> Path | None:
    """The folder itself if it has a version's files, otherwise that of its newest version."""
    if (folder / _INFO).is_file():
        return folder
    if not folder.is_dir():
        return None
    versions = [entry for entry in folder.iterdir() if _VERSION.fullmatch(entry.name) and (entry / _INFO).is_file()]
    return max(versions, key=lambda entry: [int(number) for number in entry.name.split(".")], default=None)


def _config_name(folder: Path) -> str:
    try:
        return json.loads((folder / _INFO).read_text(encoding="utf-8")).get("configName") or "default"
    except (OSError, ValueError) as error:
        raise UserError(f"{PREFIX}{folder}: {_INFO} cannot be read ({error}); {_AGAIN}") from error


def _is_part_of_split(builder: Any, split: str) -> bool:
    try:
        return bool(builder.info.splits[split].file_instructions)
    except (ValueError, KeyError):
        return False


def _builder(tfds: Any, name: str, folder: Path) -> Any:
    try:
        return tfds.builder_from_directory(folder)
    # TFDS raises whatever its parsers do.
    except Exception as error:
        raise UserError(f"{name}: {folder} cannot be read ({shortened(error)}); {_AGAIN}") from error


# ---- rows ------------------------------------------------------------------------------------------------------------


def _table(name: str, builder: Any, split: str) -> Table:
    folder = Path(os.fspath(builder.data_dir))
    return Table(partial(_rows, name, builder, split), partial(_facts, folder, split), partial(verify, name, folder))


def recorded_checksums(folder: Path) -> dict[str, str] | None:
    """Return {file: sha256} of a data set's folder; None if it was made by something that records none."""
    try:
        return dict(json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))["sha256"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{PREFIX}{folder}: {CHECKSUMS} cannot be read ({error}); {_AGAIN}") from error


def verify(name: str, folder: Path) -> None:
    """Compare the files of a data set's folder with the checksums beside them, once per process.

    Raises:
      UserError: a file is missing or has changed.
    """
    for file, expected in (recorded_checksums(folder) or {}).items():
        check_sha256(folder / file, expected, name, _AGAIN)


def _facts(folder: Path, split: str) -> list[Any]:
    if (recorded := recorded_checksums(folder)) is not None:
        return [split, recorded]
    files = sorted(entry for entry in folder.iterdir() if entry.is_file())
    return [split, [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]]


def _rows(name: str, builder: Any, split: str) -> Iterator[Row]:
    verify(name, Path(os.fspath(builder.data_dir)))
    parse = _plain_parser(builder.info.features)
    try:
        if parse is None or builder.info.file_format.value != "array_record":
            rows = builder.as_data_source(split)
            for number in range(len(rows)):
                yield _as_json(rows[number])
            return
        yield from map(parse, _records(builder.info.splits[split].file_instructions))
    except (GeneratorExit, UserError):
        raise
    except Exception as error:  # TFDS, array_record and protobuf raise classes of their own.
        how = "" if builder.info.file_format.value != "tfrecord" else ", and TFRecord files need TensorFlow"
        raise UserError(f"{name}: {builder.data_dir} cannot be read ({shortened(error)}{how}); {_AGAIN}") from error


def _records(instructions: Any) -> Iterator[bytes]:
    module = import_extra("array_record.python.array_record_module", "data")
    for instruction in instructions:
        reader = module.ArrayRecordReader(os.fspath(instruction.filename))
        try:
            start = instruction.skip
            # -1 is the rest of the file.
            stop = reader.num_records() if instruction.take < 0 else start + instruction.take
            for at in range(start, stop, _RECORDS_AT_ONCE):
                yield from reader.read(at, min(stop, at + _RECORDS_AT_ONCE))
        finally:
            reader.close()


def _plain_parser(features: Any) -> Callable[[bytes], Row] | None:
    """Return the parser of records whose features are texts and numbers, alone, in lists, or in lists of objects.

    The decoder of TFDS, which handles all features, takes twenty times as long. None: other features, for that decoder.
    """
    if not hasattr(features, "items"):
        return None
    single, lists, objects = [], [], []
    for name in sorted(features, key=_place_of_column):
        kind = _value_kind(features[name])
        inner = getattr(features[name], "feature", None)
        if kind is not None:
            single.append((name, kind))
        elif inner is not None and (kind := _value_kind(inner)) is not None:
            lists.append((name, kind))
        elif inner is not None and hasattr(inner, "items"):
            kinds = {field: _value_kind(inner[field]) for field in inner}
            if None in kinds.values():
                return None
            objects.append((name, [(field, f"{name}/{field}", kind) for field, kind in kinds.items()]))
        else:
            return None
    example_of = import_extra("tensorflow_datasets.proto", "data").tf_example_pb2.Example.FromString

    def parse(record: bytes) -> Row:
        found = example_of(record).features.feature
        row: Row = {name: next(iter(kind(found[name])), None) for name, kind in single}
        for name, kind in lists:
            row[name] = kind(found[name])
        for name, fields in objects:
            columns = [kind(found[key]) for _, key, kind in fields]
            keys = [field for field, _, _ in fields]
            row[name] = [dict(zip(keys, values, strict=True)) for values in zip(*columns, strict=True)]
        return row

    def parse_texts(record: bytes) -> Row:
        found = example_of(record).features.feature
        return {name: found[name].bytes_list.value[0].decode("utf-8", "surrogateescape") for name, _ in single}

    return parse_texts if not lists and not objects and all(kind is _texts for _, kind in single) else parse


def _place_of_column(name: str) -> tuple[int, list[str | int]]:
    """Sort the anchor first, then the positives, and the others with their numbers in order."""
    first = 0 if name in _FIRST_COLUMNS else 1 if name.startswith("pos") else 2
    return first, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _value_kind(feature: Any) -> Callable[[Any], list[Any]] | None:
    """Return the reader of the values of a text or a number."""
    import numpy as np

    if hasattr(feature, "feature") or hasattr(feature, "items") or getattr(feature, "shape", None) != ():
        return None
    if type(feature).__name__ not in ("Text", "Scalar", "Tensor"):
        return None
    dtype = feature.np_dtype
    if dtype == np.bool_:
        return _flags
    if np.issubdtype(dtype, np.integer):
        return _integers
    if np.issubdtype(dtype, np.floating):
        return _numbers
    return _texts


def _texts(feature: Any) -> list[Any]:
    return [value.decode("utf-8", "surrogateescape") for value in feature.bytes_list.value]


def _integers(feature: Any) -> list[Any]:
    return list(feature.int64_list.value)


def _flags(feature: Any) -> list[Any]:
    return [bool(value) for value in feature.int64_list.value]


def _numbers(feature: Any) -> list[Any]:
    # TFDS has no null: a missing number is NaN.
    return [None if value != value else value for value in feature.float_list.value]


def _as_json(value: Any) -> Any:
    """A value that TFDS decoded, in JSON's types; NaN becomes None."""
    import numpy as np

    if isinstance(value, Mapping):
        return {name: _as_json(each) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        return _as_json(value.tolist())
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, np.generic):
        return _as_json(value.item())
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return None if isinstance(value, float) and value != value else value
