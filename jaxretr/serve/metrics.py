"""The content of /metrics, as prometheus_client writes it."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from jaxretr.runtime.parallel import memory
from jaxretr.serve.batching import Batcher
from jaxretr.serve.indexes import Indexes

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Counts and times of one service."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "jaxretr_requests", "Answered requests.", ["method", "route", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "jaxretr_request_seconds", "Time to answer.", ["route"], buckets=_SECONDS, registry=registry
        )
        self._queue_seconds = Histogram(
            "jaxretr_queue_seconds",
            "Time that texts spent in the queue.",
            ["lane"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._batch_seconds = Histogram(
            "jaxretr_batch_seconds", "Time to compute a batch.", ["lane"], buckets=_SECONDS, registry=registry
        )
        self._batch_texts = Histogram(
            "jaxretr_batch_texts", "Texts per batch.", ["lane"], buckets=[2**n for n in range(11)], registry=registry
        )
        self._batch_tokens = Counter("jaxretr_batch_tokens", "Tokens computed.", ["lane"], registry=registry)
        self._search_seconds = Histogram(
            "jaxretr_search_seconds", "Time to search an index.", ["index"], buckets=_SECONDS, registry=registry
        )
        self._refused = Counter("jaxretr_refused", "Requests that found a full queue.", ["queue"], registry=registry)
        Gauge("jaxretr_resident_bytes", "Memory of the process.", registry=registry).set_function(memory.resident)

    def watch(self, queues: Mapping[str, Batcher], indexes: Indexes) -> None:
        """Add gauges of queues and indexes, which are read whenever /metrics is."""
        self.registry.register(_State(queues, indexes))

    def waited(self, lane: str, seconds: float) -> None:
        self._queue_seconds.labels(lane).observe(seconds)

    def computed(self, lane: str, texts: int, tokens: int, seconds: float) -> None:
        self._batch_seconds.labels(lane).observe(seconds)
        self._batch_texts.labels(lane).observe(texts)
        self._batch_tokens.labels(lane).inc(tokens)

    def searched(self, index: str, seconds: float) -> None:
        """Count a search of an index."""
        self._search_seconds.labels(index).observe(seconds)

    def refused(self, queue: str) -> None:
        """Count a request that found a full queue."""
        self._refused.labels(queue).inc()

    def text(self) -> bytes:
        """All metrics in Prometheus' format."""
        return generate_latest(self.registry)


class _State(Collector):
    """Gauges of queues and indexes, which are read when /metrics is."""

    def __init__(self, queues: Mapping[str, Batcher], indexes: Indexes):
        self._queues, self._indexes = queues, indexes

    def describe(self) -> Iterable[Metric]:
        """Describe nothing in advance, because indexes come and go."""
        return []

    def collect(self) -> Iterable[Metric]:
        """The gauges."""
        waiting = GaugeMetricFamily("jaxretr_queue_tokens", "Tokens waiting.", labels=["queue"])
        accepted = GaugeMetricFamily(
            "jaxretr_queue_requests", "Requests accepted but not yet answered.", labels=["queue"]
        )
        for name, batcher in self._queues.items():
            waiting.add_metric([name], batcher.tokens)
            accepted.add_metric([name], batcher.requests)
        rows = GaugeMetricFamily("jaxretr_index_passages", "Passages of an index.", labels=["index"])
        for name, count in self._indexes.sizes().items():
            rows.add_metric([name], count)
        return [waiting, accepted, rows]
