"""Every metric, in one place.

The request path adds to plain ints; a collector reads them when Prometheus asks. What can be counted by looking (open connections, calls under
way) is looked at then and costs nothing before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.errors import Code
from gateway.etcdpb.methods import Method

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the latency histogram, seconds."""

Reading = Iterable[tuple[tuple[str, ...], float]]
"""Label values and the value, for each label combination."""


class CallStats:
    """What is counted of one method in one cluster."""

    __slots__ = ("buckets", "bytes_in", "bytes_out", "codes", "method", "seconds")

    def __init__(self, method: Method) -> None:
        self.method = method
        self.codes = [0] * 17
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0
        self.bytes_in = 0
        self.bytes_out = 0

    def ended(self, code: int, seconds: float, bytes_in: int, bytes_out: int) -> None:
        """A call is over."""
        self.codes[code if 0 <= code < 17 else 2] += 1
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out


class Metrics(Collector):
    """All of a gateway's metrics."""

    def __init__(self) -> None:
        self.refused_requests = 0
        self.slow_requests = 0
        self._calls: dict[tuple[str, Method], CallStats] = {}
        self._protocol_errors: Counter[str] = Counter()
        self._readings: list[tuple[str, str, str, tuple[str, ...], Callable[[], Reading]]] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)

    def calls(self, cluster: str, method: Method) -> CallStats:
        """The counts of a method in a cluster; cluster "" for what the gateway answered itself."""
        stats = self._calls.get((cluster, method))
        if stats is None:
            stats = self._calls[cluster, method] = CallStats(method)
        return stats

    def protocol_error(self, reason: str) -> None:
        """A client's connection was ended for breaking the protocol or a bound. Digits are left out, so that the reasons are few."""
        self._protocol_errors["".join("N" if char.isdigit() else char for char in reason)[:100]] += 1

    def read(self, kind: str, name: str, text: str, labels: tuple[str, ...], reading: Callable[[], Reading]) -> None:
        """Add a metric that is read when it is asked for; `kind` is "gauge" or "counter"."""
        self._readings.append((kind, name, text, labels, reading))

    def exposition(self) -> bytes:
        """Prometheus' text format."""
        return bytes(generate_latest(self._registry))

    @property
    def registry(self) -> CollectorRegistry:
        """For the admin listener, which negotiates the format."""
        return self._registry

    def describe(self) -> Iterable[Metric]:
        """Nothing is collected for it: the registry would call `collect` else."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Called by the registry at each scrape."""
        yield from self._collect_calls()
        refused = CounterMetricFamily("shardgate_refused_requests", "Requests that are no call of a known method.")
        refused.add_metric((), self.refused_requests)
        yield refused
        slow = CounterMetricFamily("shardgate_slow_requests", "Calls that took longer than log.slow_request_seconds.")
        slow.add_metric((), self.slow_requests)
        yield slow
        errors = CounterMetricFamily("shardgate_protocol_errors", "Connections ended for breaking the protocol or a bound.", labels=("reason",))
        for reason, count in self._protocol_errors.items():
            errors.add_metric((reason,), count)
        yield errors
        for kind, name, text, labels, reading in self._readings:
            family = (GaugeMetricFamily if kind == "gauge" else CounterMetricFamily)(name, text, labels=labels)
            for values, value in reading():
                family.add_metric(values, value)
            yield family

    def _collect_calls(self) -> Iterable[Metric]:
        names = ("cluster", "method")
        requests = CounterMetricFamily("shardgate_requests", "Ended calls by gRPC code.", labels=(*names, "code"))
        seconds = HistogramMetricFamily("shardgate_request_duration_seconds", "Time to the end of unary calls.", labels=names)
        received = CounterMetricFamily("shardgate_request_bytes", "Message bytes received from clients.", labels=names)
        sent = CounterMetricFamily("shardgate_reply_bytes", "Message bytes sent to clients.", labels=names)
        for (cluster, method), stats in tuple(self._calls.items()):
            labels = (cluster, method.label)
            for code, count in enumerate(stats.codes):
                if count:
                    requests.add_metric((*labels, Code(code).name), count)
            received.add_metric(labels, stats.bytes_in)
            sent.add_metric(labels, stats.bytes_out)
            if not method.server_streaming:
                seconds.add_metric(labels, _cumulated(stats.buckets), stats.seconds)
        return requests, seconds, received, sent


def _cumulated(buckets: list[int]) -> list[tuple[str, int]]:
    total = 0
    found = []
    for bound, count in zip((*BUCKETS, float("inf")), buckets, strict=True):
        total += count
        found.append(("+Inf" if bound == float("inf") else str(bound), total))
    return found
