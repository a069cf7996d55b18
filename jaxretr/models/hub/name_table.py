"""Tables that pair our parameters with the tensors of a Hugging Face checkpoint.

Every checkpoint is read and written through one table of `Row`s, so that an import and an export cannot disagree.
`rows_of` makes it from the names of modules: the endings of parameters' names are the same everywhere.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxretr.models.backbones.layers import Params
from jaxretr.models.hub.tensor_files import TensorFiles
from jaxretr.runtime.errors import UserError, some_names
from jaxretr.runtime.parallel.mesh import lendable, lent


@dataclass(frozen=True)
class Row:
    """One line of a table of names.

    Attributes:
      ours: path of our parameter, such as "layers/query/kernel".
      theirs: name of their tensor; "{}" stands for the layer's number where ours has a leading [layers] axis.
      transposed: whether their matrix is [out, in], as torch keeps it, and ours [in, out].
      skipped: number of first rows of theirs without a meaning; ours has none of them, and zeros are written in their
        place.
      part: (number, count): ours is this one of so many equal parts of theirs along its first axis.
      first_layer: their first layer has no such tensor; ours has this value everywhere, which nothing reads.
    """

    ours: str
    theirs: str
    transposed: bool = False
    skipped: int = 0
    part: tuple[int, int] = (0, 1)
    first_layer: float | None = None

    def names(self, layers: int) -> list[str]:
        """Return their names: one per layer, or one."""
        if "{}" not in self.theirs:
            return [self.theirs]
        return [self.theirs.format(layer) for layer in range(self.first_layer is not None, layers)]

    def of_theirs(self, tensor: np.ndarray) -> np.ndarray:
        """Return our part of their tensor, in our layout."""
        number, count = self.part
        rows = len(tensor) // count
        tensor = tensor[number * rows : (number + 1) * rows] if count > 1 else tensor[self.skipped :]
        return tensor.T if self.transposed else tensor


_ENDINGS = {"kernel": "weight", "scale": "weight", "table": "weight", "bias": "bias"}


def rows_of(params: Params, modules: Mapping[str, str]) -> list[Row]:
    """Return a table with a row for each parameter, in the order of `modules`: errors name the first that is wrong.

    Args:
      params: our parameters, or their shapes, a nested dict.
      modules: path of our module, such as "layers/query" -> name of theirs, such as "encoder.layer.{}.attention.query".
    """
    order = {ours: number for number, ours in enumerate(modules)}
    parts = [path.rsplit("/", 1) for path in flatten_dict(params, sep="/")]
    parts.sort(key=lambda part: (order[part[0]], part[1] == "bias"))
    return [Row(f"{ours}/{leaf}", f"{modules[ours]}.{_ENDINGS[leaf]}", leaf == "kernel") for ours, leaf in parts]


Place = Callable[[str, np.ndarray], Any]
"""Function that takes a parameter's dotted name and its array, and returns the value that is kept instead."""


NO_NAME = re.compile(r"(?!)")
"""Pattern that no name matches."""

# Remedies for tensors that a Hugging Face folder has too few or too many of, and for tensors of another shape.
_REMEDIES = (
    "is config.json this checkpoint's own, and its architecture a supported one?",
    "config.json and the weights are not of the same model",
)


def read_rows(
    rows: Iterable[Row],
    shapes: Params,
    tensors: TensorFiles,
    *,
    ignored: re.Pattern[str] = NO_NAME,
    dtype: Any = np.float32,
    place: Place | None = None,
    source: str = "config.json",
    remedy: str | None = None,
) -> Params:
    """Read a checkpoint into our parameters, tensor by tensor, so that little more than the result is in memory.

    Args:
      rows: the table; together the rows fill every parameter of `shapes`.
      shapes: our parameters as ShapeDtypeStructs (only their shapes count), a nested dict.
      ignored: pattern for the names of tensors that may exist and are not needed.
      dtype: numpy dtype of the result.
      place: called with the dotted name and the array of each parameter as soon as it is read; its result is kept
        instead of the array, so that the host need not hold all of them.
      source: file that states the shapes, for errors.
      remedy: remedy for tensors that do not fit; None: those of a Hugging Face folder.

    Returns:
      A nested dict of numpy arrays, or of what `place` returned.

    Raises:
      UserError: tensors are missing, left over, or of another shape.
    """
    table = {row.ours: row for row in rows}
    wanted = _checked(table, shapes, tensors, ignored, source, remedy)
    params = {}
    for path, row in table.items():
        array = lendable(wanted[path], dtype)
        parts = array if "{}" in row.theirs else array[None]
        if row.first_layer is not None:
            parts[0], parts = row.first_layer, parts[1:]
        for part, name in zip(parts, row.names(len(array)), strict=True):
            part[...] = row.of_theirs(tensors.read(name))
        params[path] = array if place is None else place(path.replace("/", "."), array)
    return unflatten_dict(params, sep="/")


def _checked(
    table: Mapping[str, Row],
    shapes: Params,
    tensors: TensorFiles,
    ignored: re.Pattern[str],
    source: str,
    remedy: str | None,
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of our parameters by their paths, after the checks of `read_rows`."""
    names_remedy, shape_remedy = _REMEDIES if remedy is None else (remedy, remedy)
    flat: dict[str, Any] = dict(flatten_dict(shapes, sep="/"))
    wanted = {path: tuple(leaf.shape) for path, leaf in flat.items()}
    if table.keys() != wanted.keys():
        raise ValueError(f"the table and the model disagree on {sorted(table.keys() ^ wanted.keys())}")
    sources = {path: row.names(wanted[path][0] if wanted[path] else 0) for path, row in table.items()}
    needed, present = {name for names in sources.values() for name in names}, set(tensors.names)
    if missing := sorted(needed - present):
        raise UserError(
            f"{tensors.where}: {len(missing)} of {len(needed)} tensors are missing: {some_names(missing)}; {names_remedy}"
        )
    if unused := [name for name in sorted(present - needed) if not ignored.fullmatch(name)]:
        raise UserError(
            f"{tensors.where}: {len(unused)} tensors have no place in this architecture: {some_names(unused)}; {names_remedy}"
        )
    for path, names in sources.items():
        row = table[path]
        ours = wanted[path][1:] if "{}" in row.theirs else wanted[path]
        theirs = ours[::-1] if row.transposed else ours
        theirs = (theirs[0] * row.part[1] + row.skipped, *theirs[1:]) if theirs else theirs
        for name in names:
            if tensors.shape(name) != theirs:
                raise UserError(
                    f"{tensors.where}: {name} has shape {list(tensors.shape(name))}, but by {source} it must have "
                    f"{list(theirs)}; {shape_remedy}"
                )
    return wanted


def write_rows(rows: Iterable[Row], params: Params) -> dict[str, np.ndarray]:
    """Return our parameters as contiguous arrays under their names; the reverse of `read_rows`."""
    flat = flatten_dict(params, sep="/")
    tensors: dict[str, list[np.ndarray]] = {}
    for row in sorted(rows, key=lambda row: row.part):
        array = np.asarray(flat[row.ours])
        parts = array if "{}" in row.theirs else array[None]
        for name, part in zip(row.names(len(array)), parts[row.first_layer is not None :], strict=True):
            if row.skipped:
                part = np.concatenate([np.zeros((row.skipped, *part.shape[1:]), part.dtype), part])
            tensors.setdefault(name, []).append(part.T if row.transposed else part)
    return {
        name: np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts))
        for name, parts in tensors.items()
    }


def read_tree(tensors: TensorFiles, shapes: Params, source: str) -> Params:
    """Read tensors under our own names, the dotted paths of parameters, into a nested dict of numpy arrays.

    Args:
      shapes: our parameters as ShapeDtypeStructs, a nested dict.
      source: file that states the shapes, for errors.

    Raises:
      UserError: tensors are missing, left over or of another shape.
    """
    table = {path: Row(path, path.replace("/", ".")) for path in flatten_dict(shapes, sep="/")}
    remedy = f"{source} and the weights are not of the same model; copy the folder again"
    _checked(table, shapes, tensors, NO_NAME, source, remedy)
    return unflatten_dict({path: lent(tensors.read(row.theirs)) for path, row in table.items()}, sep="/")
