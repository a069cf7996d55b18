"""The process: it listens at once, answers that it is starting until it is ready, and ends with accepted requests done."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel import memory
from jaxretr.serve.answer_json import Answer
from jaxretr.serve.app import create_app
from jaxretr.serve.keys import Keys
from jaxretr.serve.logs import RequestLog
from jaxretr.serve.page import PAGE, answer_page
from jaxretr.serve.problems import body_of
from jaxretr.serve.service import Service
from jaxretr.serve.settings import Settings

# Seconds within which a request's headers must arrive.
_HEADER_SECONDS = 10.0

# Seconds after which a connection without a request is closed.
_IDLE_SECONDS = 30

# Seconds for which the service answers, after a signal, that it is stopping, so that no client is cut off.
_LAST_WORDS = 0.5

# Seconds that slow clients have to read the rest of their answers, once everything is computed.
_FLUSH_SECONDS = 5


def check_alone(workers: int | None) -> None:
    """Refuse to serve with several worker processes.

    Raises:
      UsageError: `workers`, or the environment's WEB_CONCURRENCY, asks for more than one.
    """
    concurrency = os.environ.get("WEB_CONCURRENCY", "1")
    what = f"workers={workers}" if workers is not None and workers != 1 else None
    what = what or (f"WEB_CONCURRENCY={concurrency}" if concurrency not in ("", "1") else None)
    if what is not None:
        raise UsageError(
            f"{what}: only one process can serve, since each would load the model and the indexes again, share no batches, "
            "and could not write the same index; start several services, each with its own index, behind a proxy"
        )


def listen(host: str, port: int) -> socket.socket:
    """Open the socket to listen on, before anything is loaded.

    Raises:
      UserError: the address is not available.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise UserError(f"{host}:{port}: {error.strerror or error}; give another host= or port=") from None
    return listener


def run(
    load: Callable[[], Service],
    settings: Settings,
    *,
    listener: socket.socket,
    keys: Keys | None = None,
    lines: RequestLog | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; then finish accepted requests, and close the indexes.

    Args:
      load: a function that makes the service; called in a thread, while /health answers that it is starting.
      listener: the socket to listen on.
      keys: API keys with their scopes; None: everything is open.
      lines: the log; by default on stderr.

    Raises:
      Whatever `load` raises.
    """
    lines = lines or RequestLog(settings.log_texts)
    door = _Door(load, settings, keys, lines, _url(listener))
    config = uvicorn.Config(
        door,
        http=_TimedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_FLUSH_SECONDS,
    )
    server = _Server(config, door)
    door.fail = lambda: setattr(server, "should_exit", True)
    server.run([listener])
    if door.error is not None:
        raise door.error
    lines.event("stopped while starting" if door.loads() else "stopped")
    if any(thread.daemon for thread in threading.enumerate()):
        # It loads the service, or makes a snapshot, which the database does not need. A thread that computes cannot be
        # stopped, and ending Python under it would look like a crash.
        os._exit(0)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Door:
    """The ASGI app that uvicorn sees: the service's once it is ready; until then it answers that it is starting."""

    def __init__(self, load: Callable[[], Service], settings: Settings, keys: Keys | None, lines: RequestLog, url: str):
        self._load, self._settings, self._keys, self._lines, self._url = load, settings, keys, lines, url
        self._app: ASGIApp | None = None
        self._ending = asyncio.Event()
        self._thread: threading.Thread | None = None
        self.service: Service | None = None
        self.error: BaseException | None = None
        self.fail: Callable[[], None] = lambda: None
        self.active = 0
        """Requests that are not answered yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        if self._app is None:
            return await self._not_yet(scope, receive, send)
        self.active += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self.active -= 1

    def loads(self) -> bool:
        """Whether the service is still being loaded."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Make the service admit no more requests."""
        if self.service is not None:
            self.service.stop()

    async def _not_yet(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] in ("/health", "/ready"):
            answer = Answer({"status": "starting"}, 503, headers={"Cache-Control": "no-store"})
        elif scope["path"] == "/" and scope["method"] == "GET":  # The page waits for the service.
            answer = answer_page(PAGE, Request(scope))
        else:
            answer = Answer(
                body_of("unavailable", "the service is starting; ask /ready, and try again"), 503, {"Retry-After": "1"}
            )
        await answer(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        running = asyncio.ensure_future(self._run())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._ending.set()
        if self.service is None:
            running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await send({"type": "lifespan.shutdown.complete"})

    async def _run(self) -> None:
        """The service's life, in one task, which enters and leaves the app's lifespan."""
        began = time.monotonic()
        try:
            service, app = await self._loaded()
            try:
                async with app.router.lifespan_context(app):
                    self.service, self._app = service, app
                    if not gc.isenabled():  # As the command starts it.
                        gc.freeze()  # What is loaded stays: no later collection looks through it.
                        gc.enable()
                    self._lines.event(
                        "ready",
                        seconds=round(time.monotonic() - began, 2),
                        url=self._url,
                        indexes=await asyncio.to_thread(service.indexes.sizes),
                        memory=memory.resident(),
                    )
                    await self._ending.wait()
            finally:
                await asyncio.to_thread(service.close)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.error = error
            self.fail()

    async def _loaded(self) -> tuple[Service, FastAPI]:
        """Load and start the service in a thread, which cannot be stopped; returns it with its app."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[Service, FastAPI]] = loop.create_future()

        def tell(what: Callable[[Any], None], value: Any) -> None:
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                loop.call_soon_threadsafe(lambda: future.done() or what(value))

        def load() -> None:
            try:
                service = self._load()
                app = create_app(service, self._settings, self._keys, self._lines)
                service.start()
                tell(future.set_result, (service, app))
            except BaseException as error:
                tell(future.set_exception, error)

        self._thread = threading.Thread(target=load, name="load", daemon=True)
        self._thread.start()
        return await future


class _Server(uvicorn.Server):
    """Exits once accepted requests are answered, or the time for that is over."""

    def __init__(self, config: uvicorn.Config, door: _Door):
        super().__init__(config)
        self._door = door
        self._asked_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Override uvicorn's: handles a signal. A second SIGINT exits at once."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._door.stop()
        elif sig == signal.SIGINT:
            self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Override uvicorn's, which is called ten times a second: whether to exit."""
        if await super().on_tick(counter):
            return True
        if self._asked_at is None:
            return False
        waited = time.monotonic() - self._asked_at
        if self._door.service is None or waited > self._door._settings.grace:
            return True
        return not self._door.active and waited > _LAST_WORDS


class _TimedProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose request headers do not arrive in time."""

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._waits():
            self._expect()
        elif self._due is not None:
            self._due.cancel()
            self._due = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._due is not None:
            self._due.cancel()

    def _waits(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect(self) -> None:
        if self._due is None:
            self._due = self.loop.call_later(_HEADER_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self._due = None
        if self._waits() and not self.transport.is_closing():
            self.transport.abort()
