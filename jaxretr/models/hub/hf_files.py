"""Hugging Face model folders: where they are, and their config.json; tensor_files.py has the tensors."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxretr.runtime.errors import UserError, did_you_mean, reason
from jaxretr.runtime.storage.copies import local_folder
from jaxretr.runtime.storage.files import restore
from jaxretr.runtime.storage.paths import as_path, is_remote

# Patterns of the files to download, besides the weights, which are in safetensors if the model has them: a hub
# repository often holds five other formats as well. fnmatch's star also matches "/", so the first line includes
# 1_Pooling/config.json too.
_HUB_FILES = [
    *("*.json", "*.txt", "*.model", "model*.safetensors", "[0-9]_*/*.safetensors", "[0-9]_*/*.bin"),
    *("question/*.safetensors", "passage/*.safetensors"),  # The towers of `jaxretr export`.
    "part-[0-9]*/*.safetensors",  # The parts of a combined encoder.
    # Relevance modules (ours, PEFT's, adapter-transformers'), and the files that domain modules need.
    *(
        "adapter*.safetensors",
        "adapter/*.safetensors",
        "adapter_model.bin",
        "pytorch_adapter.bin",
        "mlm_head.safetensors",
    ),
]
_HUB_IGNORED = ["onnx/*", "openvino/*", "coreml/*", "*.msgpack", "*.h5"]
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[A-Za-z0-9][\w./-]*)?")
_HUB_TIMEOUT_SECONDS = 10.0

# Kind of a file by its suffix, and what to do with it.
_SAVE = "save it with transformers' save_pretrained, and give that folder"
_FILES = {
    ".gguf": (
        "llama.cpp's weights (GGUF)",
        "load it with transformers' from_pretrained(folder, gguf_file=...), save it with save_pretrained, and give that folder",
    ),
    ".onnx": ("a program for ONNX Runtime, without weights to train", "give the folder that it was made from"),
    ".h5": ("TensorFlow's weights", _SAVE),
    ".msgpack": ("Flax's weights", _SAVE),
    ".ot": ("weights for Rust", "give the folder that it was made from"),
    **dict.fromkeys(
        (".safetensors", ".bin"), ("weights alone", "give the folder with config.json and the tokenizer beside it")
    ),
    **dict.fromkeys((".pt", ".pth", ".ckpt"), ("PyTorch's weights alone", _SAVE)),
    **dict.fromkeys((".zip", ".tar", ".gz", ".tgz"), ("an archive", "unpack it, and give the folder")),
}


def resolve(path_or_name: str | Path) -> Path:
    """Find a model folder: an existing one, otherwise the Hugging Face hub's model of that name, downloaded or cached.

    Args:
      path_or_name: a folder, one in a bucket (gs://... or s3://...), or a hub name such as
        "facebook/dpr-question_encoder-single-nq-base", after "@" with a branch, a tag or a commit: "me/model@v1".

    Returns:
      The local folder; of a hub model only configuration, tokenizer and weights are fetched, and of a run in a bucket
      only the model.

    Raises:
      UserError: there is neither such a folder nor such a model, or the hub cannot be reached.
    """
    if is_remote(path_or_name):
        return local_folder(as_path(path_or_name))
    path = Path(path_or_name).expanduser()
    restore(path)
    if path.is_dir():
        restore(path / "model")  # Of a run directory.
        return path
    if path.exists():
        refuse_file(path)
        raise UserError(f"{path}: is a file; give the folder that holds config.json and the weights")
    name = str(path_or_name)
    if not is_hub_name(name):
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"{path}: no such model folder{did_you_mean(path.name, siblings) or '; check the path'}")
    return _download(name)


def refuse_file(path: Path) -> None:
    """Raise UserError for a file that is known not to be a model, by its first bytes or its suffix."""
    try:
        with open(path, "rb") as file:
            start = file.read(4)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    suffix = ".gguf" if start == b"GGUF" else path.suffix.lower()
    if suffix in _FILES:
        what, remedy = _FILES[suffix]
        raise UserError(f"{path}: is {what}; {remedy}")


def is_hub_name(name: str) -> bool:
    """Whether a model on the hub can have this name, which may state a revision."""
    return _HUB_NAME.fullmatch(name) is not None


def name_and_revision(name: str) -> tuple[str, str | None]:
    """Split "OWNER/NAME@REVISION"; None where no revision is stated, which means the branch main."""
    repository, _, revision = name.partition("@")
    return repository, revision or None


def _download(name: str) -> Path:
    import huggingface_hub as hub
    from huggingface_hub import errors

    repository, revision = name_and_revision(name)

    def fetch(patterns: list[str]) -> Path:
        return Path(
            hub.snapshot_download(
                repository,
                revision=revision,
                allow_patterns=patterns,
                ignore_patterns=_HUB_IGNORED,
                etag_timeout=_HUB_TIMEOUT_SECONDS,
            )
        )

    nowhere = f"{name}: no such folder, and"
    try:
        folder = fetch(_HUB_FILES)
        if not any(folder.glob("model*.safetensors")):
            fetch(["pytorch_model*.bin"])
        return folder
    except errors.GatedRepoError:
        raise UserError(f"{nowhere} the hub model is gated: accept its terms there, then run: hf auth login") from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"{nowhere} the Hugging Face hub has no such public model; check the spelling (a private one needs: hf auth login)"
        ) from None
    except errors.RevisionNotFoundError:
        raise UserError(
            f"{name}: the hub's model {repository} has no branch, tag or commit {revision}; check the part after the @"
        ) from None
    except errors.LocalEntryNotFoundError:
        raise UserError(
            f"{nowhere} the Hugging Face hub cannot be reached and holds no cached copy here; "
            "give a model folder, or connect and try again"
        ) from None
    except Exception as error:  # The hub's client raises a dozen other kinds, which all have the same remedy.
        raise UserError(
            f"{nowhere} the download from the Hugging Face hub failed ({reason(error)}); "
            "try again, or give a model folder"
        ) from error


def read_json(folder: str | Path, name: str) -> dict[str, Any]:
    """Read one JSON object of a model folder.

    Args:
      name: the file's name in it, such as "config.json".

    Raises:
      UserError: the file is missing, unreadable, broken (with its line) or not a JSON object.
    """
    path = Path(folder) / name
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if (path.parent / "adapter_config.json").exists():
            raise UserError(
                f"{folder}: holds an adapter alone, without the model that it is for; give that model, and the adapter to "
                "load_adapter or `jaxretr assemble`"
            ) from error
        raise UserError(f"{path}: no such file; is {folder} a complete model folder?") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not valid JSON ({error.msg}); correct it or copy it again") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a UTF-8 text file; copy it again") from error
    except (ValueError, RecursionError) as error:  # A number of thousands of digits, or lists in lists without end.
        raise UserError(f"{path}: not JSON that can be read ({reason(error)}); copy it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}:1: a JSON object is expected, but a {type(content).__name__} was found; copy it again")
    return content


def stated_architecture(config: Mapping[str, Any], where: str) -> str:
    """Return the first of a config.json's `architectures`, or an empty string; UserError names `where`."""
    stated = config.get("architectures") or [""]
    if not isinstance(stated, list) or not all(isinstance(name, str) for name in stated):
        raise UserError(
            f"{where}: config.json has architectures {stated!r}, which is not a list of names; copy it again"
        )
    return stated[0]


def config_fields(config: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Take the named values from a config.json; an absent or null one has its default, as in transformers.

    Args:
      config: the parsed config.json.
      defaults: name -> default, whose type (int, float or str) the value must have.
      where: the file, for errors.

    Returns:
      name -> value, for every name of `defaults`.

    Raises:
      UserError: a value is of the wrong type, or a number is negative.
    """
    fields = {}
    for name, default in defaults.items():
        value = config.get(name)
        value = default if value is None else value
        allowed = (int, float) if isinstance(default, float) else type(default)
        if not isinstance(value, allowed) or isinstance(value, bool) != isinstance(default, bool):
            raise UserError(f"{where}: '{name}' must be {type(default).__name__}, not {value!r}; correct config.json")
        if isinstance(value, int | float) and value < 0:
            raise UserError(f"{where}: '{name}' must not be negative, but is {value}; correct config.json")
        if isinstance(value, int | float) and not value < 2**63:  # Also true for a NaN.
            raise UserError(f"{where}: '{name}' is {str(value)[:40]}, which no model has; correct config.json")
        fields[name] = value
    return fields
