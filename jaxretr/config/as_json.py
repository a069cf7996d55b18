"""Configs as JSON, as each checkpoint and run folder stores them."""

import dataclasses
import json
from typing import Any

from jaxretr.config.art import INDEX_IN_ART
from jaxretr.config.kinds import KINDS
from jaxretr.config.live_index import LiveIndex
from jaxretr.config.run import Config
from jaxretr.errors import UsageError, did_you_mean
from jaxretr.json_dataclass import dataclass_from


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
    if kind == "art" and isinstance(values.get("art"), dict):
        art, index = dict(values["art"]), values.get("index")
        moved = {INDEX_IN_ART[name]: art.pop(name) for name in list(art) if name in INDEX_IN_ART}
        if moved:
            # An older file names them all; otherwise `write_back` has ART's default.
            index = index if isinstance(index, dict) else dataclasses.asdict(LiveIndex(write_back=True))
            values |= {"art": art, "index": index | moved}
    return dataclass_from(KINDS[kind], values, where)
