"""Records of what a file was made from, for formats without room for that: `FILE.made_of.json` next to the file; and of what a
folder was begun with, which an interrupted call compares with what it is asked for now.

The record holds the file's own hash, so it does not apply to a file that was edited or replaced since.
"""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxretr.runtime.errors import UserError
from jaxretr.runtime.notes import note
from jaxretr.runtime.storage.files import open_descriptor, plain_number, sha256, write_json
from jaxretr.runtime.storage.sealed_folder import read_object

log = logging.getLogger(__name__)

_OF = "sha256 of the file"


def write_record(path: str | Path, facts: Mapping[str, str]) -> None:
    """Write the record of a file that is complete; a stream gets none.

    Args:
      facts: name -> value; digests in place of long values.
    """
    path = Path(path).expanduser()
    if open_descriptor(path) is not None:
        return
    write_json(_record(path), {_OF: sha256(path), **facts}, indent=1)


def read_record(path: str | Path) -> dict[str, str] | None:
    """Read the facts of a file's record; None where it has no record, or one of other contents."""
    path = Path(path).expanduser()
    try:
        facts = json.loads(_record(path).read_text())
        found = facts.pop(_OF)
    except (OSError, ValueError, KeyError, AttributeError):
        return None
    return facts if found == sha256(path) else None


def note_other_corpus(path: str | Path, setting: str, fingerprint: Callable[[], str]) -> None:
    """Warn where a file of passage ids was made from another corpus than the one in which they are looked up.

    Args:
      path: the file, which may have no record.
      setting: the setting that names it, for the message.
      fingerprint: a function that gives the corpus's fingerprint; called only where there is a record.
    """
    facts = read_record(path)
    if facts is not None and "corpus" in facts and facts["corpus"] != fingerprint():
        note(
            log.warning,
            "%s=%s was made from another corpus than this run's: its passages are found by their ids alone; see that they "
            "are the same ones, or mine again",
            setting,
            path,
        )


def _record(path: Path) -> Path:
    return path.with_name(f"{path.name}.made_of.json")


# ---- folders ---------------------------------------------------------------------------------------------------------


def note_settings(place: Path, folder: Path, settings: Mapping[str, Any]) -> bool:
    """Note what a call was asked for, or compare it with what an interrupted one noted.

    Args:
      place: the file with the settings.
      folder: the folder that the call writes, for errors.
      settings: {name of the argument: its value}, see `check_same_settings`.

    Returns:
      Whether this goes on with an interrupted call.

    Raises:
      UserError: that one was asked for something else.
    """
    if not place.is_file():
        write_json(place, settings, indent=1, ensure_ascii=False)
        return False
    check_same_settings(folder, read_object(place, f"remove {folder} and run the command again"), settings)
    return True


def check_same_settings(folder: Path, noted: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise UserError where a folder was begun with other settings.

    Args:
      folder: the folder, for the error.
      noted: the settings that it was begun with.
      wanted: those asked for now. Of a value {"files": names, ...} the names are only shown: a file may move.
    """
    for name, value in json.loads(json.dumps(wanted, default=plain_number)).items():
        there = noted.get(name)
        if _without_files(there) != _without_files(value):
            if _shown(there) == _shown(value):
                raise UserError(
                    f"{folder}: {name}= ({_shown(value)}) has changed since it was begun; put the old contents back, or give "
                    "another folder as out="
                )
            raise UserError(
                f"{folder}: was begun with another {name}= ({_shown(there)}) than {_shown(value)}; use that again, or "
                "give another folder as out="
            )


def _without_files(value: Any) -> Any:
    return {name: each for name, each in value.items() if name != "files"} if isinstance(value, dict) else value


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return " and ".join(value["files"]) if isinstance(value, dict) and "files" in value else json.dumps(value)
