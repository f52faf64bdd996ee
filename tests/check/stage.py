"""An etcd cluster, relays before its members, two gateways behind them, and clients of all of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property

from gateway.etcdpb import rpc_pb2 as pb
from tests.check.collector import Collector
from tests.check.history import History
from tests.check.relay import Relays
from tests.check.watched import heard_all
from tests.check.watchers import Stream, streams
from tests.check.workload import UNCACHED, Caller, Workload
from tests.etcd import EtcdCluster, cluster, wait_for
from tests.gateway_process import GatewayProcess, gateway

GATEWAYS = 2
END = 20.0
"""Seconds in which everybody has to have heard of the end."""


@dataclass
class Stage:
    """`relays` has one for each gateway and member, those of the first gateway first. `hands`: threads for what goes wrong; they
    stay to the end, as processes that a thread starts end with it."""

    etcd: EtcdCluster
    relays: Relays
    gateways: list[GatewayProcess]
    collector: Collector
    workload: Workload
    streams: list[Stream]
    hands: ThreadPoolExecutor

    @property
    def relay_count(self) -> int:
        return len(self.relays.urls)

    def relays_of(self, at: int) -> range:
        """Those of one gateway."""
        members = len(self.etcd.members)
        return range(at * members, (at + 1) * members)

    def compact(self, address: str, revision: int) -> None:
        """As a client."""
        with Caller("compaction", address, self.workload) as caller:
            caller.ask(pb.CompactionRequest(revision=revision))

    def finish(self) -> None:
        """After the clients have ended: what they are all told at last."""
        self.etcd.wait()
        self.workload.mark()
        last = max(each.revision for each in self.workload.operations if each.client == "the end")
        wait_for("the log", lambda: self.collector.revision >= last, END)
        until = time.monotonic() + END
        while time.monotonic() < until:
            log = self.collector.log
            if all(heard_all(watcher, log) for stream in self.streams for watcher in stream.watchers):
                break
            time.sleep(0.1)
        for stream in self.streams:
            stream.stop()

    @cached_property
    def history(self) -> History:
        """All of it."""
        watchers = [watcher for stream in self.streams for watcher in stream.watchers]
        return History(list(self.workload.operations), watchers, list(self.collector.log))


@contextmanager
def stage(version: str | None = None, size: int = 1, module: str = "gateway", seed: int = 0) -> Iterator[Stage]:
    """Everything runs within; after it the history is whole."""
    options = () if size == 1 else ("--heartbeat-interval", "50", "--election-timeout", "500")
    with ExitStack() as stack:
        hands = stack.enter_context(ThreadPoolExecutor(4))
        etcd = stack.enter_context(cluster(version, size, options))
        relays = stack.enter_context(Relays([member.address for member in etcd.members] * GATEWAYS))
        collector = stack.enter_context(Collector(etcd))
        gateways = [
            stack.enter_context(gateway({"main": urls}, {UNCACHED.decode(): "main"}, module, options={"watch_progress_seconds": 0.3}))
            for urls in (relays.urls[at * size : (at + 1) * size] for at in range(GATEWAYS))
        ]
        addresses = [each.address for each in gateways]
        workload = Workload(addresses, [member.address for member in etcd.members], seed)
        built = Stage(etcd, relays, gateways, collector, workload, _streams(addresses, etcd.members[0].address), hands)
        for stream in built.streams:
            stream.start()
        with workload:
            yield built
        built.finish()


def _streams(gateways: list[str], direct: str) -> list[Stream]:
    """Some stay, some go to the other gateway now and then; one is etcd's own, to see that the rules are right."""
    wishes = streams()
    return [
        *(Stream(f"gateway {at} watch {number}", [address], wish, None, number == 0)
          for at, address in enumerate(gateways) for number, wish in enumerate(wishes[at::2])),
        *(Stream(f"changing watch {number}", gateways, wish, 1.5, number == 1) for number, wish in enumerate(wishes)),
        Stream("etcd watch", [direct], wishes[0], None, False),
    ]  # fmt: skip
