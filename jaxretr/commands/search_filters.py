"""The filters of `jaxretr search`: lists of ids in files, and fields of the index or of the corpus file."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.data.text_rows import (
    RowError,
    check_trec_id,
    check_utf8,
    find_input,
    json_lines,
    numbered_lines,
    string_field,
)
from jaxretr.errors import UserError, did_you_mean
from jaxretr.search.filters import Filters, Metadata

_IDS = ("_id", "id", "docid")


def allowed_rows(args: argparse.Namespace, ids: Sequence[str], metadata: Metadata) -> np.ndarray | None:
    """The rows that the options let pass.

    Args:
      args: with allow, deny, where, corpus and index.
      ids: of the index, N.
      metadata: field -> N values, of the index.

    Returns:
      bool [N]; None where no filter is given.

    Raises:
      UserError: an id, a field or a value that is not there, a bad file, or no passage passes.
    """
    if not (args.allow or args.deny or args.where):
        return None
    wanted: dict[str, list[str]] = {}
    for field, value in args.where:
        wanted.setdefault(field, []).append(value)
    columns = {field: [_text(value) for value in metadata[field]] for field in wanted if field in metadata}
    if missing := [field for field in wanted if field not in columns]:
        columns |= _corpus_columns(args, missing, ids, metadata)
    for field, values in wanted.items():
        there = {value for value in columns[field] if value is not None}
        for value in values:
            if value not in there:
                hint = did_you_mean(value, sorted(there)[:20_000]) or "; check the spelling"
                raise UserError(f"--where {field}={value}: no passage has this value{hint}")
    known = set(ids)
    lists = [None if path is None else _read_list(path, known, args.index) for path in (args.allow, args.deny)]
    mask = Filters(len(ids), ids, columns).mask(*lists, where=wanted)
    assert mask is not None
    if not mask.any():
        raise UserError(f"{args.index}: no passage passes the filters; loosen --allow, --deny or --where")
    return mask


def _read_list(path: str, known: set[str], index: str) -> list[str]:
    ids: list[str] = []
    for number, line in numbered_lines(find_input(path)):
        name = line.rstrip("\r\n")
        if not name:
            continue
        try:
            check_utf8(name)
        except RowError as error:
            raise UserError(f"{path}:{number}: {error}") from None
        if name not in known:
            hint = did_you_mean(name, sorted(known)[:20_000]) or "; one id of the index a line"
            raise UserError(f"{path}:{number}: {index} has no passage '{name}'{hint}")
        ids.append(name)
    return ids


def _corpus_columns(
    args: argparse.Namespace, fields: list[str], ids: Sequence[str], metadata: Metadata
) -> dict[str, list[str | None]]:
    """Values of fields, as text, for the passages of the index; None where a passage has none."""
    if args.corpus is None:
        hint = did_you_mean(fields[0], metadata) or "; give --corpus FILE, JSON lines that have it"
        raise UserError(f"--where {fields[0]}: the index has no such field{hint}")
    path = find_input(args.corpus, "corpus.jsonl")
    row_of = {name: row for row, name in enumerate(ids)}
    columns: dict[str, list[str | None]] = {field: [None] * len(ids) for field in fields}
    seen: dict[str, None] = {}
    found = 0
    for number, content in json_lines(path):
        try:
            if isinstance(content, RowError):
                raise content
            row = row_of.get(string_field(content, _IDS, allow_int=True) or "")
        except RowError as error:
            raise UserError(f"{path}:{number}: {error}; --where reads JSON lines") from None
        if row is None:
            continue
        found += 1
        inner = content.get("metadata")
        values = {**content, **inner} if isinstance(inner, dict) else content
        seen.update(dict.fromkeys(values))
        for field, column in columns.items():
            column[row] = _text(values.get(field))
    if found < len(ids):
        raise UserError(f"{path}: lacks {len(ids) - found} of the {len(ids)} passages of {args.index}; give its corpus")
    for field in fields:
        if field not in seen:
            hint = did_you_mean(field, [*seen, *metadata]) or f"; there are {', '.join(list(seen)[:20])}"
            raise UserError(f"--where {field}: no passage of {path} has such a field{hint}")
    return columns


def _text(value: Any) -> str | None:
    """A value as one types it: true, 2019, en."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def check_trec_ids(ids: Sequence[str], where: str | Path) -> None:
    """Refuses ids that the columns of a TREC run cannot hold, before the work of a search is lost to one."""
    for number, name in enumerate(ids, start=1):
        try:
            check_trec_id(name)
        except RowError as error:
            raise UserError(f"{where}: passage {number}: {error}, with --corpus FILE") from None
