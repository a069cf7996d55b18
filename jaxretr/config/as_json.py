"""Configs as JSON, as each checkpoint and run folder stores them."""

import dataclasses
import json
from typing import Any

from jaxretr.config.kinds import KINDS
from jaxretr.config.run import Config
from jaxretr.runtime.errors import UsageError, did_you_mean
from jaxretr.runtime.json_dataclass import dataclass_from

# The section `art` held the settings of the index before `index` was a section: old name in `art` -> name in `index`.
_INDEX_IN_ART = {
    "refresh_every": "refresh_every",
    "write_back": "write_back",
    "index_dtype": "dtype",
    "block_rows": "block_rows",
    "encode_rows": "encode_rows",
}


def to_json(config: Config) -> dict[str, Any]:
    """Return the config as plain JSON values, with its kind."""
    kind = next(name for name, cls in KINDS.items() if type(config) is cls)
    # Through json once, so that tuples become lists and a reader gets what a file would give.
    return {"kind": kind, **json.loads(json.dumps(dataclasses.asdict(config)))}


def from_json(values: dict[str, Any], where: str = "config") -> Config:
    """Rebuild a config from `to_json`'s values; an unknown key is a UsageError with a suggestion."""
    if not isinstance(values, dict):
        raise UsageError(f"{where}: a JSON object is expected, not {type(values).__name__}; restore the file")
    values = dict(values)
    kind = values.pop("kind", None)
    if kind not in KINDS:
        raise UsageError(f"{where}: unknown kind {kind!r}{did_you_mean(str(kind), KINDS)}")
    if kind == "art" and "index" not in values and isinstance(values.get("art"), dict):
        art = dict(values["art"])
        index = {new: art.pop(old) for old, new in _INDEX_IN_ART.items() if old in art}
        values |= {"art": art} | ({"index": index} if index else {})
    return dataclass_from(KINDS[kind], values, where)
