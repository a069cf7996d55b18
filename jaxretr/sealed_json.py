"""JSON files that know when a byte of them was changed: they hold the sha256 of their own content."""

import hashlib
import json
from pathlib import Path
from typing import Any

from jaxretr.errors import UserError
from jaxretr.files import atomic_write

_DIGEST = "digest"


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """Writes an object of JSON values, whole or not at all, with the key "digest" added."""
    with atomic_write(path) as file:
        file.write(_sealed(content))


def read_sealed(path: Path, remedy: str) -> dict[str, Any]:
    """Reads what `write_sealed` wrote, without the digest.

    Args:
      path: the file.
      remedy: what to do where it cannot be read.

    Raises:
      UserError: it is missing, no such file, or not as it was written.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'no UTF-8'}); {remedy}"
        ) from error
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error}); {remedy}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a JSON object; {remedy}")
    content.pop(_DIGEST, None)
    if _sealed(content) != text:
        raise UserError(f"{path}: was changed after it was written; {remedy}")
    return content


def _sealed(content: dict[str, Any]) -> str:
    plain = json.dumps(content, indent=1, ensure_ascii=False)
    return json.dumps({**content, _DIGEST: hashlib.sha256(plain.encode()).hexdigest()}, indent=1, ensure_ascii=False)
