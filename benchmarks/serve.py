"""The service under load on loopback: throughput, latency and memory, beside the offline encoder and a peer in the same run.

    python benchmarks/serve.py --corpus corpus.jsonl.gz                       # two minutes of load
    python benchmarks/serve.py --corpus corpus.jsonl.gz --seconds 20 --rows 2000
    python benchmarks/serve.py --corpus corpus.jsonl.gz --peer                # a plain server of sentence-transformers
    python benchmarks/serve.py --corpus corpus.jsonl.gz --peer "infinity_emb v2 --model-id {model} --port {port}
        --url-prefix /v1 --engine torch --device cpu --no-bettertransformer"

Starts `jaxretr serve` in a process of its own, over the first --rows passages of the corpus (encoded once, into --work), and
sends it embeddings of 1, 8, 32 and 256 passages a request and searches of 1 and 8 questions, each from --clients connections
for an equal share of the time, in --rounds rounds. After every kind in every round passages are encoded offline by
`encode_passages` while the service is idle, and then the same requests for embeddings go to the peer: the server in this
file (FastAPI and sentence-transformers without batching across requests, thirty lines as one would write them), or another
that has GET /health and OpenAI's POST /v1/embeddings. Ratios are of one round each: median (lowest to highest).
"""

import argparse
import asyncio
import json
import os
import random
import re
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
MOST_TEXTS = 512


@dataclass
class Load:
    """What one kind of request did.

    Attributes:
      rates: texts a second of each round.
      main_thread: seconds of the processor that the server's main thread took, in which HTTP and JSON are done.
    """

    name: str
    texts: int
    seconds: float = 0.0
    main_thread: float = 0.0
    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    refused: int = 0
    failed: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Texts a second."""
        return len(self.latencies) * self.texts / max(self.seconds, 1e-9)

    def add(self, other: "Load") -> None:
        """Another round."""
        self.rates.append(other.rate)
        self.seconds += other.seconds
        self.main_thread += other.main_thread
        self.latencies += other.latencies
        self.refused += other.refused
        self.failed += other.failed

    def line(self) -> str:
        ordered = sorted(self.latencies) or [0.0]
        p50, p99 = (1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99))
        return (
            f"{self.name:<22} {self.rate:9.1f} texts/s {len(ordered) / max(self.seconds, 1e-9):8.1f} requests/s  "
            f"p50 {p50:8.1f} ms  p99 {p99:8.1f} ms  "
            f"main thread {1000 * self.main_thread / len(ordered):.2f} ms of the processor a request  "
            f"429: {self.refused}  failed: {len(self.failed)}"
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


def main_thread(process: int) -> float:
    """Seconds of the processor that another process's main thread has taken."""
    fields = Path(f"/proc/{process}/task/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A server in a process of its own, which has answered /health.

    Attributes:
      ready: seconds until it did.
      memory: (seconds under load, bytes) while it was asked.
    """

    def __init__(self, command: list[str], port: int, log: Path):
        self.url, self.log = f"http://127.0.0.1:{port}", log
        self.memory: list[tuple[float, int]] = []
        began = time.monotonic()
        self.process = subprocess.Popen(command, stderr=log.open("wb"), stdout=subprocess.DEVNULL)
        while not self._answers():
            if self.process.poll() is not None:
                sys.exit(f"the server ended: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        self.ready = time.monotonic() - began

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    @property
    def resident(self) -> int:
        """Bytes of memory."""
        return resident(self.process.pid)

    def announced(self) -> int:
        """Bytes that its log said it would take: the program's, before the first announcement, and all that were added."""
        said = re.findall(r"about ([\d.]+ [KMG]iB) of memory in addition to the ([\d.]+ [KMG]iB)", self.log.read_text())
        return in_bytes(said[0][1]) + sum(in_bytes(more) for more, _ in said) if said else 0

    async def loaded(self, kind: "Kind", seconds: float, clients: int) -> Load:
        """Asks for some seconds."""
        name, path, count, body = kind
        clients = min(clients, max(2, MOST_TEXTS // count))
        before = self.memory[-1][0] if self.memory else 0.0
        began, taken = time.monotonic(), main_thread(self.process.pid)
        sending = asyncio.ensure_future(send(self.url, name, path, body, count, seconds, clients))
        while not sending.done():
            self.memory.append((before + time.monotonic() - began, self.resident))
            await asyncio.sleep(0.25)
        load = await sending
        load.main_thread = main_thread(self.process.pid) - taken
        return load


def in_bytes(text: str) -> int:
    """Of "12.5 MiB"."""
    number, unit = text.split()
    return int(float(number) * 1024 ** (1 + "KMG".index(unit[0])))


def spread(values: list[float], digits: int = 2) -> str:
    """Median (lowest to highest)."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


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


# Name, path, texts of a request, and its body.
Kind = tuple[str, str, int, Callable[[], dict[str, Any]]]

# ---- the run ---------------------------------------------------------------------------------------------------------


def prepared(model: Path, corpus: Path, rows: int, work: Path) -> tuple[Path, Path, list[str]]:
    """The first passages of the corpus as a file and as a store, and their texts."""
    from jaxretr.data.corpus_stream import CorpusStream
    from jaxretr.embeddings.encoding import encode
    from jaxretr.models.combined_encoder import load_encoder

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
    parser.add_argument("--clients", type=int, default=16, help="fewer where these would have over 512 texts under way")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--work", type=Path, default=Path("runs/serve_benchmark"))
    parser.add_argument("--compute", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--peer", nargs="?", const="plain", metavar="COMMAND", help="with {model} and {port}")
    parser.add_argument("--be-peer", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    model = args.model or default_model()
    if args.be_peer:
        return serve_peer(str(model), args.be_peer)
    if args.corpus is None:
        parser.error("give --corpus FILE")
    from jaxretr.models.combined_encoder import load_encoder
    from jaxretr.models.encode import without_truncation_warnings

    file, store, texts = prepared(model, args.corpus, args.rows, args.work)
    random.seed(0)
    print(describe())
    ours = start_ours(args, model, store, file)
    print(f"ready after {ours.ready:.1f} s with {ours.resident / 2**20:.0f} MiB")
    while ours.process.poll() is None and "all programs are compiled" not in ours.log.read_text():
        time.sleep(0.1)
    peer = start_peer(args, model) if args.peer else None
    offline = load_encoder(model, dtype=args.compute)

    def encoded() -> float:
        """Texts a second of the offline encoder, while the service is idle."""
        some = random.sample(texts, min(512, len(texts)))
        began = time.monotonic()
        with without_truncation_warnings():
            offline.encode_passages(some)
        return len(some) / (time.monotonic() - began)

    encoded()  # Compiles.
    embeddings: list[Kind] = [
        (f"embeddings of {n}", "/v1/embeddings", n, partial(embeddings_body, texts, n)) for n in EMBEDDINGS
    ]
    searches: list[Kind] = [
        (f"searches of {n}", "/v1/wiki/search", n, partial(search_body, texts, n)) for n in SEARCHES
    ]
    share = args.seconds / (len(embeddings) + len(searches)) / args.rounds
    loads = {kind[0]: Load(kind[0], kind[2]) for kind in embeddings + searches}
    peers = {kind[0]: Load(kind[0], kind[2]) for kind in embeddings}
    rates: dict[str, list[float]] = {name: [] for name in loads}
    for number in range(args.rounds):
        for kind in embeddings + searches:
            loads[kind[0]].add(asyncio.run(ours.loaded(kind, share, args.clients)))
            rates[kind[0]].append(encoded())
            if peer is not None and kind in embeddings:
                peers[kind[0]].add(asyncio.run(peer.loaded(kind, share, args.clients)))
        print(f"round {number + 1} of {args.rounds} done", flush=True)
    everything = [rate for each in rates.values() for rate in each]
    print(f"offline encoder: {spread(everything, 1)} texts/s")
    for name, load in loads.items():
        print(load.line())
        if name in peers:
            ratios = [mine / theirs for mine, theirs in zip(load.rates, rates[name], strict=True)]
            print(f"{'':<22} {spread(ratios)} of offline")
        if name in peers and peer is not None:
            ratios = [mine / max(theirs, 1e-9) for mine, theirs in zip(load.rates, peers[name].rates, strict=True)]
            print(f"  peer: {peers[name].line()}\n{'':<22} ours / peer {spread(ratios)}")
    report_memory(ours)
    ours.process.send_signal(signal.SIGTERM)
    print(f"ended with {ours.process.wait(timeout=60)}")
    if peer is not None:
        peer.process.kill()
    for load in loads.values():
        if load.failed:
            sys.exit(f"{load.name}: {load.failed[0]}")


def start_ours(args: argparse.Namespace, model: Path, store: Path, file: Path) -> Server:
    """`jaxretr serve` over the store."""
    port = free_port()
    options = ["--index", f"wiki={store}", "--corpus", f"wiki={file}", "--port", str(port), "--compute", args.compute]
    command = [sys.executable, "-m", "jaxretr", "serve", str(model), *options]
    return Server(command, port, args.work / "serve.log")


def start_peer(args: argparse.Namespace, model: Path) -> Server:
    """The peer of this file, or the one that was given."""
    port = free_port()
    if args.peer == "plain":
        command = [sys.executable, __file__, "--model", str(model), "--be-peer", str(port)]
    else:
        command = [word.format(model=model, port=port) for word in args.peer.split()]
    server = Server(command, port, args.work / "peer.log")
    print(f"peer ({command[0] if args.peer != 'plain' else 'plain'}): ready after {server.ready:.1f} s")
    return server


def report_memory(server: Server) -> None:
    """Whether memory is flat, and whether it was announced."""
    end, announced = server.memory[-1][0], server.announced()
    first = max(size for at, size in server.memory if at <= WINDOW)
    last = max(size for at, size in server.memory if at >= end - WINDOW)
    print(
        f"memory: {first / 2**20:.0f} MiB in the first {WINDOW:.0f} s of load, {last / 2**20:.0f} MiB in the last; "
        f"announced {announced / 2**20:.0f} MiB, {last / max(announced, 1):.2f} of that taken"
    )


if __name__ == "__main__":
    main()
