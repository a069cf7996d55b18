"""The folder of a combined encoder: jaxretr.json and the folder of each part."""

import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple, cast

from jaxretr.models.hub.dual_encoder_folder import COMBINED_FORMAT, model_folder
from jaxretr.models.hub.export_note import NOTE
from jaxretr.models.hub.hf_files import read_json, resolve
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage import sealed_folder
from jaxretr.runtime.storage.files import atomic_folder, check_place, write_json

_VERSION = 1

# All files of our own folder, with `jaxretr tune`'s curve: a folder with anything else is never replaced.
_OURS = (NOTE, "part-[0-9]*", "curve.json", "curve.png")


class CombinedParts(NamedTuple):
    """Content of a combined encoder's jaxretr.json.

    Attributes:
      how: way to combine, as stated; `CombinedEncoder` checks it.
    """

    how: str
    weights: list[float]
    names: list[str]
    folders: list[Path]


def read(path_or_name: str | Path) -> CombinedParts:
    """Read a folder that `write` wrote; see `CombinedEncoder.from_pretrained`."""
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
        # No file can make us read anything outside the folder.
        and all(fnmatch(place, "part-[0-9]*") and "/" not in place for place in places)
    ):
        raise UserError(f"{where}: was changed, and is no longer what CombinedEncoder.save writes; combine it again")
    return CombinedParts(content["how"], weights, names, [_part(folder, place) for place in places])


def write(
    folder: Path, how: str, weights: Sequence[float], names: Sequence[str], save_parts: Sequence[Callable[[Path], None]]
) -> None:
    """Write the folder under another name and rename it; see `CombinedEncoder.save`.

    Args:
      how, weights, names: as in `CombinedParts`.
      save_parts: functions that each write a part into a folder.
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
        write_json(partial / NOTE, content, indent=2)
        for place, save_part in zip(places, save_parts, strict=True):
            save_part(partial / place)


def check_replaceable(folder: str | Path) -> None:
    """Raise UserError unless a combined encoder may be written there: new, empty, or an older one."""
    folder = Path(folder).expanduser()
    sealed_folder.check_replaceable(folder, "a combined model", lambda names: is_combined(folder), _OURS)
    check_place(folder)


def is_combined(folder: Path) -> bool:
    """Whether `write` wrote the folder."""
    return (folder / NOTE).exists() and read_json(folder, NOTE).get("format") == COMBINED_FORMAT


def _part(folder: Path, place: str) -> Path:
    if not (folder / place).is_dir():
        raise UserError(f"{folder / place}: this part of the combined model is missing; copy the folder again")
    return folder / place


def _all(values: Any, kind: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
