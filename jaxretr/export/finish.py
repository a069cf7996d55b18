"""The end of every export with a manifest: README.md, the hashes, and a check of all before it appears."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxretr.errors import UserError
from jaxretr.storage.files import atomic_write
from jaxretr.stores import manifest


def finish(
    partial: Path, out: Path, kind: str, facts: dict[str, Any], readme: str, verify: Callable[[Path], str]
) -> str:
    """Writes README.md and manifest.json, and verifies.

    Args:
      partial: the hidden folder, all else in it.
      out: what it will be called.
      kind: of the export.
      facts: for manifest.json.
      readme: the text of README.md.
      verify: of the kind.

    Returns:
      What `verify` says.

    Raises:
      UserError: what was written is not what was to be exported.
    """
    with atomic_write(partial / "README.md") as file:
        file.write(readme)
    manifest.write(partial, kind, facts)
    try:
        return verify(partial)
    except UserError as error:
        raise UserError(f"{out}: the export was given up: it does not stand its own check ({error})") from error


def refuse(folder: Path, problems: list[str]) -> None:
    """Raises UserError that names all problems, if there are any."""
    if problems:
        raise UserError(f"{folder}: not what was exported: {'; '.join(problems)}; export again")
