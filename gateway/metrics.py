"""Every metric, in one place.

The request path adds to plain ints; a collector reads them when Prometheus asks. What can be counted by looking (open connections, calls
under way) is looked at then and costs nothing before. What each metric means to an operator is in docs/metrics.md.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.errors import Code
from gateway.etcdpb.methods import Method

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the latency histogram, seconds."""

MAX_REASONS = 100
"""Different reasons of protocol errors that are told apart."""

Reading = Iterable[tuple[tuple[str, ...], float]]
"""Label values and the value, for each label combination."""


class OpenCall(Protocol):
    """What is read of a call that is under way."""

    @property
    def cluster(self) -> str: ...
    @property
    def method(self) -> Method: ...
    @property
    def bytes_in(self) -> int: ...
    @property
    def bytes_out(self) -> int: ...


class CallStats:
    """What is counted of the ended calls of one method in one cluster. `codes` by gRPC status code; `buckets` as BUCKETS, the last one for
    all that took longer."""

    __slots__ = ("buckets", "bytes_in", "bytes_out", "codes", "seconds")

    def __init__(self) -> None:
        self.codes = [0] * len(Code)
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0
        self.bytes_in = 0
        self.bytes_out = 0

    def ended(self, code: int, seconds: float, bytes_in: int, bytes_out: int) -> None:
        """A call is over. An upstream may send a code that gRPC does not have: it counts as UNKNOWN."""
        self.codes[code if 0 <= code < len(self.codes) else Code.UNKNOWN] += 1
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out

    def many(self, calls: int, seconds: float, bytes_in: int, bytes_out: int) -> None:
        """Calls that ended together with OK, after so many seconds each; their bytes in all."""
        self.codes[0] += calls
        self.buckets[bisect_left(BUCKETS, seconds)] += calls
        self.seconds += seconds * calls
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out


class Metrics(Collector):
    """All of a gateway's metrics."""

    def __init__(self) -> None:
        self.refused_requests = 0
        self.slow_requests = 0
        self.open_calls: Callable[[], Iterable[OpenCall]] = tuple
        """Tells the calls under way; to be set by who knows them."""
        self._calls: dict[tuple[str, Method], CallStats] = {}
        self._protocol_errors: Counter[str] = Counter()
        self._readings: list[tuple[str, str, str, tuple[str, ...], Callable[[], Reading]]] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)

    def calls(self, cluster: str, method: Method) -> CallStats:
        """The counts of a method in a cluster; cluster "" for what the gateway answered itself. The names come from the configuration, so
        there are at most clusters times methods of them."""
        stats = self._calls.get((cluster, method))
        if stats is None:
            stats = self._calls[cluster, method] = CallStats()
        return stats

    def protocol_error(self, reason: str) -> None:
        """A client's connection was ended for breaking the protocol or a bound. Digits are left out, so that the reasons are few."""
        reason = _DIGITS.sub("N", reason)
        if reason not in self._protocol_errors and len(self._protocol_errors) >= MAX_REASONS:
            reason = "other"
        self._protocol_errors[reason] += 1

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
        yield from self._collect_ended()
        yield from self._collect_open()
        yield _counter("shardgate_refused_requests", "Requests that are no call of a known method.", (), [((), self.refused_requests)])
        yield _counter("shardgate_slow_requests", "Calls that took longer than log.slow_request_seconds.", (), [((), self.slow_requests)])
        errors = [((reason,), count) for reason, count in self._protocol_errors.items()]
        yield _counter("shardgate_protocol_errors", "Connections ended for breaking the protocol or a bound.", ("reason",), errors)
        for kind, name, text, labels, reading in self._readings:
            yield (_gauge if kind == "gauge" else _counter)(name, text, labels, reading())

    def _collect_ended(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("shardgate_requests", "Ended calls by gRPC code.", labels=(*_CALL, "code"))
        seconds = HistogramMetricFamily("shardgate_request_duration_seconds", "Time to the end of calls that are no streams.", labels=_CALL)
        for (cluster, method), stats in self._calls.items():
            labels = (cluster, method.label)
            for code in Code:
                if stats.codes[code] or code is Code.OK:
                    requests.add_metric((*labels, code.name), stats.codes[code])
            if not method.server_streaming:
                seconds.add_metric(labels, _cumulated(stats.buckets), stats.seconds)
        return requests, seconds

    def _collect_open(self) -> Iterable[Metric]:
        """Streams last for weeks, so their bytes count while they are under way; but not before they have a cluster, as a counter must not
        fall when they get one."""
        under_way = dict.fromkeys(self._calls, 0)
        received = {key: stats.bytes_in for key, stats in self._calls.items()}
        sent = {key: stats.bytes_out for key, stats in self._calls.items()}
        for call in self.open_calls():
            key = call.cluster, call.method
            under_way[key] = under_way.get(key, 0) + 1
            if call.cluster:
                received[key] = received.get(key, 0) + call.bytes_in
                sent[key] = sent.get(key, 0) + call.bytes_out
        yield _gauge("shardgate_requests_in_flight", "Calls under way, streams too.", _CALL, _labelled(under_way))
        yield _counter("shardgate_request_bytes", "Message bytes received from clients.", _CALL, _labelled(received))
        yield _counter("shardgate_reply_bytes", "Message bytes sent to clients.", _CALL, _labelled(sent))


_CALL = ("cluster", "method")
_DIGITS = re.compile(r"\d")


def _labelled(values: dict[tuple[str, Method], int]) -> Reading:
    return [((cluster, method.label), value) for (cluster, method), value in values.items()]


def _gauge(name: str, text: str, labels: tuple[str, ...], reading: Reading) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), reading)


def _counter(name: str, text: str, labels: tuple[str, ...], reading: Reading) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), reading)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, reading: Reading) -> Metric:
    for values, value in reading:
        family.add_metric(values, value)
    return family


def _cumulated(buckets: list[int]) -> list[tuple[str, int]]:
    return list(zip((*map(str, BUCKETS), "+Inf"), accumulate(buckets), strict=True))
