"""Keys: who gets in, what nobody learns from trying, and what the file may look like."""

import hashlib
import hmac
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from memory_index import MemoryIndex
from serving import caller

from jaxretr.cli import main
from jaxretr.runtime.errors import UserError
from jaxretr.serve import keys as module
from jaxretr.serve.app import create_app
from jaxretr.serve.keys import Key, Keys, add_key
from jaxretr.serve.service import Service
from jaxretr.serve.settings import Settings

UPSERT = {"documents": [{"id": "a", "text": "x"}]}


@pytest.fixture
def made(tmp_path: Path) -> dict[str, str]:
    """Keys by their names, which are those of their scopes."""
    return {scope: add_key(tmp_path / "keys", scope, [scope]) for scope in ("read", "write", "admin")}


@pytest.fixture
def call(started: Service, made: dict[str, str], tmp_path: Path) -> Callable[..., Any]:
    return caller(create_app(started, keys=Keys.read(tmp_path / "keys")))


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer ", "Basic {read}", "Bearer {read}x", "Bearer \x80"])
def test_without_the_right_key_nothing_changes(
    call: Callable[..., Any], made: dict[str, str], started: Service, header: str | None
) -> None:
    headers = {} if header is None else {"Authorization": header.format(**made).encode("latin-1")}
    index = started.indexes.get("notes")
    assert isinstance(index, MemoryIndex)
    before = index._sequence
    for method, path, body in (
        ("POST", "/v1/notes/upsert", UPSERT),
        ("POST", "/v1/notes/delete", {"ids": ["a"]}),
        ("PUT", "/v1/indexes/new", None),
        ("GET", "/v1/notes/search?q=a", None),
        ("POST", "/v1/embeddings", {"input": "a"}),
        ("GET", "/metrics", None),
        ("GET", "/info", None),
        ("POST", "/v1/unknown/path", None),
    ):
        problem = call(method, path, json=body, headers=headers)
        assert (problem.status_code, problem.json()["error"]["type"]) == (401, "authentication"), path
        assert problem.headers["www-authenticate"] == "Bearer"
    assert index._sequence == before


def test_scopes(call: Callable[..., Any], made: dict[str, str]) -> None:
    allowed = {
        name: [
            call(method, path, json=body, headers={"Authorization": f"Bearer {key}"}).status_code != 403
            for method, path, body in (
                ("GET", "/v1/notes/search?q=a", None),
                ("POST", "/v1/notes/upsert", {}),
                ("POST", "/v1/notes/reindex", {}),
            )
        ]
        for name, key in made.items()
    }
    assert allowed == {"read": [True, False, False], "write": [True, True, False], "admin": [True, True, True]}


def test_the_other_header_and_the_open_paths(call: Callable[..., Any], made: dict[str, str]) -> None:
    assert call("GET", "/info", headers={"x-api-key": made["read"]}).status_code == 200
    for path in ("/health", "/ready", "/openapi.json", "/docs"):
        assert call("GET", path).status_code == 200, path
    # With a key that has not the scope, an open path stays open.
    assert call("GET", "/health", headers={"Authorization": "Bearer wrong"}).status_code == 200


def test_all_keys_are_compared_in_constant_time(made: dict[str, str], tmp_path: Path, monkeypatch: Any) -> None:
    keys = Keys.read(tmp_path / "keys")
    compared: list[str] = []
    real = hmac.compare_digest

    class Watched:
        @staticmethod
        def compare_digest(left: str, right: str) -> bool:
            compared.append(right)
            return real(left, right)

    monkeypatch.setattr(module, "hmac", Watched)
    for presented in (made["read"], "wrong"):
        compared.clear()
        keys.find(presented)
        digest = hashlib.sha256(presented.encode()).hexdigest()
        assert compared == [digest] * 3


def test_the_command_prints_a_key_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys"
    assert main(["serve", "keys", "--add", "page", "--scopes", "read,write", "--keys", str(file)]) == 0
    key = capsys.readouterr().out.strip()
    assert key not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    found = Keys.read(file).find(key)
    assert found == Key("page", frozenset({"read", "write"}), hashlib.sha256(key.encode()).hexdigest())
    assert main(["serve", "keys", "--add", "page", "--keys", str(file)]) == 1
    assert "has a key 'page'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["", "\n\n", "# a comment", "bob read {0}", "bob read {0}\r\n\r\n# end\r\n", "\ufeff# a comment\nbob read {0}"],
)
def test_keys_are_added_to_any_file_that_can_be_read(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text.format("a" * 64), newline="")
    made = [add_key(file, name, ["read"]) for name in ("one", "two")]
    keys = Keys.read(file)
    assert [found.name for key in made if (found := keys.find(key))] == ["one", "two"]
    assert len(keys) == 2 + ("bob" in text)


def test_keys_that_are_added_at_once_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda n: add_key(file, f"key{n}", ["read"]), range(64)))
        again = [pool.submit(add_key, file, "same", ["read"]) for _ in range(16)]
    assert sum(attempt.exception() is None for attempt in again) == 1
    keys = Keys.read(file)
    assert len(keys) == 65
    assert all(keys.find(key) for key in made)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no key"),
        ("# nothing\n\n", "no key"),
        ("bob read\n", ":1: not NAME SCOPES SHA256HEX"),
        ("bob reads {0}\n", "no scope 'reads'; did you mean 'read'?"),
        ("bob read {0}\nbob read {1}\n", ":2: the name or the key occurs twice"),
        ("bob read {0}\namy read {0}\n", ":2: the name or the key occurs twice"),
        ("bob read sk-secret\n", ":1: not NAME"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, what: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text.format("a" * 64, "b" * 64))
    with pytest.raises(UserError) as error:
        Keys.read(file)
    assert what in str(error.value)
    assert "sk-secret" not in str(error.value)


def test_a_key_that_asks_too_often_is_told_when_to_come_back(
    started: Service, made: dict[str, str], tmp_path: Path
) -> None:
    app = create_app(started, Settings(rate="2/minute"), keys=Keys.read(tmp_path / "keys"))
    call = caller(app)
    read, write = ({"Authorization": f"Bearer {made[name]}"} for name in ("read", "write"))
    assert [call("GET", "/v1/models", headers=read).status_code for _ in range(3)] == [200, 200, 429]
    problem = call("GET", "/v1/models", headers=read)
    assert problem.json()["error"]["type"] == "overloaded"
    assert 1 <= int(problem.headers["retry-after"]) <= 60
    assert call("GET", "/v1/models", headers=write).status_code == 200
    assert call("GET", "/health", headers=read).status_code == 200
