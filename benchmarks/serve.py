"""The service under load on loopback: throughput, latency and memory, beside the offline encoder in the same run.

    python benchmarks/serve.py --corpus corpus.jsonl.gz                       # two minutes of load
    python benchmarks/serve.py --corpus corpus.jsonl.gz --seconds 20 --rows 2000
    python benchmarks/serve.py --corpus corpus.jsonl.gz --peer                # a plain server of sentence-transformers

Starts `jaxretr serve` in a process of its own, over the first --rows passages of the corpus (encoded once, into --work), and
sends it embeddings of 1, 8, 32 and 256 passages a request and searches of 1 and 8 questions, each from --clients connections
for an equal share of the time. Before and after every kind the same passages are encoded offline by `encode_passages` while
the service is idle. With --peer the same requests go to the peer in this file: FastAPI and sentence-transformers without
batching across requests, thirty lines as one would write them.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from encode import default_model
from machine import describe

EMBEDDINGS, SEARCHES = (1, 8, 32, 256), (1, 8)
WINDOW = 20.0


@dataclass
class Load:
    """What one kind of request did."""

    name: str
    texts: int
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    refused: int = 0
    failed: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Texts a second."""
        return len(self.latencies) * self.texts / max(self.seconds, 1e-9)

    def line(self) -> str:
        ordered = sorted(self.latencies) or [0.0]
        p50, p99 = (1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99))
        return (
            f"{self.name:<22} {self.rate:9.1f} texts/s {len(ordered) / max(self.seconds, 1e-9):8.1f} requests/s  "
            f"p50 {p50:8.1f} ms  p99 {p99:8.1f} ms  429: {self.refused}  failed: {len(self.failed)}"
        )


async def send(
    url: str, name: str, path: str, body: Callable[[], dict[str, Any]], texts: int, seconds: float, clients: int
) -> Load:
    """Keeps `clients` requests under way for some seconds."""
    import httpx

    load, end = Load(name, texts), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)

    async def one(client: httpx.AsyncClient) -> None:
        while time.monotonic() < end:
            began = time.monotonic()
            answer = await client.post(path, json=body())
            if answer.status_code == 429:
                load.refused += 1
                await asyncio.sleep(0.05)
            elif answer.status_code == 200:
                load.latencies.append(time.monotonic() - began)
            else:
                load.failed.append(answer.text[:200])

    began = time.monotonic()
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=300) as client:
        await asyncio.gather(*(one(client) for _ in range(clients)))
    load.seconds = time.monotonic() - began
    return load


def resident(process: int) -> int:
    """Bytes of memory of another process."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(command: list[str], port: int, log: Path) -> tuple[subprocess.Popen[bytes], float]:
    """Starts a server; returns it and the seconds until /health was 200."""
    began = time.monotonic()
    process = subprocess.Popen(command, stderr=log.open("wb"), stdout=subprocess.DEVNULL)
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return process, time.monotonic() - began
        except (urllib.error.URLError, OSError):
            pass
        if process.poll() is not None:
            sys.exit(f"the server ended: {log.read_text()[-2000:]}")
        time.sleep(0.05)


# ---- the peer: a server of thirty lines ------------------------------------------------------------------------------


def serve_peer(model: str, port: int) -> None:
    """FastAPI around SentenceTransformer.encode and a matrix product, each request by itself in a thread."""
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel
    from sentence_transformers import SentenceTransformer

    app, encoder = FastAPI(), SentenceTransformer(model, device="cpu")

    class Texts(BaseModel):
        input: list[str]

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/embeddings")
    def embeddings(body: Texts) -> dict[str, Any]:
        rows = encoder.encode(body.input, batch_size=32, show_progress_bar=False).tolist()
        return {"data": [{"index": n, "embedding": row} for n, row in enumerate(rows)]}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


def embeddings_body(texts: list[str], count: int) -> dict[str, Any]:
    """Some passages, as OpenAI's API takes them."""
    return {"input": random.choices(texts, k=count)}


def search_body(texts: list[str], count: int) -> dict[str, Any]:
    """Questions of ten words: the beginnings of some passages."""
    return {"query": [" ".join(text.split()[:10]) for text in random.choices(texts, k=count)], "k": 10}


# ---- the run ---------------------------------------------------------------------------------------------------------


def prepared(model: Path, corpus: Path, rows: int, work: Path) -> tuple[Path, Path, list[str]]:
    """The first passages of the corpus as a file and as a store, and their texts."""
    from jaxretr.data.corpus_stream import CorpusStream
    from jaxretr.models.combined_encoder import load_encoder
    from jaxretr.stores.encoding import encode

    file, store = work / f"corpus-{rows}.jsonl", work / f"store-{rows}"
    passages = [passage for _, passage in islice(CorpusStream([corpus]).passages(), rows)]
    if not file.exists():
        work.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"_id": p.id, "title": p.title, "text": p.text}) for p in passages]
        file.write_text("\n".join(lines) + "\n")
    encode(load_encoder(model), corpus=file, out=store, model=str(model))
    return file, store, [f"{p.title} {p.text}" for p in passages]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="passages, in any format that jaxretr reads")
    parser.add_argument("--model", type=Path, default=None, help="a sentence-transformers folder")
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--seconds", type=float, default=120.0, help="of load, all kinds together")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--work", type=Path, default=Path("runs/serve_benchmark"))
    parser.add_argument("--compute", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--peer", action="store_true", help="the same requests for embeddings to the peer as well")
    parser.add_argument("--be-peer", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    model = args.model or default_model()
    if args.be_peer:
        return serve_peer(str(model), args.be_peer)
    if args.corpus is None:
        parser.error("give --corpus FILE")
    from jaxretr.models.combined_encoder import load_encoder

    file, store, texts = prepared(model, args.corpus, args.rows, args.work)
    random.seed(0)
    port = free_port()
    options = ["--index", f"wiki={store}", "--corpus", f"wiki={file}", "--port", str(port), "--compute", args.compute]
    server, seconds = start(
        [sys.executable, "-m", "jaxretr", "serve", str(model), *options], port, args.work / "serve.log"
    )
    print(describe())
    print(f"ready after {seconds:.1f} s with {resident(server.pid) / 2**20:.0f} MiB")
    offline = load_encoder(model, dtype=args.compute)

    def encoded() -> float:
        """Texts a second of the offline encoder, while the service is idle."""
        some = random.sample(texts, min(512, len(texts)))
        began = time.monotonic()
        offline.encode_passages(some)
        return len(some) / (time.monotonic() - began)

    encoded()  # Compiles.
    kinds = [
        *((f"embeddings of {n}", "/v1/embeddings", n, partial(embeddings_body, texts, n)) for n in EMBEDDINGS),
        *((f"searches of {n}", "/v1/wiki/search", n, partial(search_body, texts, n)) for n in SEARCHES),
    ]
    share = args.seconds / len(kinds)
    rates, memory, loads = [encoded()], [], []
    began = time.monotonic()

    async def measured(url: str, kind: tuple[str, str, int, Callable[[], dict[str, Any]]], process: int) -> Load:
        name, path, count, body = kind
        sending = asyncio.ensure_future(send(url, name, path, body, count, share, args.clients))
        while not sending.done():
            memory.append((time.monotonic() - began, resident(process)))
            await asyncio.sleep(0.25)
        return await sending

    for kind in kinds:
        loads.append(asyncio.run(measured(f"http://127.0.0.1:{port}", kind, server.pid)))
        rates.append(encoded())
        print(loads[-1].line(), f" offline {rates[-1]:.1f} texts/s", flush=True)
    best = max(load.rate for load in loads if load.name.startswith("embeddings"))
    print(f"offline encoder: {statistics.median(rates):.1f} texts/s ({min(rates):.1f} to {max(rates):.1f})")
    print(f"service / offline: {best / statistics.median(rates):.2f} at the best size of a request")
    end = memory[-1][0]
    first = [size for at, size in memory if at <= WINDOW]
    last = [size for at, size in memory if at >= end - WINDOW]
    print(f"memory: {max(first) / 2**20:.0f} MiB in the first {WINDOW:.0f} s, {max(last) / 2**20:.0f} MiB in the last")
    server.send_signal(signal.SIGTERM)
    print(f"ended with {server.wait(timeout=60)}")
    for load in loads:
        if load.failed:
            sys.exit(f"{load.name}: {load.failed[0]}")
    if args.peer:
        port = free_port()
        command = [sys.executable, __file__, "--model", str(model), "--be-peer", str(port)]
        server, seconds = start(command, port, args.work / "peer.log")
        print(f"peer (FastAPI and sentence-transformers): ready after {seconds:.1f} s")
        for kind, ours in zip(kinds[: len(EMBEDDINGS)], loads, strict=False):
            load = asyncio.run(measured(f"http://127.0.0.1:{port}", kind, server.pid))
            print(load.line(), f" ours / peer {ours.rate / max(load.rate, 1e-9):.2f}", flush=True)
        server.kill()


if __name__ == "__main__":
    main()
