"""The manifest.json of an exported index or encoder: its kind, its facts and the sha256 of every file.

A changed byte of any file is found, also one of manifest.json itself.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.files import atomic_write, restore
from jaxretr.runtime.storage.sealed_folder import changes, hashes, names, read_description, write_description
from jaxretr.version import __version__

MANIFEST = "manifest.json"

_KIND = ("jaxretr-export", 1)
_AGAIN = "give a folder of `jaxretr export`, or export again"


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json.

    Attributes:
      kind: the kind of export, for instance "scann" or "vertex".
      facts: facts that the kind notes of itself, as JSON holds them.
      files: the sha256 (hexadecimal) of each file, by its path in the folder.
      jaxretr: the version that wrote it.
    """

    kind: str
    facts: dict[str, Any]
    files: dict[str, str]
    jaxretr: str


def write(folder: Path, kind: str, facts: dict[str, Any]) -> Manifest:
    """Write manifest.json over all files that are in the folder and below."""
    manifest = Manifest(kind, facts, hashes(folder, _names(folder)), __version__)
    write_description(folder / MANIFEST, _KIND, asdict(manifest))
    return manifest


def is_export(folder: Path) -> bool:
    """Whether a folder holds the manifest of an exported index."""
    restore(folder)
    return (folder / MANIFEST).is_file()


def read(folder: Path) -> Manifest:
    """Read manifest.json.

    Raises:
      UserError: it is missing or broken, or a byte of it was changed.
    """
    restore(folder)
    path = folder / MANIFEST
    content = read_description(path, _KIND, _AGAIN, sealed=True)
    types = {"kind": str, "facts": dict, "files": dict, "jaxretr": str}
    if {name: type(value) for name, value in content.items()} != types:
        raise UserError(f"{path}: not what an export writes; {_AGAIN}")
    return Manifest(**content)


def changed_files(folder: Path, manifest: Manifest) -> list[str]:
    """One line for each file that was changed, is missing, or was not there."""
    added = [name for name in _names(folder) if name not in manifest.files]
    return [*changes(folder, manifest.files), *(f"{name} was added" for name in added)]


def _names(folder: Path) -> list[str]:
    """The files that a manifest names; another manifest of a folder inside vouches for itself."""
    return [name for name in names(folder) if name.rpartition("/")[2] != MANIFEST]


def finish(
    partial: Path, out: Path, kind: str, facts: dict[str, Any], readme: str, verify: Callable[[Path], str]
) -> str:
    """Write README.md and manifest.json, and verify; return the summary of `verify`.

    Args:
      partial: the hidden folder, which holds all other files.
      out: the name that the folder will have.

    Raises:
      UserError: the folder does not hold what was to be exported.
    """
    with atomic_write(partial / "README.md") as file:
        file.write(readme)
    write(partial, kind, facts)
    try:
        return verify(partial)
    except UserError as error:
        raise UserError(f"{out}: the export was given up: it fails its own verification ({error})") from error


def refuse(folder: Path, problems: list[str]) -> None:
    """Raise UserError that names all problems, if there are any."""
    if problems:
        raise UserError(f"{folder}: not what was exported: {'; '.join(problems)}; export again")
