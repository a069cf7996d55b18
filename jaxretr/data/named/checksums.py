"""The check of the files behind named data: their sha256, compared once per process."""

import os

from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.files import sha256

_checked: set[tuple[str, int, int, str]] = set()


def check_sha256(path: str | os.PathLike[str], expected: str, where: str, remedy: str) -> None:
    """Compare a file with its checksum; one that was compared before is read again only if it has changed since.

    Args:
      expected: the file's sha256 (hexadecimal).
      where: the data set, for the error.

    Raises:
      UserError: it has another content, or cannot be read.
    """
    try:
        facts = os.stat(path)
        key = (os.fspath(path), facts.st_size, facts.st_mtime_ns, expected)
        if key in _checked:
            return
        found = sha256(path)
    except OSError as error:
        raise UserError(f"{where}: {path} cannot be read ({error.strerror}); {remedy}") from error
    if found != expected:
        raise UserError(f"{where}: {path} has the sha256 {found[:12]}..., not {expected[:12]}... as recorded; {remedy}")
    _checked.add(key)
