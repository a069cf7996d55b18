"""Records of what a file was made from, for formats without room for that: `FILE.made_of.json` next to the file.

The record holds the file's own hash, so it does not apply to a file that was edited or replaced since.
"""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from jaxretr.runtime.notes import note
from jaxretr.runtime.storage.files import open_descriptor, sha256, write_json

log = logging.getLogger(__name__)

_OF = "sha256 of the file"


def write_record(path: str | Path, facts: Mapping[str, str]) -> None:
    """Write the record of a file that is complete; a stream gets none.

    Args:
      path: the file.
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
