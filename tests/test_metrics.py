"""What is counted is what Prometheus reads."""

from __future__ import annotations

import timeit
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.errors import Code
from gateway.etcdpb.methods import METHODS, Method, method
from gateway.metrics import BUCKETS, MAX_REASONS, Metrics
from gateway.observe import Observer

RANGE = method("kv", "range")
WATCH = method("watch", "watch")


@dataclass
class Call:
    """What metrics read of a call."""

    cluster: str = "main"
    method: Method = RANGE
    bytes_in: int = 0
    bytes_out: int = 0
    request: bytes = b""


def samples(metrics: Metrics) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by sample name and label values (in the order of label names), as a Prometheus reads them."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            assert labels not in found.get(sample.name, {}), "told twice"
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_requests_by_code() -> None:
    metrics = Metrics()
    for code in (0, 0, 0, Code.UNAVAILABLE, 16, 17, -1, 99):
        metrics.calls("main", RANGE).ended(code, 0.1, 10, 100)
    metrics.calls("", RANGE).ended(Code.INVALID_ARGUMENT, 0.1, 1, 0)
    found = samples(metrics)
    assert found["shardgate_requests_total"] == {
        ("main", "OK", "KV/Range"): 3, ("main", "UNAVAILABLE", "KV/Range"): 1, ("main", "UNAUTHENTICATED", "KV/Range"): 1,
        ("main", "UNKNOWN", "KV/Range"): 3, ("", "OK", "KV/Range"): 0, ("", "INVALID_ARGUMENT", "KV/Range"): 1,
    }  # fmt: skip
    assert found["shardgate_request_bytes_total"] == {("main", "KV/Range"): 80, ("", "KV/Range"): 1}
    assert found["shardgate_reply_bytes_total"] == {("main", "KV/Range"): 800, ("", "KV/Range"): 0}
    assert found["shardgate_requests_in_flight"] == {("main", "KV/Range"): 0, ("", "KV/Range"): 0}


@given(st.lists(st.one_of(st.sampled_from(BUCKETS), st.floats(0, 20))))
def test_latency(times: list[float]) -> None:
    metrics = Metrics()
    stats = metrics.calls("main", RANGE)
    for seconds in times:
        stats.ended(0, seconds, 0, 0)
    found = samples(metrics)
    buckets = found["shardgate_request_duration_seconds_bucket"]
    for bound in BUCKETS:
        assert buckets["main", str(bound), "KV/Range"] == sum(seconds <= bound for seconds in times)
    assert buckets["main", "+Inf", "KV/Range"] == found["shardgate_request_duration_seconds_count"]["main", "KV/Range"] == len(times)
    assert abs(found["shardgate_request_duration_seconds_sum"]["main", "KV/Range"] - sum(times)) < 1e-6


def test_streams_have_no_latency() -> None:
    metrics = Metrics()
    metrics.calls("main", WATCH).ended(1, 86_400, 0, 0)
    found = samples(metrics)
    assert found["shardgate_requests_total"]["main", "CANCELLED", "Watch/Watch"] == 1
    assert "shardgate_request_duration_seconds_bucket" not in found


def test_a_call_under_way_counts_its_bytes_once() -> None:
    metrics = Metrics()
    call = Call("main", WATCH, 10, 1000)
    open_calls = [call, Call("main", WATCH, 1, 1), Call("", WATCH, 5, 5)]
    metrics.open_calls = lambda: open_calls
    metrics.calls("main", RANGE)
    found = samples(metrics)
    assert found["shardgate_requests_in_flight"] == {("main", "Watch/Watch"): 2, ("", "Watch/Watch"): 1, ("main", "KV/Range"): 0}
    assert found["shardgate_reply_bytes_total"] == {("main", "Watch/Watch"): 1001, ("main", "KV/Range"): 0}
    open_calls.remove(call)
    metrics.calls("main", WATCH).ended(0, 1, call.bytes_in, call.bytes_out)
    found = samples(metrics)
    assert found["shardgate_requests_in_flight"]["main", "Watch/Watch"] == 1
    assert found["shardgate_request_bytes_total"]["main", "Watch/Watch"] == 11
    assert found["shardgate_reply_bytes_total"]["main", "Watch/Watch"] == 1001


@given(st.lists(st.tuples(st.sampled_from(["route", "send", "end", "new"]), st.integers(0, 3)), max_size=30))
def test_bytes_never_fall(steps: list[tuple[str, int]]) -> None:
    """Prometheus would take that for a restart."""
    metrics = Metrics()
    calls: list[Call] = []
    metrics.open_calls = lambda: calls
    before: dict[tuple[str, ...], float] = {}
    for step, which in steps:
        call = calls[which] if which < len(calls) else None
        if step == "new":
            calls.append(Call("", WATCH, 7, 0))
        elif call is not None and step == "route":
            call.cluster = call.cluster or "main"
        elif call is not None and step == "send":
            call.bytes_out += 100
        elif call is not None:
            calls.remove(call)
            metrics.calls(call.cluster, call.method).ended(0, 1, call.bytes_in, call.bytes_out)
        (family,) = (family for family in metrics.collect() if family.name == "shardgate_reply_bytes")
        found = {tuple(sample.labels.values()): sample.value for sample in family.samples}
        assert all(found[labels] >= value for labels, value in before.items())
        before = found


def test_reasons_are_few() -> None:
    metrics = Metrics()
    metrics.protocol_error("frame of 70000 bytes")
    metrics.protocol_error("frame of 80000 bytes")
    assert samples(metrics)["shardgate_protocol_errors_total"] == {("frame of NNNNN bytes",): 2}
    for number in range(5 * MAX_REASONS):
        metrics.protocol_error("x" * number)
    found = samples(metrics)["shardgate_protocol_errors_total"]
    assert len(found) == MAX_REASONS + 1
    assert sum(found.values()) == 2 + 5 * MAX_REASONS


def test_counts_are_bounded() -> None:
    metrics = Metrics()
    for _ in range(3):
        for cluster in ("", "main", "events"):
            for each in METHODS.values():
                metrics.calls(cluster, each).ended(0, 0.1, 1, 1)
    assert len(samples(metrics)["shardgate_requests_total"]) == 3 * len(METHODS)


def test_readings() -> None:
    metrics = Metrics()
    values = {"a": 1.0}
    metrics.read("gauge", "shardgate_x", "X.", ("name",), lambda: [((name,), value) for name, value in values.items()])
    metrics.read("counter", "shardgate_y", "Y.", (), lambda: [((), 7)])
    assert samples(metrics)["shardgate_x"] == {("a",): 1}
    values["a"] = 2
    assert samples(metrics)["shardgate_x"] == {("a",): 2}
    assert samples(metrics)["shardgate_y_total"] == {(): 7}


def test_counting_a_call_is_cheap() -> None:
    """Of some 20 microseconds that a forwarded call has. The best of many tries: the machine does other things too."""
    observer = Observer(Metrics(), 1.0)
    call = Call()
    best = min(timeit.repeat(lambda: observer.record(call, 0, 0.003), number=2_000, repeat=20)) / 2_000
    assert best < 1e-6
