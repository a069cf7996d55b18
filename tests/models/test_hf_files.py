"""Reading model folders: every format gives the same tensors, and every bad folder one line that says what to do."""

import json
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxretr.models.hub.hf_files import read_json, resolve
from jaxretr.models.hub.tensor_files import TensorFiles, load_torch, write_safetensors
from jaxretr.runtime.errors import UserError


def _raises(message: str) -> Any:
    return pytest.raises(UserError, match=message)


# --- Folders and names


def test_resolve_takes_a_folder_and_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "encoder").mkdir()
    assert resolve(tmp_path / "encoder") == tmp_path / "encoder"
    with _raises(r"encodr: no such model folder; did you mean 'encoder'\?"):
        resolve(tmp_path / "encodr")
    for name, message in (("weights.bin", "is weights alone; give the folder"), ("x", "is a file; give the folder")):
        (tmp_path / name).write_bytes(b"")
        with _raises(rf"{name}: {message}"):
            resolve(tmp_path / name)


def test_resolve_offline_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants, errors

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with _raises(r"^nobody/no-such-model-a1b2: no such folder, and the Hugging Face hub cannot be reached") as caught:
        resolve("nobody/no-such-model-a1b2")
    assert "\n" not in str(caught.value)

    def refuse(*_: Any, **__: Any) -> None:
        raise errors.HfHubHTTPError("500 Server Error\nsecond line", response=_Response())

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with _raises(r"download from the Hugging Face hub failed \(500 Server Error\); try again") as caught:
        resolve("nobody/no-such-model-a1b2")
    assert "\n" not in str(caught.value)


class _Response:
    headers: dict[str, str] = {}  # noqa: RUF012
    request = None
    status_code = 500


def test_resolve_fetches_bin_only_without_safetensors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = []

    def download(name: str, allow_patterns: list[str], **_: Any) -> str:
        calls.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve("bert-base-uncased") == tmp_path
    assert len(calls) == 2 and calls[1] == ["pytorch_model*.bin"]
    (tmp_path / "model.safetensors").write_bytes(b"")
    resolve("org/model")
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{\n"a": 1,\n"b" 2}', r"config\.json:3: not valid JSON"),
        (b"[1]", r"config\.json:1: a JSON object is expected, but a list"),
        (b'{"a": "\xff"}', "not a UTF-8 text file"),
        (None, r"config\.json: no such file"),
    ],
)
def test_read_json_errors(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with _raises(message):
        read_json(tmp_path, "config.json")


# --- Tensors


TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "half": np.array([1.5, -2], np.float16),
    "brain": np.array([1.5, -3], ml_dtypes.bfloat16),
    "ids": np.arange(4, dtype=np.int64)[None],
}


def _check(files: TensorFiles) -> None:
    assert files.names == ["a", "brain", "half", "ids"]
    assert files.shape("a") == (2, 3) and files.shape("ids") == (1, 4)
    np.testing.assert_array_equal(files.read("a"), TENSORS["a"])
    for name in ("half", "brain"):
        assert files.read(name).dtype == np.float32
        np.testing.assert_array_equal(files.read(name), TENSORS[name].astype(np.float32))
    assert files.read("ids").dtype == np.int64


def _torch_tensors() -> dict[str, Any]:
    torch = pytest.importorskip("torch", reason="a .bin is written with PyTorch: pip install torch")
    brain = torch.tensor([1.5, -3], dtype=torch.bfloat16)
    return {name: torch.tensor(array) for name, array in TENSORS.items() if name != "brain"} | {"brain": brain}


def test_safetensors_and_shards(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", TENSORS, {"format": "pt"})
    _check(TensorFiles.open(tmp_path))
    assert os.listdir(tmp_path) == ["model.safetensors"]  # Nothing is left beside it.
    (tmp_path / "model.safetensors").unlink()
    parts = {"model-1.safetensors": ["a", "ids"], "model-2.safetensors": ["half", "brain"]}
    for shard, names in parts.items():
        write_safetensors(tmp_path / shard, {name: TENSORS[name] for name in names}, {"format": "pt"})
    weight_map = {name: shard for shard, names in parts.items() for name in names}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    _check(TensorFiles.open(tmp_path))
    index.write_text(json.dumps({"weight_map": weight_map | {"lost": "model-2.safetensors"}}))
    with _raises(r"model-2\.safetensors: lacks lost, which model\.safetensors\.index\.json places there"):
        TensorFiles.open(tmp_path)
    index.write_text(json.dumps({"weight_map": weight_map | {"x": "../model-3.safetensors"}}))
    with _raises(r"model-3\.safetensors: no such file, though"):
        TensorFiles.open(tmp_path)
    index.write_text("{}")
    with _raises(r"index\.json: 'weight_map' is missing"):
        TensorFiles.open(tmp_path)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_bin_and_shards(tmp_path: Path, zipped: bool) -> None:
    tensors = _torch_tensors()
    import torch

    def save(names: list[str], path: Path) -> None:
        torch.save(OrderedDict((n, tensors[n]) for n in names), path, _use_new_zipfile_serialization=zipped)

    save(list(tensors), tmp_path / "pytorch_model.bin")
    _check(TensorFiles.open(tmp_path))
    (tmp_path / "pytorch_model.bin").unlink()
    save(["a"], tmp_path / "pytorch_model-1.bin")
    save(["ids", "half", "brain"], tmp_path / "pytorch_model-2.bin")
    weight_map = {name: f"pytorch_model-{1 if name == 'a' else 2}.bin" for name in tensors}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    _check(TensorFiles.open(tmp_path))
    (tmp_path / "pytorch_model-2.bin").unlink()
    with _raises(r"pytorch_model-2\.bin: no such file, though pytorch_model\.bin\.index\.json names it"):
        TensorFiles.open(tmp_path)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 437955512\n"


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_files_that_are_no_checkpoint(tmp_path: Path, name: str) -> None:
    with _raises(r"no model\.safetensors or pytorch_model\.bin here; give a complete"):
        TensorFiles.open(tmp_path)
    (tmp_path / "tf_model.h5").write_bytes(b"")
    with _raises(r"only tf_model\.h5: save it with"):
        TensorFiles.open(tmp_path)
    path = tmp_path / name
    path.write_bytes(POINTER)
    with _raises(rf"{name}: a Git LFS pointer.*git lfs pull"):
        TensorFiles.open(tmp_path)
    if name.endswith(".bin"):
        tensors = _torch_tensors()
        import torch

        torch.save(tensors, path)
    else:
        write_safetensors(path, TENSORS, {"format": "pt"})
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2], whole[:5], b"", b"<html>Not found</html>\n" * 9):
        path.write_bytes(broken)
        with _raises(rf"{name}: truncated") as caught:
            TensorFiles.open(tmp_path)
        assert "\n" not in str(caught.value)


class _Evil:
    ran = False

    def __reduce__(self) -> Any:
        return (_boom, ())


def _boom() -> None:
    _Evil.ran = True


def test_bin_with_code_is_refused_and_not_run(tmp_path: Path) -> None:
    tensors = _torch_tensors()
    import torch

    torch.save(tensors | {"evil": _Evil()}, tmp_path / "pytorch_model.bin")
    with _raises(r"pytorch_model\.bin: truncated, or no checkpoint of tensors only"):
        TensorFiles.open(tmp_path)
    load_torch(tmp_path / "pytorch_model.bin", ignore_objects=True)
    assert not _Evil.ran
    torch.save({"model": tensors}, tmp_path / "pytorch_model.bin")
    with _raises(r"pytorch_model\.bin: 'model' is not a tensor but dict"):
        TensorFiles.open(tmp_path)
    torch.save([1], tmp_path / "pytorch_model.bin")
    with _raises("holds a list, not a dict"):
        TensorFiles.open(tmp_path)


def test_missing_torch_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with _raises(r"torch is not installed.*pip install 'jaxretr\[torch\]'"):
        TensorFiles.open(tmp_path)


def test_write_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": np.zeros(2, np.float32)}, {})
    before = path.read_bytes()
    from safetensors import SafetensorError

    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with _raises(r"model\.safetensors: cannot be written \(I/O error: No space left.*free some space"):
        write_safetensors(path, TENSORS, {})
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]
