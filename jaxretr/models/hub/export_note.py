"""The note of `jaxretr export` in jaxretr.json, next to the files of another library's layout.

Those layouts cannot state everything: which folder is which tower, how a passage's title and text become one text, and
a plain Hugging Face folder states neither pooling nor lengths. With the note an export is read back unchanged.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jaxretr.config import Pooling
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.json_dataclass import dataclass_from
from jaxretr.runtime.storage.files import write_json

NOTE = "jaxretr.json"
FORMAT = "jaxretr-export"
_VERSION = 1

Layout = Literal["bert", "dpr", "sentence-transformers"]
LIBRARIES: dict[Layout, str] = {
    "bert": "transformers",
    "dpr": "transformers",
    "sentence-transformers": "sentence-transformers",
}
"""Library that reads a layout."""


@dataclass(frozen=True, kw_only=True)
class ExportNote:
    """The content of jaxretr.json. Settings that the layout's own files state are None: nothing is stated twice."""

    layout: Layout
    shared: bool
    separate: bool
    """Whether each tower has its own folder, question/ and passage/; with `shared` both hold the same weights."""
    passage_template: Literal["pair", "joined"]
    query_prompt: str | None = None
    passage_prompt: str | None = None
    prompts: tuple[tuple[str, str], ...] | None = None
    pooling: Pooling | None = None
    normalise: bool | None = None
    truncate_dim: int | None = None
    max_question_length: int | None = None
    max_passage_length: int | None = None

    def folders(self, folder: Path) -> tuple[Path, Path]:
        """Return the question tower's folder and the passage tower's, the same one if they are not separate."""
        return (folder / "question", folder / "passage") if self.separate else (folder, folder)

    def stated(self) -> dict[str, Any]:
        """Return the settings of `DualEncoderConfig` that only this note states."""
        return {name: value for name in SETTINGS if (value := getattr(self, name)) is not None}

    def write(self, folder: Path) -> None:
        """Write jaxretr.json."""
        content = {key: value for key, value in dataclasses.asdict(self).items() if value is not None}
        write_json(folder / NOTE, {"format": FORMAT, "version": _VERSION, "export": content}, indent=2)


SETTINGS = tuple(
    field.name for field in dataclasses.fields(ExportNote) if field.name not in ("layout", "shared", "separate")
)
"""Names of the settings of `DualEncoderConfig` that a note states."""


def read_note(content: Mapping[str, Any], where: str) -> ExportNote:
    """Read the parsed jaxretr.json of an export.

    Raises:
      UserError: another version, or a key or value that is not known.
    """
    if content.get("version") != _VERSION or not isinstance(content.get("export"), dict):
        raise UserError(f"{where}: is an export of version {content.get('version')}, not {_VERSION}; export it again")
    return dataclass_from(ExportNote, content["export"], where)
