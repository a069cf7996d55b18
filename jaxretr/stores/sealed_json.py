"""JSON files that vouch for themselves: their last entry is a sha256 over all the others.

Such a file contains hashes of other files; who hashes that one? It is written in one way only, so any other byte in it,
a space between two entries included, is found by writing it again.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from jaxretr.errors import UserError
from jaxretr.storage.files import write_whole
from jaxretr.storage.retries import retried

_SEAL = "digest"


def write(path: Path, content: dict[str, Any]) -> None:
    """Write content, which JSON must hold unchanged (lists, not tuples), and its seal."""
    text = _text(content)
    write_whole(path, lambda file: file.write(text))


def read(path: Path, remedy: str) -> tuple[dict[str, Any], bool]:
    """Read what `write` wrote.

    Args:
      path: the file.
      remedy: the remedy that errors state.

    Returns:
      The content without its seal, and whether not a byte of the file was changed.

    Raises:
      UserError: it is missing, or no JSON object.
    """
    try:
        text = retried(path, path.read_bytes).decode("utf-8")
        content = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({error}); {remedy}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds no JSON object; {remedy}")
    content.pop(_SEAL, None)
    return content, text == _text(content)


def read_intact(path: Path, remedy: str) -> dict[str, Any]:
    """Read the content as `read` does; a changed byte is an error as well."""
    content, intact = read(path, remedy)
    if not intact:
        raise UserError(f"{path}: was changed after it was written; {remedy}")
    return content


def _text(content: dict[str, Any]) -> str:
    digest = hashlib.sha256(_dump(content).encode("utf-8", "surrogatepass")).hexdigest()
    return _dump({**content, _SEAL: digest}) + "\n"


def _dump(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False)
