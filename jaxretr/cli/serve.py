"""`jaxretr serve`: the HTTP service."""

import argparse
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from jaxretr.cli.parsing import Commands, add_model, add_scorer, at_least_one, given
from jaxretr.runtime.errors import UsageError


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "serve",
        "Serve embeddings, search and re-ranking over HTTP: OpenAI's and Cohere's requests, indexes that are searched\n"
        "while they are written, and a search page. Requests that wait share batches.",
        "jaxretr serve runs/art --index runs/art/embeddings --corpus corpus.jsonl\n"
        "  jaxretr serve runs/art --index wiki=emb --corpus wiki=corpus.jsonl --index notes=indexes/notes --data indexes\n"
        "  jaxretr serve runs/art --index indexes/live --keys keys.txt --host 0.0.0.0",
    )
    add_model(parser)
    options = parser.options_of("jaxretr.serve.loading:Parts")
    options.add("indexes", option="--index", metavar="[NAME=]DIR")
    options.add("corpora", option="--corpus", metavar="[NAME=]FILE")
    options.add("data", metavar="DIR", type=lambda text: Path(text).expanduser())
    options.add("engine")
    add_scorer(parser, parser, "reranker")
    group = parser.add_argument_group("network")
    add = group.add_argument
    add("--host", metavar="ADDRESS", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=_port, default=8080, metavar="N", help="port; 0 for any (default: %(default)s)")
    add("--keys", metavar="FILE", help="API keys, made with jaxretr serve keys")
    add(
        "--open",
        action="store_true",
        help="listen on another address without keys: whoever reaches it may do everything",
    )
    options = parser.options_of("jaxretr.serve.settings:Settings", to=group)
    options.add("allow_origins", option="--allow-origin", metavar="ORIGIN")
    add("--workers", type=at_least_one, metavar="N", help="refused unless 1: one process serves")
    options = parser.options_of("jaxretr.serve.settings:Settings", to=parser.add_argument_group("limits"))
    options.add("max_queue", "max_queue_tokens", "max_batch_tokens")
    options.add("max_body", metavar="BYTES")
    options.add("rate", metavar="N/TIME")
    options.add("grace", type=at_least_one, metavar="SECONDS")
    options.add("log_texts")

    parser = commands.command(
        "serve keys",
        "Make an API key: it is printed once, and the file keeps its digest.",
        "jaxretr serve keys --add search-page --scopes read --keys keys.txt",
    )
    options = parser.options_of("jaxretr.serve.keys:add_key")
    options.add("name", option="--add")
    options.add("scopes", type=lambda text: text.split(","), action="store", required=False, default="read")
    options.add("path", option="--keys", type=Path)


def run(args: argparse.Namespace) -> None:
    """Serve until a signal stops it."""
    # Nothing that is imported, loaded or traced before the service is ready is garbage: looking for some takes two seconds.
    gc.disable()
    try:
        with _ended_by_signals():
            _serve(args)
    finally:
        gc.enable()


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
    from jaxretr.cli.model import load_model, scorer_loader
    from jaxretr.embeddings.encoding import Encoder
    from jaxretr.indexes.certified.engines import engine_of
    from jaxretr.models.hub import combined_folder
    from jaxretr.models.hub.dual_encoder_folder import check_finished, model_folder, needs_transformers
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
    load_reranker = scorer_loader(args, "reranker")
    settings = Settings(**given(args, "Settings"))
    if args.engine is not None:
        engine_of(args.engine).require()
    Rates(settings.rate)  # Refuses a wrong rate before the model is loaded.
    keys = Keys.read(Path(args.keys)) if args.keys else None

    def encoder() -> Encoder:
        folder = model_folder(Path(args.model).expanduser())
        parts = combined_folder.read(folder).folders if combined_folder.is_combined(folder) else [folder]
        if args.tokenizer or args.reranker or any(map(needs_transformers, parts)):
            _import_tokenizers()
        return load_model(args)

    parts = Parts(
        encoder=encoder,
        **given(args, "Parts"),
        reranker=load_reranker,
        settings=settings,
    )
    check_finished(args.model)
    listener = server.listen(args.host, args.port)
    lines = RequestLog(settings.log_texts)
    with log_as_json(lines):
        server.run(parts.load, settings, listener=listener, keys=keys, lines=lines)


def _import_tokenizers() -> None:
    """Import transformers' tokenizers without torch, which they import where it is installed: a service has no use for it."""
    from jaxretr.data.tokens import from_transformers

    hidden = sys.modules.setdefault("torch", None) is None  # pyright: ignore[reportArgumentType]
    try:
        from_transformers("AutoTokenizer")
    finally:
        if hidden:
            del sys.modules["torch"]


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text[:6]) > 65535:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a port, 0 to 65535")
    return int(text)
