"""The tensors of a checkpoint, read from safetensors' files or torch's, and written."""

import logging
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (registers bfloat16 with numpy: without it safetensors cannot hand it out)
import numpy as np

from jaxretr.models.hub.hf_files import read_json
from jaxretr.runtime.errors import UserError, import_extra, reason, some_names
from jaxretr.runtime.notes import note
from jaxretr.runtime.storage.files import atomic_write

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_FOREIGN_WEIGHTS = ("tf_model.h5", "flax_model.msgpack", "model.onnx", "rust_model.ot", "*.gguf", "*.ckpt*")
_LFS_POINTER = b"version https://git-lfs"

_log = logging.getLogger(__name__)


def has_weights(folder: Path) -> bool:
    """Whether a folder holds weights that can be read."""
    return any((folder / name).exists() for name in _WEIGHTS)


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


class TensorFiles:
    """The tensors of a checkpoint by name, each read only when it is asked for.

    Attributes:
      where: the folder or file, for errors.
    """

    def __init__(self, tensors: dict[str, _Tensor], where: str):
        self._tensors = tensors
        self.where = where

    @classmethod
    def open(cls, folder: str | Path) -> "TensorFiles":
        """Open model.safetensors or pytorch_model.bin of a folder, or the shards that their index names.

        Raises:
          UserError: no weights, a shard is missing, a file is truncated, a Git LFS pointer or no checkpoint.
        """
        folder = Path(folder)
        name = next((name for name in _WEIGHTS if (folder / name).exists()), None)
        if name is None:
            foreign = [found.name for name in _FOREIGN_WEIGHTS for found in sorted(folder.glob(name))]
            found = f" (only {foreign[0]}: save it with transformers' save_pretrained first)" if foreign else ""
            raise UserError(f"{folder}: no {_WEIGHTS[0]} or {_WEIGHTS[2]} here{found}; give a complete model folder")
        if not name.endswith(".index.json"):
            return cls(_open_file(folder / name), str(folder))
        weight_map = read_json(folder, name).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
            raise UserError(f"{folder / name}: 'weight_map' is missing or broken; copy the file again")
        tensors: dict[str, _Tensor] = {}
        for shard in sorted(set(weight_map.values())):
            path = folder / shard
            if Path(shard).name != shard or not path.exists():
                raise UserError(f"{path}: no such file, though {name} names it; download this shard into {folder}")
            found = _open_file(path)
            listed = {tensor for tensor, place in weight_map.items() if place == shard}
            if lost := sorted(listed - found.keys()):
                raise UserError(
                    f"{path}: lacks {some_names(lost)}, which {name} places there; download both files again"
                )
            tensors |= found
        return cls(tensors, str(folder))

    @classmethod
    def open_file(cls, path: Path) -> "TensorFiles":
        """Open one file, .safetensors or one that torch saved; raises UserError as `open` does."""
        if not path.is_file():
            raise UserError(f"{path}: no such file; copy the folder again")
        return cls(_open_file(path), str(path))

    @classmethod
    def of(cls, arrays: Mapping[str, Any], where: str) -> "TensorFiles":
        """Wrap tensors that are in memory, numpy's or torch's.

        Raises:
          UserError: one of them is not a tensor.
        """
        for name, array in arrays.items():
            if not hasattr(array, "shape") or not isinstance(name, str):
                raise UserError(
                    f"{where}: '{name}' is not a tensor but {type(array).__name__}; give a plain state dict"
                )
        return cls(
            {name: _Tensor(tuple(array.shape), lambda array=array: _numpy(array)) for name, array in arrays.items()},
            where,
        )

    @property
    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor, from the file's header."""
        return self._tensors[name].shape

    def check_sizes(self, sizes: Mapping[str, int], source: str) -> None:
        """Refuse sizes that are far from any tensor here, before anything of that size is allocated.

        Args:
          sizes: sizes of the model, by the name of the setting; a number of layers may also be a number of tensors.
          source: the file that states them, for errors.

        Raises:
          UserError: a size is 16 times as large as every axis of every tensor; smaller differences are better explained
            by a comparison of all shapes.
        """
        longest = max((size for tensor in self._tensors.values() for size in tensor.shape), default=0)
        for name, size in sizes.items():
            limit = max(longest, len(self._tensors)) if "layers" in name else longest
            if size > 16 * limit:
                raise UserError(
                    f"{self.where}: {source} says {name} {size}, but no tensor here is nearly that large; "
                    f"{source} and the weights are not of the same model"
                )

    def read(self, name: str) -> np.ndarray:
        """Read one tensor; float16 and bfloat16 are widened to float32."""
        return self._tensors[name].read()

    def rename(self, new_name: Callable[[str], str]) -> "TensorFiles":
        """Return the same tensors under other names."""
        return TensorFiles({new_name(name): tensor for name, tensor in self._tensors.items()}, self.where)

    def select(self, keep: Callable[[str], bool]) -> "TensorFiles":
        """Return only the tensors whose name is to be kept."""
        return TensorFiles({name: tensor for name, tensor in self._tensors.items() if keep(name)}, self.where)

    def without_copies(self, copies: Mapping[str, str], remedy: str) -> "TensorFiles":
        """Return the tensors without those that are another's copies, by name -> that one's name; others stay.

        Raises:
          UserError: a copy differs; the message ends with `remedy`.
        """
        copies = {name: original for name, original in copies.items() if {name, original} <= self._tensors.keys()}
        for name, original in copies.items():
            if not np.array_equal(self.read(name), self.read(original)):
                raise UserError(f"{self.where}: {name} differs from {original}; {remedy}")
        return self.select(lambda name: name not in copies)


def open_scorer(folder: str | Path) -> tuple[dict[str, Any], TensorFiles]:
    """Return the config.json and the tensors of a scorer; an adapter beside them is not applied, which is logged."""
    if (Path(folder) / "adapter_config.json").exists():
        note(
            _log.warning,
            "%s: holds an adapter too, which is not applied to a scorer; merge it into the weights (PEFT's merge_and_unload)",
            folder,
        )
    return read_json(folder, "config.json"), TensorFiles.open(folder)


def _open_file(path: Path) -> dict[str, _Tensor]:
    _refuse_pointer(path)
    if path.suffix == ".safetensors":
        return _open_safetensors(path)
    state = load_torch(path)
    if not isinstance(state, Mapping):
        raise UserError(f"{path}: holds a {type(state).__name__}, not a dict of tensors; save it with save_pretrained")
    return TensorFiles.of(state, str(path))._tensors


def _refuse_pointer(path: Path) -> None:
    try:
        with open(path, "rb") as file:
            start = file.read(len(_LFS_POINTER))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    if start == _LFS_POINTER:
        raise UserError(f"{path}: a Git LFS pointer, not the weights themselves; run 'git lfs pull' in {path.parent}")


def _open_safetensors(path: Path) -> dict[str, _Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(str(path), framework="np")
    except SafetensorError as error:
        raise UserError(
            f"{path}: truncated or no safetensors file ({reason(error)}); copy or download it again"
        ) from error
    return {
        name: _Tensor(tuple(file.get_slice(name).get_shape()), lambda name=name: _numpy(file.get_tensor(name)))
        for name in file.keys()  # noqa: SIM118 (a safe_open is not a dict)
    }


# Globals that no training program leaves in a checkpoint. weights_only runs none of them, nor anything that is not
# listed here; but a file that tries cannot be trusted.
_RUN_CODE = re.compile(
    r"(os|posix|nt|subprocess|pty|runpy|importlib|shutil|socket|ctypes|webbrowser|code|pip)(\.\w+)+"
    r"|(__builtin__|builtins)\.(eval|exec|compile|open|breakpoint|__import__)"
)


class _Inert:
    """Stand-in for any class that a checkpoint mentions beside its tensors; ignores its arguments."""

    def __new__(cls, *_: Any, **__: Any) -> "_Inert":
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def load_torch(path: str | Path, *, ignore_objects: bool = False) -> Any:
    """Read a file of torch.save without running anything in it (weights_only).

    Args:
      ignore_objects: whether to replace options, enums and the like in a training checkpoint, whose classes
        weights_only refuses, by inert objects.

    Returns:
      The saved object, with torch tensors, memory-mapped where the file's format allows it.

    Raises:
      UserError: torch is not installed, or the file is not a checkpoint, truncated, holds refused objects, or tries to
        run a program.
    """
    torch = import_extra("torch", "torch")
    path = Path(path)
    _refuse_pointer(path)
    mapped = zipfile.is_zipfile(path)  # Files of torch < 1.6 are plain pickles, which cannot be memory-mapped.
    try:
        context = nullcontext()
        if ignore_objects and mapped:
            mentioned = torch.serialization.get_unsafe_globals_in_checkpoint(path)
            if runs := [name for name in mentioned if _RUN_CODE.fullmatch(name)]:
                raise UserError(
                    f"{path}: would call {some_names(runs)} if it were unpickled (it was not); "
                    "do not trust this file, and get the checkpoint from its authors"
                )
            context = torch.serialization.safe_globals([(_Inert, name) for name in mentioned])
        with context:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except UserError:
        raise
    except Exception as error:  # pickle's, zipfile's and torch's own errors, a dozen kinds: all mean a bad file.
        raise UserError(
            f"{path}: truncated, or no checkpoint of tensors only ({reason(error)}); "
            "copy it again, or save the model with save_pretrained"
        ) from error


def _numpy(array: Any) -> np.ndarray:
    if hasattr(array, "detach"):  # A torch tensor; numpy has no bfloat16 that torch could convert to.
        array = array.detach()
        return (array.float() if array.is_floating_point() else array).numpy()
    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype.name in ("float16", "bfloat16") else array


def write_safetensors(path: str | Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write tensors to a .safetensors file, which appears only when it is complete.

    Args:
      tensors: name -> array, of any dtype of safetensors (bfloat16 included).
      metadata: text to store with them; transformers requires {"format": "pt"}.

    Raises:
      UserError: the file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    with atomic_write(path, "wb") as file:
        mode = os.stat(file.name).st_mode
        try:
            # Given by name, so that safetensors streams to the disk, where its `save` would double the memory.
            save_file(contiguous, os.fspath(file.name), metadata=dict(metadata))
            os.chmod(file.name, mode)  # safetensors creates files that only their owner can read
        except SafetensorError as error:
            raise UserError(
                f"{path}: cannot be written ({reason(error)}); free some space there or choose another place"
            ) from error
