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

from jaxretr.data.tokens import tokenizer_fingerprint

_CONFIG = "tokenizer_config.json"
# What transformers saves; a folder of ours has no other files for the tokenizer.
_FILES = ("tokenizer.json", _CONFIG, "chat_template.jinja")


class StoredTokenizer:
    """What AutoTokenizer makes of a folder, as far as rows of ids need it. For all else AutoTokenizer reads the same files.

    Attributes:
      backend_tokenizer: the Rust library's tokenizer.
      name_or_path: the folder, for messages.
      fingerprint: the `tokenizer_fingerprint` of AutoTokenizer's, which was found to be this one's as well.
      model_max_length: the most ids that the model reads.
    """

    def __init__(self, folder: Path, files: Mapping[str, bytes], fingerprint: str | None):
        self._files, self.name_or_path, self.fingerprint = files, str(folder), fingerprint
        self.backend_tokenizer = tokenizers.Tokenizer.from_buffer(files["tokenizer.json"])
        self._config: dict[str, Any] = json.loads(files[_CONFIG])
        self.model_max_length: int | float = self._config["model_max_length"]
        for name in ("cls", "sep", "eos"):
            setattr(self, f"{name}_token_id", self._id(self._config.get(f"{name}_token")))

    def _id(self, token: str | Mapping[str, Any] | None) -> int | None:
        content = token["content"] if isinstance(token, Mapping) else token
        return None if content is None else self.backend_tokenizer.token_to_id(content)

    def get_vocab(self) -> dict[str, int]:
        """All tokens with their ids."""
        return self.backend_tokenizer.get_vocab()

    def __len__(self) -> int:
        """The number of tokens, added ones included."""
        return self.backend_tokenizer.get_vocab_size()

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the files as they were read."""
        for name, content in self._files.items():
            (Path(folder) / name).write_bytes(content)

    @cached_property
    def _whole(self) -> Any:
        from transformers import AutoTokenizer

        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            whole: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        whole.name_or_path = self.name_or_path
        return whole

    def __getattr__(self, name: str) -> Any:
        """What only AutoTokenizer's has."""
        if name.startswith("_"):  # Of an instance that is just being made, or copied.
            raise AttributeError(name)
        return getattr(self._whole, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What AutoTokenizer's returns."""
        return self._whole(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> Any:
        """A copy of AutoTokenizer's, to be changed."""
        return copy.deepcopy(self._whole, memo)


def statement(folder: Path, tokenizer: Any) -> dict[str, str]:
    """What a model's folder says of a tokenizer that was just saved in it: `stored` reads it by that.

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


def stored(folder: Path, stated: Mapping[str, str]) -> StoredTokenizer | None:
    """The tokenizer of a folder, or None where its `statement` is not of these files, or of another library."""
    if stated.get("library") != tokenizers.__version__:
        return None
    files = dict(_read(folder))
    return StoredTokenizer(folder, files, stated["fingerprint"]) if stated.get("files") == _digest(files) else None


def _read(folder: Path) -> Iterator[tuple[str, bytes]]:
    for name in _FILES:
        if (folder / name).is_file():
            yield name, (folder / name).read_bytes()


def _digest(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
