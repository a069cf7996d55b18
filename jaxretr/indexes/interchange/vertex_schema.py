"""A strict check that Vertex AI Vector Search takes a folder that is to be uploaded.

https://cloud.google.com/vertex-ai/docs/vector-search/setup/format-structure: data files of one JSON object a line lie in
the folder itself, at most 5,000 of them, not compressed; delete/ may hold text files of one id a line; nothing else may be
there. An id occurs once in all of it.
"""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

MOST_FILES = 5000
DELETE = "delete"

_KEYS = {"id", "embedding", "restricts", "numeric_restricts", "crowding_tag"}
_NUMBERS = {"value_int": (int, -(1 << 63), (1 << 63) - 1), "value_double": (float, -math.inf, math.inf)}
_MOST_PROBLEMS = 10


class Checker:
    """Reads a folder row by row, and notes the problems for which Vertex would refuse it.

    Args:
      folder: the folder to be uploaded.
      dim: the dimensions of every vector.

    Attributes:
      problems: one line each, at most ten.
      deleted: the ids in delete/, known when all rows were read.
    """

    def __init__(self, folder: Path, dim: int):
        self.folder, self.dim = folder, dim
        self.problems: list[str] = []
        self.deleted: set[str] = set()

    def rows(self) -> Iterator[tuple[str, np.ndarray, dict[str, Any]]]:
        """Yield (id, vector float32 [D], the row's other fields) of the rows that are correct."""
        seen: set[str] = set()
        types: dict[str, str] = {}
        for path in self._files():
            for number, row in self._objects(path):
                if problem := row_problem(row, self.dim, types):
                    self._note(path, number, problem)
                elif row["id"] in seen:
                    self._note(path, number, f"the id {row['id']!r} occurs here a second time")
                else:
                    seen.add(row["id"])
                    extras = {name: value for name, value in row.items() if name not in ("id", "embedding")}
                    yield row["id"], np.array(row["embedding"], np.float32), extras
        self._read_deleted(seen)

    def _files(self) -> list[Path]:
        files = []
        for path in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            if path.is_file() and path.suffix == ".json":
                files.append(path)
            elif not (path.is_dir() and path.name == DELETE):
                self._note(path, None, "does not belong there: only .json files and delete/ do")
        if len(files) > MOST_FILES:
            self._note(self.folder, None, f"holds {len(files)} files, more than the {MOST_FILES} that Vertex takes")
        return files

    def _objects(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in self._lines(path):
            try:
                row = json.loads(line, object_pairs_hook=_object_of_unique_keys)
            except (ValueError, RecursionError) as error:
                self._note(path, number, f"no JSON ({error})")
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                self._note(path, number, "no JSON object")

    def _read_deleted(self, seen: set[str]) -> None:
        folder = self.folder / DELETE
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            for number, name in self._lines(path):
                if not name:
                    self._note(path, number, "an empty line where an id is expected")
                elif name in seen:
                    self._note(path, number, f"the id {name!r} is among the rows as well")
                elif name in self.deleted:
                    self._note(path, number, f"the id {name!r} occurs here a second time")
                self.deleted.add(name)

    def _lines(self, path: Path) -> Iterator[tuple[int, str]]:
        try:
            with open(path, encoding="utf-8", newline="\n") as file:
                for number, line in enumerate(file, start=1):
                    yield number, line.removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            self._note(path, None, f"cannot be read ({error})")

    def _note(self, path: Path, line: int | None, problem: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            where = path.relative_to(self.folder.parent).as_posix()
            self.problems.append(f"{where}{'' if line is None else f':{line}'}: {problem}")


def row_problem(row: dict[str, Any], dim: int, types: dict[str, str]) -> str:
    """Describe the fault of one row; "" if it has none.

    Args:
      types: the type of each numeric namespace so far; changed.
    """
    if unknown := row.keys() - _KEYS:
        return f"an unknown key {min(unknown)!r}"
    if not isinstance(row.get("id"), str) or not row["id"]:
        return "its id is not text"
    vector = row.get("embedding")
    if not isinstance(vector, list) or len(vector) != dim:
        return f"its embedding is not a list of {dim} numbers"
    if not all(type(value) in (int, float) and abs(value) <= _LARGEST for value in vector):
        return "its embedding contains a value that is not a float32"
    if "crowding_tag" in row and (not isinstance(row["crowding_tag"], str) or not row["crowding_tag"]):
        return "its crowding_tag is not text"
    checks: tuple[tuple[str, Callable[[Any], str]], ...] = (
        ("restricts", _restrict_problem),
        ("numeric_restricts", lambda entry: _numeric_problem(entry, types)),
    )
    for name, check in checks:
        if name not in row:
            continue
        if not isinstance(row[name], list) or not row[name]:
            return f"its {name} are not a list"
        for entry in row[name]:
            if not isinstance(entry, dict) or not isinstance(entry.get("namespace"), str) or not entry["namespace"]:
                return f"one of its {name} has no namespace"
            if problem := check(entry):
                return problem
        spaces = [entry["namespace"] for entry in row[name]]
        if len(set(spaces)) != len(spaces):
            return f"its {name} name a namespace twice"
    return ""


_LARGEST = float(np.finfo(np.float32).max)


def _restrict_problem(entry: dict[str, Any]) -> str:
    lists = {name: value for name, value in entry.items() if name != "namespace"}
    if not lists or lists.keys() - {"allow", "deny"}:
        return f"the restrict {entry['namespace']!r} must have allow or deny, and nothing else"
    for value in lists.values():
        if not isinstance(value, list) or not value or not all(isinstance(token, str) and token for token in value):
            return f"the restrict {entry['namespace']!r} allows or denies something that is not text"
    return ""


def _numeric_problem(entry: dict[str, Any], types: dict[str, str]) -> str:
    names = [name for name in entry if name != "namespace"]
    if len(names) != 1 or names[0] not in _NUMBERS:
        return f"the numeric restrict {entry['namespace']!r} must have value_int or value_double, and nothing else"
    kind, least, most = _NUMBERS[names[0]]
    value = entry[names[0]]
    if type(value) is not kind or not least <= value <= most or abs(value) == math.inf:
        return f"the numeric restrict {entry['namespace']!r} is no {names[0].removeprefix('value_')}"
    if (known := types.setdefault(entry["namespace"], names[0])) != names[0]:
        return f"the numeric restrict {entry['namespace']!r} is a {names[0]} here and a {known} in earlier rows"
    return ""


def _object_of_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key occurs twice")
    return content
