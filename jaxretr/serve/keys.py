"""API keys: who may do what. The file holds names, scopes and digests; a key itself is shown once and stored nowhere."""

import fcntl
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from jaxretr.runtime.errors import UserError, did_you_mean
from jaxretr.serve.problems import Forbidden, Unauthenticated

Scope = Literal["read", "write", "admin"]
SCOPES: tuple[str, ...] = get_args(Scope)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Key:
    """An API key: a line of the file of keys.

    Attributes:
      name: the name that logs show in place of the key.
      scopes: the permissions of the key; "admin" includes all others, and "write" includes "read".
      digest: sha256 of the key, hexadecimal.
    """

    name: str
    scopes: frozenset[str]
    digest: str

    def may(self, scope: Scope) -> bool:
        """Whether the key has the scope, or one that includes it."""
        return bool(self.scopes & set(SCOPES[SCOPES.index(scope) :]))


class Keys:
    """The API keys of a file, which requests are checked against."""

    def __init__(self, keys: Sequence[Key]):
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    @classmethod
    def read(cls, path: Path) -> "Keys":
        """Read a file of lines `NAME SCOPES SHA256HEX`; empty lines and those that begin with # are skipped.

        Raises:
          UserError: it cannot be read, a line is wrong, a name or a key occurs twice, or there is no key.
        """
        try:
            keys = _parsed(path, path.read_bytes())
        except OSError as error:
            raise UserError(
                f"{path}: {error.strerror}; make it with: jaxretr serve keys --add NAME --keys {path}"
            ) from None
        if not keys:
            raise UserError(f"{path}: no key; make one with: jaxretr serve keys --add NAME --keys {path}")
        return cls(keys)

    def find(self, presented: str) -> Key | None:
        """The key that was presented, None if it is unknown; the time taken does not depend on it."""
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).hexdigest()
        match = None
        for key in self._keys:  # All of them, so that the time does not reveal the position of a match.
            if hmac.compare_digest(key.digest, digest):
                match = key
        return match

    def check(self, headers: Mapping[str, str], scope: Scope) -> Key:
        """The key of a request, once it is known to have the scope.

        Raises:
          Unauthenticated: no key, or a wrong one.
          Forbidden: it lacks the scope.
        """
        kind, _, presented = headers.get("authorization", "").partition(" ")
        presented = presented.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
        if not presented:
            raise Unauthenticated("a key is needed; send the header Authorization: Bearer KEY")
        key = self.find(presented)
        if key is None:
            raise Unauthenticated("the key is not known; check it")
        if not key.may(scope):
            raise Forbidden(f"the key {key.name!r} has no scope {scope!r}; use one that has it")
        return key


def _parsed(path: Path, content: bytes) -> list[Key]:
    """The keys of a file's content; see `Keys.read`."""
    try:
        lines = re.split(r"\r\n?|\n", content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8; make it with: jaxretr serve keys --add NAME --keys {path}") from None
    keys: list[Key] = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3 or not _NAME.fullmatch(words[0]) or not _DIGEST.fullmatch(words[2]):
            # The line is not quoted: a key that was put there by mistake must not get into a log.
            raise UserError(f"{path}:{number}: not NAME SCOPES SHA256HEX; make it with: jaxretr serve keys --add NAME")
        key = Key(words[0], frozenset(check_scopes(words[1].split(","), f"{path}:{number}")), words[2])
        if any(key.name == other.name or key.digest == other.digest for other in keys):
            raise UserError(f"{path}:{number}: the name or the key occurs twice; remove one of the lines")
        keys.append(key)
    return keys


def check_scopes(names: Iterable[str], where: str) -> list[str]:
    """Return the scopes, each once; raise UserError for an unknown one."""
    scopes = list(dict.fromkeys(names))
    for name in scopes:
        if name not in SCOPES:
            hint = did_you_mean(name, SCOPES) or f"; there are {', '.join(SCOPES)}"
            raise UserError(f"{where}: no scope {name!r}{hint}")
    return scopes


def add_key(path: Path, name: str, scopes: Sequence[str]) -> str:
    """Create a key and add its digest to the file, which only its owner may read.

    Args:
      path: the file; made if there is none.
      name: what logs call the key.
      scopes: read, write and admin, one or several.

    Returns:
      The key, which is stored nowhere.

    Raises:
      UserError: the name is invalid or taken, there is no such scope, or the file cannot be read or written.
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"name={name}: give 1 to 64 letters, digits, '.', '_' and '-'")
    unique_scopes = check_scopes(scopes, "scopes=")
    key = f"jr_{secrets.token_urlsafe(32)}"
    line = f"{name} {','.join(unique_scopes)} {hashlib.sha256(key.encode()).hexdigest()}\n".encode()
    try:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # Until it is closed: keys that are added at once wait for each other.
            content = file.read()
            if any(key.name == name for key in _parsed(path, content)):
                raise UserError(f"{path}: has a key {name!r}; give another name, or remove that line")
            file.write(line if content.endswith(b"\n") or not content else b"\n" + line)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a file that can be written") from None
    return key


# ---- what a request needs --------------------------------------------------------------------------------------------

_OPEN = ("/", "/health", "/ready", "/docs", "/openapi.json", "/favicon.ico")
_READ = re.compile(r"/v1/(embeddings(/tokens)?|[^/]+/search)|/v[12]/rerank|/mcp(/.*)?")
_WRITE = re.compile(r"/v1/indexes/[^/]+|/v1/[^/]+/(upsert|delete|doc(/.*)?)", re.DOTALL)


def needed_scope(method: str, path: str) -> Scope | None:
    """The scope that a request needs; None: no key is needed. An unknown path needs "admin", except to read."""
    if path in _OPEN and method in ("GET", "HEAD"):
        return None
    if method in ("GET", "HEAD") or (method == "POST" and _READ.fullmatch(path)):
        return "read"
    if method == "DELETE" and path.startswith("/v1/indexes/"):
        return "admin"
    return "write" if _WRITE.fullmatch(path) else "admin"
