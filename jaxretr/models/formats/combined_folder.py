"""The folder of a combined encoder, and `load_encoder`, which reads the folder of any encoder."""

import json
import os
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal, cast

from jaxretr.config import EncodeDtype
from jaxretr.errors import UserError
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.formats.dual_encoder_folder import COMBINED_FORMAT
from jaxretr.models.formats.export_note import NOTE
from jaxretr.models.formats.hf_files import read_json, resolve, some_names
from jaxretr.storage.files import atomic_folder, atomic_write

_VERSION = 1

# All that a folder of ours may hold: a folder with anything else is never replaced. The curve is `jaxretr tune`'s.
_OURS = (NOTE, "part-[0-9]*", "curve.json", "curve.png")


def load_encoder(
    path_or_name: str | Path,
    *,
    dtype: EncodeDtype = "float32",
    passage_path: str | Path | None = None,
    tokenizer: str | Path | None = None,
    pooling: Literal["cls", "mean"] | None = None,
    truncate_dim: int | None = None,
) -> DualEncoder | CombinedEncoder:
    """Loads any encoder: a `DualEncoder`, or a `CombinedEncoder` where the folder holds one.

    Args:
      path_or_name: as for `DualEncoder.from_pretrained` and `CombinedEncoder.from_pretrained`.
      dtype: of the matmuls' operands when encoding, "float32", "bfloat16" or "auto".
      passage_path, tokenizer, pooling, truncate_dim: of a dual encoder, see `DualEncoder.from_pretrained`.

    Raises:
      UserError: as those two do; or one of the settings of a dual encoder is given for a combined one.
    """
    if Path(path_or_name).expanduser().is_file():  # A .cp file of the original DPR.
        path: str | Path = path_or_name
    else:
        path = resolve(path_or_name)
        if _is_combined(_model_folder(path)):
            if truncate_dim is not None:
                raise UserError(
                    f"{path_or_name}: a combined model is not cut, its parts are; combine them again with "
                    f"`jaxretr combine ... --truncate-dim`, one number a part"
                )
            given = {"passage_path": passage_path, "tokenizer": tokenizer, "pooling": pooling}
            if superfluous := next((name for name, value in given.items() if value is not None), None):
                raise UserError(
                    f"{path_or_name}: a combined model has all that its parts need; leave {superfluous} out"
                )
            encoder = load(path, dtype)
            encoder.source = str(path_or_name)
            return encoder
    encoder = DualEncoder.from_pretrained(
        path,
        dtype=dtype,
        passage_path=passage_path,
        tokenizer=tokenizer,
        pooling=pooling,
        truncate_dim=truncate_dim,
    )
    encoder.source = str(path_or_name)
    return encoder


def load(path_or_name: str | Path, dtype: EncodeDtype) -> CombinedEncoder:
    """Reads what `save` wrote; `CombinedEncoder.from_pretrained` documents it."""
    folder = _model_folder(resolve(path_or_name))
    where = folder / NOTE
    if not _is_combined(folder):
        raise UserError(f"{folder}: is no combined encoder's folder; load it with DualEncoder.from_pretrained")
    content = read_json(folder, NOTE)
    if content.get("version") != _VERSION:
        raise UserError(f"{where}: is of version {content.get('version')}, not {_VERSION}; install a newer jaxretr")
    weights, names, places = (cast(list, content.get(key)) for key in ("weights", "names", "parts"))
    if not (
        content.keys() == {"format", "version", "how", "weights", "parts", "names"}
        and isinstance(content["how"], str)
        and _all(weights, int | float)
        and _all(names, str)
        and _all(places, str)
        # Nothing outside the folder is read because a file says so.
        and all(fnmatch(place, "part-[0-9]*") and "/" not in place for place in places)
    ):
        raise UserError(f"{where}: was changed, and is no longer what CombinedEncoder.save writes; combine it again")
    parts = [DualEncoder.from_pretrained(_part(folder, place), dtype=dtype) for place in places]
    try:
        encoder = CombinedEncoder(parts, weights, content["how"], names=names)  # pyright: ignore[reportArgumentType]
        encoder.source = str(path_or_name)
        return encoder
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def save(folder: Path, encoder: CombinedEncoder) -> None:
    """Writes the folder beside its place and renames it; `CombinedEncoder.save` documents it."""
    folder = Path(os.path.realpath(folder))
    check_replaceable(folder)
    places = [f"part-{number}" for number in range(len(encoder.parts))]
    content = {
        "format": COMBINED_FORMAT,
        "version": _VERSION,
        "how": encoder.config.how,
        "weights": encoder.config.weights,
        "parts": places,
        "names": encoder.names,
    }
    with atomic_folder(folder) as partial:
        with atomic_write(partial / NOTE) as file:
            json.dump(content, file, indent=2)
        for place, part in zip(places, encoder.parts, strict=True):
            part.save(partial / place)


def check_replaceable(folder: str | Path) -> None:
    """Raises UserError unless a combined encoder may be written there: new, empty, or an older one."""
    folder = Path(folder).expanduser()
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder}: is a file; choose another name for the model's folder")
    names = sorted(entry.name for entry in folder.iterdir())
    foreign = [name for name in names if not any(fnmatch(name, pattern) for pattern in _OURS)]
    if foreign or (names and not _is_combined(folder)):
        raise UserError(
            f"{folder}: holds something else than a combined model ({some_names(foreign or names)}); "
            "choose another folder, or empty it"
        )


def _model_folder(folder: Path) -> Path:
    return folder / "model" if (folder / "model" / NOTE).exists() else folder  # A run directory.


def _is_combined(folder: Path) -> bool:
    return (folder / NOTE).exists() and read_json(folder, NOTE).get("format") == COMBINED_FORMAT


def _part(folder: Path, place: str) -> Path:
    if not (folder / place).is_dir():
        raise UserError(f"{folder / place}: this part of the combined model is missing; copy the folder again")
    return folder / place


def _all(values: Any, kind: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
