"""A stand-in for the Hugging Face hub: repositories of models in memory, as huggingface_hub makes, fills and reads them."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_test"


class Hub:
    """Repositories: name -> branch -> commit, and commit -> file -> bytes.

    Attributes:
      private: the names of private repositories.
      messages: the messages of all commits.
    """

    def __init__(self) -> None:
        self.branches: dict[str, dict[str, str]] = {}
        self.commits: dict[str, dict[str, bytes]] = {"0" * 40: {}}
        self.private: set[str] = set()
        self.messages: list[str] = []

    def files(self, name: str, revision: str) -> dict[str, bytes] | None:
        commit = self.branches[name].get(revision, revision)
        return self.commits.get(commit)

    def commit(self, name: str, branch: str, lines: list[dict[str, Any]]) -> str:
        files = dict(self.commits[self.branches[name][branch]])
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.messages.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[commit] = files
        self.branches[name][branch] = commit
        return commit


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    """Serve a hub; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def answer(self, content: Any, status: int = 200, **headers: str) -> None:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def refused(self, code: str, status: int = 404) -> None:
            self.answer({"error": code}, status, X_Error_Code=code, X_Error_Message=code)

        def parts(self) -> list[str]:
            return [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]

        def body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def do_POST(self) -> None:
            body, parts = self.body(), self.parts()
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.answer({"error": "Invalid username or password."}, 401)
            if parts[-1] == "validate-yaml":
                return self.answer({"errors": [], "warnings": []})
            content = None if parts[-2] == "commit" else json.loads(body)
            if parts[1:] == ["repos", "create"]:
                name = f"{content['organization']}/{content['name']}"
                if name in hub.branches:
                    return self.answer({"error": "exists", "url": f"{address}/{name}"}, 409)
                hub.branches[name] = {"main": "0" * 40}
                hub.private |= {name} if content.get("private") or content.get("visibility") == "private" else set()
                return self.answer({"url": f"{address}/{name}"})
            name = "/".join(parts[2:4])
            if parts[4] == "branch":
                if parts[5] in hub.branches[name]:
                    return self.answer({"error": "exists"}, 409)
                hub.branches[name][parts[5]] = hub.branches[name]["main"]
                return self.answer({})
            if parts[4] == "preupload":
                paths = [
                    {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in content["files"]
                ]
                return self.answer({"files": paths})
            assert parts[4] == "commit", self.path
            commit = hub.commit(name, parts[5], [json.loads(line) for line in body.splitlines()])
            return self.answer({"commitUrl": f"{address}/{name}/commit/{commit}", "commitOid": commit, "success": True})

        def do_GET(self) -> None:
            parts = self.parts()
            api = parts[0] == "api"
            name = "/".join(parts[2:4] if api else parts[:2])
            if name not in hub.branches:
                return self.refused("RepoNotFound")
            rest = parts[4:] if api else parts[2:]
            revision = rest[1] if len(rest) > 1 else "main"
            files = hub.files(name, revision)
            if files is None:
                return self.refused("RevisionNotFound")
            commit = hub.branches[name].get(revision, revision)
            if api and rest[:1] == ["tree"]:
                return self.answer(
                    [
                        {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                        for path, data in sorted(files.items())
                    ]
                )
            if api:
                siblings = [{"rfilename": path} for path in sorted(files)]
                return self.answer({"id": name, "sha": commit, "siblings": siblings, "private": name in hub.private})
            path = "/".join(rest[2:])
            if path not in files:
                return self.refused("EntryNotFound")
            etag = hashlib.sha1(files[path]).hexdigest()
            return self.answer(files[path], ETag=f'"{etag}"', X_Repo_Commit=commit)

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield address
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
