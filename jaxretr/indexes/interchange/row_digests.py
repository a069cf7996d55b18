"""Digests of an export's rows, from which the next export finds the rows that changed: 8 bytes per row, and the ids.

rows/digests.npy holds them as uint64 [N], rows/ids.jsonl one JSON string a row. A row that changes keeps its digest
with a chance of 1 in 2^64.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.data.arrays import read_array, write_npy
from jaxretr.embeddings.index_folder import read_ids, write_ids
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage import manifest
from jaxretr.runtime.storage.files import atomic_write
from jaxretr.runtime.storage.sealed_folder import changes

DIGESTS = "rows/digests.npy"
IDS = "rows/ids.jsonl"


def digest(vector: np.ndarray, extras: dict[str, Any]) -> int:
    """Compute the digest of one row, an integer of 64 bits.

    Args:
      vector: the row's vector, float32 [D].
      extras: all fields next to the vector, as in the JSON.
    """
    state = hashlib.blake2b(np.ascontiguousarray(vector, "<f4").data, digest_size=8)
    if extras:
        state.update(json.dumps(extras, sort_keys=True, separators=(",", ":")).encode())
    return int.from_bytes(state.digest(), "little")


def write(folder: Path, ids: Sequence[str], digests: np.ndarray) -> None:
    """Write both files.

    Args:
      digests: the rows' digests, uint64 [N].
    """
    write_ids(folder / IDS, ids)
    with atomic_write(folder / DIGESTS, "wb") as file:
        write_npy(file, digests)


def read(folder: Path) -> tuple[list[str], np.ndarray]:
    """Read both files: N ids and uint64 [N].

    Raises:
      UserError: they are missing or damaged.
    """
    digests = read_array(folder / DIGESTS, np.uint64, (None,), "export again", mapped=False)
    return read_ids(folder / IDS, len(digests), "export again"), digests


def read_previous(folder: Path, kind: str, dim: int) -> dict[str, int]:
    """The digest of each id in an earlier export, which an index is believed to hold.

    Args:
      folder: the earlier export, whole or itself a delta.

    Raises:
      UserError: it is not such an export, or its digests were changed.
    """
    if not manifest.is_export(folder):
        raise UserError(f"{folder}: has no {manifest.MANIFEST}; give the folder of an earlier export as since=")
    stated = manifest.read(folder)
    if stated.kind != kind:
        raise UserError(f"{folder}: is an export --to {stated.kind}; give one --to {kind} as since=")
    if stated.facts.get("dim") != dim:
        raise UserError(
            f"{folder}: holds vectors of {stated.facts.get('dim')} dimensions, the store {dim}, and an index cannot hold "
            "both; leave since= out and build a new index"
        )
    if problems := changes(folder, {name: stated.files.get(name, "") for name in (DIGESTS, IDS)}):
        raise UserError(f"{folder}: {', '.join(problems)}; leave since= out and export everything")
    ids, digests = read(folder)
    return dict(zip(ids, digests.tolist(), strict=True))
