"""Servers that speak S3's and Google's protocols, on this machine and in memory, and can be told to fail."""

import functools
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from processes import free_port


@dataclass
class Server:
    """A store of one kind, with one bucket.

    Attributes:
      scheme: "gs" or "s3".
      environment: the variables with which its clients find it.
      failing: how many of the next requests are answered with 503.
      only: substring of the method and path of those that fail.
      asked: methods and paths of all requests.
    """

    scheme: str
    environment: dict[str, str]
    failing: int = 0
    only: str = ""
    asked: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fails(self, method: str, path: str) -> bool:
        with self.lock:
            self.asked.append(f"{method} {path}")
            if not self.failing or self.only not in self.asked[-1]:
                return False
            self.failing -= 1
            return True


@functools.cache
def s3_server() -> Server:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app, port = DomainDispatcherApplication(create_backend_app), free_port()
    server = Server(
        "s3",
        {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        },
    )

    def watched(environ: dict[str, Any], start_response: Any) -> Any:
        if server.fails(environ["REQUEST_METHOD"], environ["PATH_INFO"]):
            start_response("503 Service Unavailable", [("Content-Length", "0")])
            return [b""]
        return app(environ, start_response)

    class Quiet(WSGIRequestHandler):
        def log(self, *_: Any) -> None:
            pass

    threading.Thread(
        target=make_server("127.0.0.1", port, watched, threaded=True, request_handler=Quiet).serve_forever, daemon=True
    ).start()
    return server


@functools.cache
def gs_server() -> Server:
    from gcp_storage_emulator import server as emulator

    for name in ("gcp_storage_emulator", emulator.logger.name):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = Server(
        "gs",
        {"STORAGE_EMULATOR_HOST": url, "TENSORSTORE_GCS_HTTP_URL": url, "GOOGLE_CLOUD_PROJECT": "test"},
    )
    handle = emulator.Router.handle

    def watched(router: Any, method: str) -> None:
        handler = router._request_handler
        if not server.fails(method, handler.path):
            handle(router, method)
            return
        handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        handler.send_response(503)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    emulator.Router.handle = watched
    emulator.RequestHandler.log_message = lambda *_: None
    emulated = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    # Otherwise the tests would never end.
    emulated._api.daemon = True
    emulated.start()
    # Not only while a test runs: what is closed late, by a thread of a failed write, must not ask Google.
    os.environ["STORAGE_EMULATOR_HOST"] = url
    return server


def serving(scheme: str) -> Iterator[Server]:
    """A server with an empty bucket named "bucket"; the process's environment points to it meanwhile."""
    from jaxretr.runtime.storage.paths import filesystem

    server = {"gs": gs_server, "s3": s3_server}[scheme]()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "JAXRETR_STORAGE"))]:
            patch.delenv(name)
        for name, value in server.environment.items():
            patch.setenv(name, value)
        server.failing, server.only = 0, ""
        store = filesystem(f"{scheme}://bucket")
        if not store.exists("bucket"):
            store.mkdir("bucket")
        for path in store.find("bucket"):
            store.rm_file(path)
        server.asked.clear()
        yield server


def objects(path: str) -> dict[str, bytes]:
    """Everything below a folder in a bucket, by its name there."""
    from jaxretr.runtime.storage.paths import filesystem

    store = filesystem(path)
    root = path.split("://")[1].rstrip("/")
    return {name[len(root) + 1 :]: store.cat_file(name) for name in store.find(root)}
