"""`jaxretr serve`: the HTTP service."""

import argparse
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from jaxretr.cli.parsing import Commands, add_engine, add_model, add_precision, add_scorer, at_least_one
from jaxretr.runtime.errors import UsageError


def add_commands(commands: Commands) -> None:
    """Add the command and its action."""
    parser = commands.command(
        "serve",
        "Serve embeddings, search and re-ranking over HTTP: OpenAI's and Cohere's requests, indexes that are searched\n"
        "while they are written, and a search page. Requests that wait share batches.",
        "jaxretr serve runs/art --index runs/art/embeddings --corpus corpus.jsonl\n"
        "  jaxretr serve runs/art --index wiki=emb --corpus wiki=corpus.jsonl --index notes=indexes/notes --data indexes\n"
        "  jaxretr serve runs/art --index indexes/live --keys keys.txt --host 0.0.0.0",
    )
    add_model(parser, encodes=False)
    add = parser.add_argument
    add(
        "--index",
        metavar="[NAME=]DIR",
        action="append",
        default=[],
        help="a live index (made if there is none), an embedding store, an exact or certified index, pgvector:DSN or "
        "lance:DIR; repeat for several",
    )
    add(
        "--corpus",
        metavar="[NAME=]FILE",
        action="append",
        default=[],
        help="titles and texts of a store's, exact or certified index's passages",
    )
    add("--data", metavar="DIR", help="where indexes are made that requests ask for")
    add_engine(
        add, "whose codes propose candidates in large live indexes (default: scann; faiss where ScaNN does not work)"
    )
    add("--reranker", metavar="MODEL", help="a cross-encoder, causal language model or T5, for re-ranking")
    add_scorer(add, "reranker-")
    add_precision(add)
    add = parser.add_argument_group("network").add_argument
    add("--host", metavar="ADDRESS", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=_port, default=8080, metavar="N", help="port; 0 for any (default: %(default)s)")
    add("--keys", metavar="FILE", help="API keys, made with jaxretr serve keys")
    add(
        "--open",
        action="store_true",
        help="listen on another address without keys: whoever reaches it may do everything",
    )
    add(
        "--allow-origin",
        metavar="ORIGIN",
        action="append",
        default=[],
        help="let pages of this origin call the service, such as https://example.org (CORS); repeat for several",
    )
    add("--workers", type=at_least_one, metavar="N", help="refused unless 1: one process serves")
    add = parser.add_argument_group("limits").add_argument
    add("--max-queue", type=at_least_one, default=512, metavar="N", help="requests at a time (default: %(default)s)")
    add(
        "--max-queue-tokens",
        type=at_least_one,
        default=2**18,
        metavar="N",
        help="tokens that wait for the model (default: %(default)s)",
    )
    add("--max-batch-tokens", type=at_least_one, metavar="N", help="tokens of a batch (default: chosen for the device)")
    add(
        "--max-body",
        type=at_least_one,
        default=8 * 2**20,
        metavar="BYTES",
        help="of a request (default: %(default)s)",
    )
    add("--rate", metavar="N/TIME", help="requests of a key, or without keys of an address, such as 100/minute")
    add(
        "--grace",
        type=at_least_one,
        default=30,
        metavar="SECONDS",
        help="to finish what was accepted, after a signal to stop (default: %(default)s)",
    )
    add("--log-texts", action="store_true", help="quote queries in the log")

    parser = commands.command(
        "serve keys",
        "Make an API key: it is printed once, and the file keeps its digest.",
        "jaxretr serve keys --add search-page --scopes read --keys keys.txt",
    )
    add = parser.add_argument
    add("--add", metavar="NAME", required=True, help="what logs call the key")
    add("--scopes", default="read", help="read, write and admin, separated by commas (default: %(default)s)")
    add("--keys", metavar="FILE", required=True, help="the file; made if there is none")


def run(args: argparse.Namespace) -> None:
    """Serve until a signal stops it."""
    with _ended_by_signals():
        _serve(args)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End the process at a signal to stop, until the server handles such signals itself: nothing is open before.

    An exception, as Python raises for SIGINT, is lost where it meets a callback, and JAX has one at each garbage collection.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        os.write(2, b"jaxretr: stopped while starting\n")
        os._exit(0)

    earlier = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _serve(args: argparse.Namespace) -> None:
    from jaxretr.runtime.errors import import_extra

    for package in ("fastapi", "uvicorn", "prometheus_client", "limits"):
        import_extra(package, "serve")
    from jaxretr.cli.model import load_model
    from jaxretr.indexes.certified.engines import engine_of
    from jaxretr.models.any_scorer import load_scorer
    from jaxretr.models.hub.dual_encoder_folder import check_finished
    from jaxretr.serve import server
    from jaxretr.serve.keys import Keys
    from jaxretr.serve.loading import Parts
    from jaxretr.serve.logs import RequestLog, log_as_json
    from jaxretr.serve.rates import Rates
    from jaxretr.serve.settings import Settings

    server.check_alone(args.workers)
    if args.open and args.keys:
        raise UsageError("--open and --keys: with keys the service is not open; leave one of them out")
    local = args.host in ("127.0.0.1", "::1", "localhost")
    if not (local or args.keys or args.open):
        raise UsageError(
            f"--host {args.host}: others could reach the service; give --keys FILE, or --open to let them in without"
        )
    if args.reranker is None and (args.reranker_kind or args.reranker_max_length):
        raise UsageError("--reranker-kind and --reranker-max-length are for --reranker MODEL: give that as well")
    settings = Settings(
        max_body=args.max_body,
        max_queue=args.max_queue,
        max_queue_tokens=args.max_queue_tokens,
        max_batch_tokens=args.max_batch_tokens,
        rate=args.rate,
        allow_origins=tuple(args.allow_origin),
        log_texts=args.log_texts,
        grace=args.grace,
    )
    if args.engine is not None:
        engine_of(args.engine).require()
    Rates(settings.rate)  # Refuses a wrong rate before the model is loaded.
    keys = Keys.read(Path(args.keys)) if args.keys else None

    def load_reranker():
        kind, length = args.reranker_kind or "auto", args.reranker_max_length
        return load_scorer(args.reranker, kind=kind, max_length=length, dtype=args.compute)

    parts = Parts(
        encoder=lambda: load_model(args),
        indexes=args.index,
        corpora=args.corpus,
        data=Path(args.data).expanduser() if args.data else None,
        reranker=load_reranker if args.reranker else None,
        settings=settings,
        engine=args.engine,
    )
    check_finished(args.model)
    listener = server.listen(args.host, args.port)
    lines = RequestLog(settings.log_texts)
    with log_as_json(lines):
        server.run(parts.load, settings, listener=listener, keys=keys, lines=lines)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text[:6]) > 65535:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a port, 0 to 65535")
    return int(text)
