"""The gateway as a process: starts clusters and listeners, ticks them, and ends in order."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry

from gateway import logs, memory
from gateway.config import Config, Listener
from gateway.core.routes import merged
from gateway.core.store import Window
from gateway.listeners import admin
from gateway.listeners.call import GrpcCall
from gateway.listeners.client import ClientPort
from gateway.listeners.json import CALLS, make_runner
from gateway.listeners.jsoncall import JsonCall
from gateway.listeners.quick import OpenRead
from gateway.metrics import Metrics, Reading
from gateway.observe import HomeFacts, Observer
from gateway.observe_cache import cache_readings, feed_status
from gateway.services import bind
from gateway.services.scope import Scope
from gateway.services.watch import WatchStream
from gateway.upstream.cluster import Cluster
from gateway.upstream.feed import Feed
from gateway.upstream.flights import Flights
from gateway.upstream.link import LinkState
from gateway.wire.connection import Limits

FIRST_CONNECT = 2.0
"""Seconds that the start waits for the clusters; then it serves without those that are not there."""

DRAIN = 10.0
"""Seconds that running calls get at the end."""

TICK = 0.25


class Gateway:
    """Everything that one process runs. Implements gateway.listeners.admin.State."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.metrics = Metrics()
        self.log = logs.logger("server")
        self.clusters: dict[str, Cluster] = {}
        self.feeds: dict[str, Feed] = {}
        self.flights: dict[str, Flights] = {}
        self.ports: list[ClientPort] = []
        self._observer = Observer(self.metrics, config.log.slow_request_seconds)
        self._started = time.time()
        self._ready = "starting"
        self._servers: list[asyncio.Server] = []
        self._runners: list[web.AppRunner] = []
        self._errors: dict[str, dict[str, str]] = {}

    async def start(self) -> None:
        """Connect to the clusters, then open the listeners. Raises OSError when an address can't be had."""
        config = self.config
        for each in config.clusters:
            self._errors[each.name] = {}
            self.clusters[each.name] = Cluster(each.name, each.endpoints, self._endpoint_changed)
            self.flights[each.name] = Flights(self.clusters[each.name])
        self._start_feeds()
        await asyncio.gather(*(cluster.settled(FIRST_CONNECT) for cluster in self.clusters.values()))
        for listener in config.listeners:
            await self._listen(listener)
        self._add_readings()
        if config.admin is not None:
            await self._serve_admin(config.admin.address)
        _settle_memory()
        self._ready = ""

    def _start_feeds(self) -> None:
        """One for each cluster of which a route wants something cached."""
        tables = [self.config.routes_for(listener) for listener in self.config.listeners]
        for each in self.config.clusters:
            intervals = merged(interval for table in tables for interval in table.cached(each.name))
            if intervals:
                owned = merged(interval for table in tables for interval in table.owned(each.name)) if each.feed == "routes" else ()
                keep = each.cache
                window, budget = Window(keep.history_revisions, keep.history_mib << 20), keep.budget_mib << 20
                self.feeds[each.name] = Feed(self.clusters[each.name], intervals, window, budget, self._feed_changed, owned)
                self.feeds[each.name].progress_seconds = each.watch_progress_seconds

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then end in order."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        tasks = [loop.create_task(self._tick()), loop.create_task(memory.trim())]
        await stop.wait()
        await self.stop()
        for task in tasks:
            task.cancel()

    async def stop(self) -> None:
        """GOAWAY to every client, let running calls finish, close."""
        self._ready = "stopping"
        self.log.info("stopping", drain_seconds=DRAIN)
        for server in self._servers:
            server.close()
        for port in self.ports:
            port.close()
        await asyncio.wait([asyncio.ensure_future(port.closed()) for port in self.ports], timeout=DRAIN)
        for port in self.ports:
            port.abort()
        for runner in self._runners:
            await runner.cleanup()
        for feed in self.feeds.values():
            feed.close()
        for cluster in self.clusters.values():
            cluster.close()
        self.log.info("stopped")

    # the parts

    def scope(self, listener: Listener) -> Scope:
        """What this listener's services work with."""
        routes = self.config.routes_for(listener)
        home = self.config.home_of(listener)
        names = {*routes.clusters(), home}
        clusters = {name: cluster for name, cluster in self.clusters.items() if name in names}
        urls = listener.advertise_urls or (f"http://{listener.address}",)
        feeds = {name: feed for name, feed in self.feeds.items() if name in names}
        flights = {name: self.flights[name] for name in clusters}
        return Scope(listener.name, routes, clusters[home], clusters, urls, feeds, flights)

    async def _listen(self, listener: Listener) -> None:
        limits = self.config.limits
        scope = self.scope(listener)
        handlers, instants = bind(scope)
        facts = HomeFacts(scope, self.metrics)
        runner = make_runner(handlers, facts, self._observer, limits.max_request_bytes)
        await runner.setup()
        assert runner.server is not None
        port = ClientPort(
            name=listener.name,
            handlers={method.path: (method, handler) for method, handler in handlers.items()},
            instants={method.path: (method, instant) for method, instant in instants.items()},
            web=runner.server,
            metrics=self.metrics,
            observer=self._observer,
            limits=Limits(max_streams=limits.max_streams),
            max_connections=limits.max_connections,
            max_request_bytes=limits.max_request_bytes,
        )
        host, number = split_address(listener.address)
        self._servers.append(await asyncio.get_running_loop().create_server(port.accept, host, number, backlog=4096))
        self._runners.append(runner)
        self.ports.append(port)
        self.log.info("listening", listener=listener.name, address=listener.address)

    async def _serve_admin(self, address: str) -> None:
        runner = admin.make_runner(self)
        await runner.setup()
        await web.TCPSite(runner, *split_address(address)).start()
        self._runners.append(runner)
        self.log.info("admin_listening", address=address)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK)
            now = loop.time()
            for cluster in self.clusters.values():
                cluster.tick(now)
            for feed in self.feeds.values():
                feed.tick(now)
            for port in self.ports:
                port.tick(now)

    def _endpoint_changed(self, cluster: str, url: str, state: LinkState, error: str) -> None:
        """Log a change once, not each retry."""
        before = self._errors[cluster].get(url)
        self._errors[cluster][url] = error
        if state is LinkState.READY:
            self.log.info("endpoint_connected", cluster=cluster, endpoint=url)
        elif error and not before:
            self.log.warning("endpoint_down", cluster=cluster, endpoint=url, error=error, fix="see that etcd runs there and is reachable")

    def _feed_changed(self, cluster: str, event: str, reason: str) -> None:
        if reason:
            self.log.warning(f"feed_{event}", cluster=cluster, reason=reason)
        else:
            self.log.info(f"feed_{event}", cluster=cluster)

    # what is told of it

    @property
    def registry(self) -> CollectorRegistry:
        """The metrics."""
        return self.metrics.registry

    def ready(self) -> str:
        """"" when the gateway takes calls."""
        return self._ready

    def cluster_states(self) -> Mapping[str, str]:
        """Of each cluster "" when an endpoint is connected, else what the endpoints say."""
        return {
            name: "" if cluster.available else "; ".join(f"{url}: {error}" for url, error in self._errors[name].items()) or "connecting"
            for name, cluster in self.clusters.items()
        }

    def status(self) -> dict[str, Any]:
        """For /status."""
        return {
            "version": _version(),
            "uptime_seconds": round(time.time() - self._started, 1),
            "ready": self._ready or True,
            "listeners": [
                {"name": each.name, "address": each.address, "home": self.config.home_of(each), "connections": len(port.connections)}
                for each, port in zip(self.config.listeners, self.ports, strict=False)
            ],
            "clusters": [self._cluster_status(name, cluster) for name, cluster in self.clusters.items()],
            "routes": [
                {"prefix": route.prefix.decode("utf-8", "backslashreplace"), "cluster": route.cluster, "cache": route.cache}
                for route in self.config.table()
            ],
        }

    def _cluster_status(self, name: str, cluster: Cluster) -> dict[str, Any]:
        endpoints = [
            {
                "url": endpoint.url,
                "state": endpoint.calls.state.value,
                "connections": endpoint.connections,
                "error": self._errors[name].get(endpoint.url, ""),
            }
            for endpoint in cluster.endpoints
        ]
        feed = self.feeds.get(name)
        cache = None if feed is None else feed_status(feed)
        return {"name": name, "available": cluster.available, "endpoints": endpoints, "cache": cache}

    def _add_readings(self) -> None:
        read = self.metrics.read
        self.metrics.open_calls = lambda: (call for _, call in self._calls())
        read("gauge", "shardgate_client_connections", "Open connections of clients.", ("listener", "protocol"), self._connections)
        read("counter", "shardgate_accepted_connections", "Connections accepted.", ("listener",), self._accepted)
        read("counter", "shardgate_refused_connections", "Connections over limits.max_connections.", ("listener",), self._over)
        read("gauge", "shardgate_streams", "Open HTTP/2 streams of clients.", ("listener",), self._streams)
        read("gauge", "shardgate_watches", "Watches that clients have open.", ("listener", "cluster"), self._watches)
        read("gauge", "shardgate_upstream_connections", "Connections to endpoints.", ("cluster", "endpoint"), self._upstream)
        read("counter", "shardgate_upstream_failures", "Failed attempts and broken connections.", ("cluster", "endpoint"), self._failures)
        read("gauge", "shardgate_cluster_available", "1 when an endpoint of the cluster is connected.", ("cluster",), self._available)
        cache_readings(read, self.feeds)
        flights = self.flights.items
        read("counter", "shardgate_flights", "Calls to the cluster for reads that may be shared.", ("cluster",), lambda: [
            ((name,), each.count) for name, each in flights()
        ])
        read("counter", "shardgate_flight_followers", "Reads that shared one.", ("cluster",), lambda: [
            ((name,), each.followers) for name, each in flights()
        ])
        build = _version()
        read("gauge", "shardgate_build_info", "The version.", ("version",), lambda: [((build,), 1)])

    def _sites(self) -> Iterator[tuple[ClientPort, web.AppRunner]]:
        """Both sides of each listener."""
        return zip(self.ports, self._runners, strict=False)  # the admin listener's runner is the last

    def _calls(self) -> Iterator[tuple[str, GrpcCall | OpenRead | JsonCall]]:
        """The calls under way, and their listener."""
        for port, site in self._sites():
            for connection in port.connections:
                yield from ((port.name, call) for call in connection.calls)
                yield from ((port.name, read) for batch in connection.batches for read in batch.open())
            yield from ((port.name, call) for call in site.app[CALLS] if not call.ended)

    def _connections(self) -> Reading:
        for port, site in self._sites():
            yield (port.name, "grpc"), len(port.connections)
            yield (port.name, "http"), len(site.server.connections) if site.server else 0

    def _accepted(self) -> Reading:
        return [((port.name,), port.accepted) for port in self.ports]

    def _over(self) -> Reading:
        return [((port.name,), port.refused) for port in self.ports]

    def _streams(self) -> Reading:
        return [((port.name,), sum(each.conn.active for each in port.connections)) for port in self.ports]

    def _watches(self) -> Reading:
        found = Counter({(port.name, cluster): 0 for port in self.ports for cluster in self.clusters})
        for listener, call in self._calls():
            if isinstance(call.session, WatchStream):
                for cluster, count in call.session.counts().items():
                    found[listener, cluster] += count
        return list(found.items())

    def _upstream(self) -> Reading:
        return [((name, each.url), each.connections) for name, cluster in self.clusters.items() for each in cluster.endpoints]

    def _failures(self) -> Reading:
        return [((name, url), count) for name, cluster in self.clusters.items() for url, count in cluster.failures.items()]

    def _available(self) -> Reading:
        return [((name,), int(cluster.available)) for name, cluster in self.clusters.items()]


def _settle_memory() -> None:
    """What the start made stays, so no collection needs to look at it again; what it freed goes back to the system (glibc only)."""
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _version() -> str:
    try:
        return version("shardgate")
    except PackageNotFoundError:
        return "unknown"


def split_address(address: str) -> tuple[str, int]:
    """"127.0.0.1:2379" or "[::1]:2379" -> host and port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def run(config: Config) -> int:
    """Run the gateway until it is told to stop; the process's exit status."""
    logs.setup(config.log.level, config.log.format)
    return uvloop.run(_main(config))


async def _main(config: Config) -> int:
    gateway = Gateway(config)
    try:
        await gateway.start()
    except OSError as error:
        gateway.log.error("start_failed", reason=str(error), fix="free the address, or choose another in `listeners` or `admin`")
        return 1
    await gateway.run()
    return 0
