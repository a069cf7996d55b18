"""The folder of a combined encoder: jaxretr.json and the folder of each part."""

import json
import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple, cast

from jaxretr.errors import UserError
from jaxretr.models.formats.dual_encoder_folder import COMBINED_FORMAT
from jaxretr.models.formats.export_note import NOTE
from jaxretr.models.formats.hf_files import read_json, resolve, some_names
from jaxretr.storage.files import atomic_folder, atomic_write

_VERSION = 1

# All that a folder of ours may hold: a folder with anything else is never replaced. The curve is `jaxretr tune`'s.
_OURS = (NOTE, "part-[0-9]*", "curve.json", "curve.png")


class CombinedParts(NamedTuple):
    """What jaxretr.json says of a combined encoder.

    Attributes:
      how: as stated; `CombinedEncoder` checks it.
      weights: of the parts.
      names: of the parts.
      folders: of the parts.
    """

    how: str
    weights: list[float]
    names: list[str]
    folders: list[Path]


def read(path_or_name: str | Path) -> CombinedParts:
    """Reads what `write` wrote; `CombinedEncoder.from_pretrained` documents it."""
    folder = model_folder(resolve(path_or_name))
    where = folder / NOTE
    if not is_combined(folder):
        raise UserError(f"{folder}: is not the folder of a combined encoder; load it with DualEncoder.from_pretrained")
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
    return CombinedParts(content["how"], weights, names, [_part(folder, place) for place in places])


def write(
    folder: Path, how: str, weights: Sequence[float], names: Sequence[str], save_parts: Sequence[Callable[[Path], None]]
) -> None:
    """Writes the folder under another name and renames it; `CombinedEncoder.save` documents it.

    Args:
      folder: where it goes.
      how, weights, names: as in `CombinedParts`.
      save_parts: each writes its part into a folder.
    """
    folder = Path(os.path.realpath(folder))
    check_replaceable(folder)
    places = [f"part-{number}" for number in range(len(save_parts))]
    content = {
        "format": COMBINED_FORMAT,
        "version": _VERSION,
        "how": how,
        "weights": list(weights),
        "parts": places,
        "names": list(names),
    }
    with atomic_folder(folder) as partial:
        with atomic_write(partial / NOTE) as file:
            json.dump(content, file, indent=2)
        for place, save_part in zip(places, save_parts, strict=True):
            save_part(partial / place)


def check_replaceable(folder: str | Path) -> None:
    """Raises UserError unless a combined encoder may be written there: new, empty, or an older one."""
    folder = Path(folder).expanduser()
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder}: is a file; choose another name for the model's folder")
    names = sorted(entry.name for entry in folder.iterdir())
    foreign = [name for name in names if not any(fnmatch(name, pattern) for pattern in _OURS)]
    if foreign or (names and not is_combined(folder)):
        raise UserError(
            f"{folder}: holds something else than a combined model ({some_names(foreign or names)}); "
            "choose another folder, or empty it"
        )


def model_folder(folder: Path) -> Path:
    """Where a run directory has its model; otherwise the folder."""
    return folder / "model" if (folder / "model" / NOTE).exists() else folder  # A run directory.


def is_combined(folder: Path) -> bool:
    """Whether `write` wrote the folder."""
    return (folder / NOTE).exists() and read_json(folder, NOTE).get("format") == COMBINED_FORMAT


def _part(folder: Path, place: str) -> Path:
    if not (folder / place).is_dir():
        raise UserError(f"{folder / place}: this part of the combined model is missing; copy the folder again")
    return folder / place


def _all(values: Any, kind: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
