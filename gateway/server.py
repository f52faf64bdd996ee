"""The gateway as a process: starts clusters and listeners, ticks them, and ends in order."""

from __future__ import annotations

import asyncio
import gc
import signal
import time

import uvloop
from aiohttp import web

from gateway import logs
from gateway.config import Config, Listener
from gateway.listeners import admin, json
from gateway.listeners.client import ClientPort
from gateway.metrics import Metrics
from gateway.services import bind
from gateway.services.scope import Scope
from gateway.upstream.cluster import Cluster
from gateway.upstream.link import LinkState
from gateway.wire.connection import Limits

FIRST_CONNECT = 2.0
"""Seconds that the start waits for the clusters; then it serves without those that are not there."""

DRAIN = 10.0
"""Seconds that running calls get at the end."""


class Gateway:
    """Everything that one process runs."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.metrics = Metrics()
        self.log = logs.logger("server")
        self.started = time.time()
        self.clusters: dict[str, Cluster] = {}
        self.ports: list[ClientPort] = []
        self._servers: list[asyncio.Server] = []
        self._runners: list[web.AppRunner] = []
        self._states: dict[tuple[str, str], LinkState] = {}

    async def start(self) -> None:
        """Connect to the clusters, then open the listeners. Raises OSError when an address can't be had."""
        config = self.config
        self.clusters = {c.name: Cluster(c.name, c.endpoints, self._endpoint_changed) for c in config.clusters}
        await asyncio.gather(*(cluster.settled(FIRST_CONNECT) for cluster in self.clusters.values()))
        for listener in config.listeners:
            await self._listen(listener)
        if config.admin is not None:
            await self._serve_web(admin.make_app(self), config.admin.address)
            self.log.info("admin_listening", address=config.admin.address)
        gc.collect()
        gc.freeze()  # what the start made stays: no collection needs to look at it again

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        ticker = loop.create_task(self._tick())
        await stop.wait()
        ticker.cancel()
        await self.stop()

    async def stop(self) -> None:
        """GOAWAY to every client, let running calls finish, close."""
        self.log.info("stopping", drain_seconds=DRAIN)
        for server in self._servers:
            server.close()
        for port in self.ports:
            port.close()
        loop = asyncio.get_running_loop()
        end = loop.time() + DRAIN
        while any(port.connections for port in self.ports) and loop.time() < end:
            await asyncio.sleep(0.05)
        for port in self.ports:
            port.abort()
        for runner in self._runners:
            await runner.cleanup()
        for cluster in self.clusters.values():
            cluster.close()
        self.log.info("stopped")

    # the parts

    def scope(self, listener: Listener) -> Scope:
        """What this listener's services work with."""
        routes = self.config.routes_for(listener)
        names = routes.clusters()
        home = listener.cluster or listener.home or routes.cluster_of(b"")
        clusters = {c.name: self.clusters[c.name] for c in self.config.clusters if c.name in names or c.name == home}
        urls = tuple(listener.advertise_urls) or (f"http://{listener.address}",)
        return Scope(listener.name, routes, self.clusters[home], clusters, urls)

    async def _listen(self, listener: Listener) -> None:
        limits = self.config.limits
        handlers = bind(self.scope(listener))
        runner = web.AppRunner(json.make_app(handlers, json.Facts(self)))
        await runner.setup()
        assert runner.server is not None
        port = ClientPort(
            name=listener.name,
            handlers={method.path: (method, handler) for method, handler in handlers.items()},
            web=runner.server,
            metrics=self.metrics,
            limits=Limits(max_streams=limits.max_streams),
            max_connections=limits.max_connections,
            max_request_bytes=limits.max_request_bytes,
        )
        host, number = split_address(listener.address)
        server = await asyncio.get_running_loop().create_server(port.accept, host, number, backlog=4096)
        self._servers.append(server)
        self._runners.append(runner)
        self.ports.append(port)
        self.log.info("listening", listener=listener.name, address=listener.address)

    async def _serve_web(self, app: web.Application, address: str) -> None:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        host, number = split_address(address)
        await web.TCPSite(runner, host, number).start()
        self._runners.append(runner)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0.5)
            now = loop.time()
            for cluster in self.clusters.values():
                cluster.tick(now)
            for port in self.ports:
                port.tick(now)

    def _endpoint_changed(self, cluster: str, url: str, state: LinkState, error: str) -> None:
        """Log a change of state once, not each retry."""
        before = self._states.get((cluster, url))
        if before is state:
            return
        self._states[(cluster, url)] = state
        if state is LinkState.READY:
            self.log.info("endpoint_connected", cluster=cluster, endpoint=url)
        elif state is LinkState.FAILING or error:
            self.log.warning("endpoint_down", cluster=cluster, endpoint=url, error=error)


def split_address(address: str) -> tuple[str, int]:
    """"127.0.0.1:2379" or "[::1]:2379" -> host and port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def run(config: Config) -> int:
    """Run the gateway until it is told to stop; the process's exit status."""
    uvloop.install()
    return asyncio.run(_main(config))


async def _main(config: Config) -> int:
    gateway = Gateway(config)
    try:
        await gateway.start()
    except OSError as error:
        gateway.log.error("start_failed", error=str(error), fix="free the address or choose another one in `listeners` or `admin`")
        return 1
    await gateway.run()
    return 0
