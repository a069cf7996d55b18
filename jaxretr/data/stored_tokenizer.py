"""A tokenizer that jaxretr saved, read without transformers, whose import is a quarter of a short command's time."""

import copy
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from jaxretr.data.tokens import from_transformers, tokenizer_fingerprint

_CONFIG = "tokenizer_config.json"
# What transformers saves, with further templates of chats; a folder of ours has no other files for the tokenizer.
_FILES = ("tokenizer.json", _CONFIG, "chat_template.jinja")
_TEMPLATES = "additional_chat_templates"


class StoredTokenizer:
    """A folder's tokenizer, which makes the rows of ids that AutoTokenizer's makes.

    AutoTokenizer reads the same files once all else is asked for, or an attribute is set; from then on it answers everything.

    Attributes:
      backend_tokenizer: the Rust library's tokenizer.
      name_or_path: the folder, for messages.
      model_max_length: the most ids that the model reads.
      cls_token_id, sep_token_id, eos_token_id: ids, or None.
    """

    def __init__(self, folder: Path, files: Mapping[str, bytes], fingerprint: str | None):
        config: dict[str, Any] = json.loads(files[_CONFIG])
        backend = tokenizers.Tokenizer.from_buffer(files["tokenizer.json"])
        known = {
            "backend_tokenizer": backend,
            "name_or_path": str(folder),
            "model_max_length": config["model_max_length"],
            **{f"{name}_token_id": _id(backend, config.get(f"{name}_token")) for name in ("cls", "sep", "eos")},
        }
        vars(self).update(_files=files, _known=known, _fingerprint=fingerprint, _state=_state(backend))

    @property
    def fingerprint(self) -> str | None:
        """The `tokenizer_fingerprint` that the folder states; None of a tokenizer that may have been changed."""
        return self._fingerprint if self._is_as_read() else None

    def _is_as_read(self) -> bool:
        return "_whole" not in vars(self) and _state(self._known["backend_tokenizer"]) == self._state

    def get_vocab(self) -> dict[str, int]:
        """All tokens with their ids."""
        return self.backend_tokenizer.get_vocab()

    def __len__(self) -> int:
        """The number of tokens, added ones included."""
        return self.backend_tokenizer.get_vocab_size()

    def save_pretrained(self, folder: str | Path, **options: Any) -> Any:
        """Write the files as they were read; AutoTokenizer's writes what was changed since."""
        if options or not self._is_as_read():
            return self._whole.save_pretrained(folder, **options)
        return _write(Path(folder), self._files)

    @cached_property
    def _whole(self) -> Any:
        auto = from_transformers("AutoTokenizer")
        with tempfile.TemporaryDirectory() as folder:
            _write(Path(folder), self._files)
            whole = auto.from_pretrained(folder, local_files_only=True)
        whole.name_or_path = self._known["name_or_path"]
        whole._tokenizer = self._known["backend_tokenizer"]  # It may have been changed since.
        return whole

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that was read, or one that only AutoTokenizer's has."""
        if name.startswith("_"):  # Of an instance that is just being made, or copied.
            raise AttributeError(name)
        if "_whole" not in vars(self) and name in self._known:
            return self._known[name]
        return getattr(self._whole, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set it in AutoTokenizer's."""
        setattr(self._whole, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call AutoTokenizer's."""
        return self._whole(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> Any:
        """A copy of AutoTokenizer's, to be changed."""
        return copy.deepcopy(self._whole, memo)


def _id(backend: tokenizers.Tokenizer, token: str | Mapping[str, Any] | None) -> int | None:
    content = token["content"] if isinstance(token, Mapping) else token
    return None if content is None else backend.token_to_id(content)


def _state(backend: tokenizers.Tokenizer) -> bytes:
    return hashlib.sha256(backend.to_str().encode()).digest()


def statement(folder: Path, tokenizer: Any) -> dict[str, str]:
    """Describe a tokenizer that was just saved in a model's folder, for the folder to say so: `stored` reads it by that.

    Returns:
      An empty dict where only transformers reads it: its own class changes what is in tokenizer.json, or has no such file.
    """
    files = dict(_read(folder))
    config = json.loads(files.get(_CONFIG, b"{}"))
    if "tokenizer.json" not in files or not isinstance(config.get("model_max_length"), int | float):
        return {}
    fingerprint = tokenizer_fingerprint(tokenizer)
    read: Any = StoredTokenizer(folder, files, None)
    if tokenizer_fingerprint(read) != fingerprint:
        return {}
    return {"library": tokenizers.__version__, "files": _digest(files), "fingerprint": fingerprint}


def stored(folder: Path, stated: Any) -> StoredTokenizer | None:
    """The tokenizer of a folder, or None where what it states is no `statement` of these files, or of another library."""
    files = dict(_read(folder))
    return StoredTokenizer(folder, files, stated["fingerprint"]) if _is_of(files, stated) else None


def is_stored(folder: Path, stated: Any) -> bool:
    """Whether `stored` reads a folder's tokenizer."""
    return _is_of(dict(_read(folder)), stated)


def _is_of(files: Mapping[str, bytes], stated: Any) -> bool:
    match stated:
        case {"library": tokenizers.__version__, "files": str(digest), "fingerprint": str()}:
            return digest == _digest(files)
    return False


def _read(folder: Path) -> Iterator[tuple[str, bytes]]:
    templates = sorted(path.name for path in (folder / _TEMPLATES).glob("*.jinja"))
    for name in (*_FILES, *(f"{_TEMPLATES}/{template}" for template in templates)):
        if (folder / name).is_file():
            yield name, (folder / name).read_bytes()


def _write(folder: Path, files: Mapping[str, bytes]) -> tuple[str, ...]:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return tuple(str(folder / name) for name in files)


def _digest(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
