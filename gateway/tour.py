"""What the demo shows: each step does something real with a real client, prints it, and checks it."""

from __future__ import annotations

import http.client
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import click
import etcd3  # type: ignore[import-untyped]  # etcd3-py

from gateway.config import Config
from gateway.core.routes import Routes

KEYS = {
    "/registry/pods/default/web-1": "a pod",
    "/registry/services/specs/default/web": "a service",
    "/registry/leases/kube-node-lease/node-1": "a node's heartbeat",
    "/registry/events/default/web-1.17a4": "an event",
    "/registry/crd.projectcalico.org/ippools/default": "an address pool, as a custom resource",
    "/calico/v1/ipam/assignment/10.244.0.1": "an assigned address",
}


class Surprise(Exception):
    """Something is not as it should be."""


class Tour:
    """The steps share the clients."""

    def __init__(self, config: Config) -> None:
        assert config.admin is not None
        self._address = config.listeners[0].address
        self._admin = config.admin.address
        self._routes = Routes(config.table())
        self._gateway = _client(self._address)
        self._etcds = {cluster.name: _client(urlsplit(cluster.endpoints[0]).netloc) for cluster in config.clusters}

    def walk(self) -> None:
        """All steps. Raises Surprise."""
        for step in (self._write, self._read, self._look, self._watch, self._lease, self._refusal, self._metrics):
            try:
                step()
            except (etcd3.errors.Etcd3Exception, OSError) as error:
                raise Surprise(f"{type(error).__name__}: {error}") from error
        click.secho("\nAll of it held.", fg="green", bold=True)

    def _write(self) -> None:
        _title(f"Write through the gateway at {self._address}")
        for key, value in KEYS.items():
            self._gateway.put(key, value)
            _told(f"put {key}", value)

    def _read(self) -> None:
        _title("Read it back: one range over all clusters, in key order")
        found = _pairs(self._gateway.range("/", prefix=True))
        for key, value in found.items():
            _told(key, value)
        _expect(list(found.items()) == sorted(KEYS.items()), f"read {found}")

    def _look(self) -> None:
        _title("Ask each etcd directly: every key lives in the cluster that the config names")
        for name, etcd in self._etcds.items():
            found = _pairs(etcd.range("/", prefix=True))
            for key in found:
                _told(name, key)
            owned = sorted(key for key in KEYS if self._routes.cluster_of(key.encode()) == name)
            _expect(sorted(found) == owned != [], f"{name} has {list(found)}")

    def _watch(self) -> None:
        _title("Watch all clusters with one watch, and write to each")
        with self._gateway.watch_create("/", prefix=True, timeout=10) as stream:
            answers = iter(stream)
            _expect(bool(next(answers).created), "the watch was not created")
            for key in KEYS:
                self._gateway.put(key, "changed")
            seen = list(islice(_events(answers), len(KEYS)))
        for key in seen:
            _told(self._routes.cluster_of(key.encode()), f"event: {key} changed")
        _expect(sorted(seen) == sorted(KEYS), f"saw {seen}")

    def _lease(self) -> None:
        _title("A lease is valid in every cluster")
        lease = int(self._gateway.lease_grant(60).ID)
        keys = {"/registry/events/default/short-lived": "events", "/registry/masterleases/10.0.0.1": "main"}
        for key, cluster in keys.items():
            self._gateway.put(key, "leased", lease=lease)
            _told(cluster, f"put {key} with lease {lease:x}")
            _expect(key in _pairs(self._etcds[cluster].range(key)), f"{key} is not in {cluster}")
        left = self._gateway.lease_time_to_live(lease, keys=True)
        _told("time to live", f"{left.TTL} s, keys {', '.join(_text(key) for key in left.keys)}")
        _expect(sorted(map(_text, left.keys)) == sorted(keys) and 0 < int(left.TTL) <= 60, f"time to live: {left}")
        self._gateway.lease_revoke(lease)
        gone = not any(_pairs(self._gateway.range(key)) for key in keys)
        _told("revoked", "its keys are gone from both")
        _expect(gone, "keys of a revoked lease are left")

    def _refusal(self) -> None:
        _title("A transaction over two clusters would not be atomic: nothing of it is done")
        transaction = self._gateway.Txn()
        for key in ("/registry/pods/default/web-2", "/registry/events/default/web-2"):
            transaction.success(transaction.put(key, "never"))
        try:
            transaction.commit()
        except etcd3.errors.Etcd3Exception as error:
            _told("refused", str(error.error if hasattr(error, "error") else error))
        else:
            raise Surprise("the transaction was done")
        _expect(not _pairs(self._gateway.range("/registry/pods/default/web-2")), "half of the transaction was done")

    def _metrics(self) -> None:
        _title(f"What the gateway counted (http://{self._admin}/metrics)")
        connection = http.client.HTTPConnection(self._admin, timeout=5)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        puts = [line for line in lines if line.startswith("shardgate_requests_total") and 'method="KV/Put"' in line]
        for line in puts:
            click.echo(f"  {line}")
        for name in self._etcds:
            _expect(any(f'cluster="{name}"' in line for line in puts), f"no put in {name} was counted")


def _client(address: str) -> Any:
    """etcd3-py speaks etcd's JSON API; it asks for the server's version at once."""
    host, _, port = address.rpartition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("error", etcd3.utils.Etcd3Warning)
        try:
            return etcd3.Client(host, int(port), timeout=10)
        except etcd3.utils.Etcd3Warning as warning:
            raise Surprise(f"{address} does not tell its version: {warning}") from None


def _events(answers: Iterator[Any]) -> Iterator[str]:
    """The keys of all events of a watch, as they come."""
    for answer in answers:
        for event in answer.events or ():
            yield _text(event.kv.key)


def _pairs(reply: Any) -> dict[str, str]:
    return {_text(pair.key): _text(pair.value or b"") for pair in reply.kvs or ()}


def _text(data: bytes) -> str:
    return data.decode()


def _title(text: str) -> None:
    click.secho(f"\n{text}", bold=True)


def _told(what: str, text: str) -> None:
    click.echo(f"  {click.style(what, fg='cyan')}  {text}")


def _expect(true: bool, otherwise: str) -> None:
    if not true:
        raise Surprise(otherwise)
