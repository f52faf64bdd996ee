"""The command line: serve, check, route, demo."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from gateway.config import Config, ConfigError, from_flags, load
from gateway.core.routes import Routes


def _version() -> str:
    try:
        return version("shardgate")
    except PackageNotFoundError:
        return "unknown (not installed)"


def _source(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where the configuration comes from: a file, or kube-apiserver's own two flags."""
    for option in (
        click.option("--admin", metavar="HOST:PORT", help="With --etcd-servers: the admin listener, e.g. 127.0.0.1:9379."),
        click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:2379", show_default=True, help="With --etcd-servers: the listener."),
        click.option("--etcd-servers-overrides", "overrides", metavar="TEXT", help="As kube-apiserver's: group/resource#url;url,…"),
        click.option("--etcd-servers", "servers", metavar="URLS", help="Instead of a file, as kube-apiserver's: comma-separated URLs."),
        click.option("--config", "-c", "path", metavar="FILE", help="The YAML file."),
    ):
        function = option(function)
    return function


def _config(path: str | None, servers: str | None, overrides: str | None, listen: str, admin: str | None) -> Config:
    if bool(path) == bool(servers):
        raise click.UsageError("give --config FILE or --etcd-servers URLS, one of them")
    if path and (overrides or admin):
        raise click.UsageError("--etcd-servers-overrides and --admin go with --etcd-servers; in a file they are `overrides:` and `admin:`")
    try:
        return load(path) if path else from_flags(servers or "", overrides or "", listen, admin)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(1)


@click.group()
@click.version_option(_version(), prog_name="shardgate")
def main() -> None:
    """An etcd v3 gateway: one address in front of many etcd clusters, each key prefix in its own."""


@main.command()
@_source
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Over the file's log.level.")
@click.option("--log-format", type=click.Choice(["logfmt", "json"]), help="Over the file's log.format.")
def serve(log_level: str | None, log_format: str | None, **source: Any) -> None:
    """Run the gateway until SIGTERM."""
    from gateway.server import run

    config = _config(**source)
    given = {key: value for key, value in (("level", log_level), ("format", log_format)) if value}
    sys.exit(run(config.model_copy(update={"log": config.log.model_copy(update=given)})))


@main.command()
@_source
def check(**source: Any) -> None:
    """Check the configuration and print its routing table."""
    config = _config(**source)
    for warning in warnings(config):
        click.echo(f"warning: {warning}", err=True)
    for listener in config.listeners:
        what = f"every key to cluster {listener.cluster}" if listener.cluster else f"routes below, home {config.home_of(listener)}"
        click.echo(f"listener {listener.name} {listener.address}: {what}")
    click.echo()
    rows: list[tuple[str, ...]] = [("PREFIX", "CLUSTER", "CACHE", "FROM")]
    for route in sorted(config.table(), key=lambda route: route.prefix):
        rows.append((route.prefix.decode("utf-8", "backslashreplace") or '""', route.cluster, "on" if route.cache else "off", route.source))
    _print_table(rows)
    click.echo()
    _print_table([("CLUSTER", "ENDPOINTS"), *((c.name, " ".join(c.endpoints) or "(discovery)") for c in config.clusters)])


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def warnings(config: Config) -> list[str]:
    """What is accepted but not served by this version, and what is probably not meant."""
    found = [f"listener {each.name}: TLS is not served yet; `serve` refuses this file" for each in config.listeners if each.tls]
    found += [f"cluster {each.name}: TLS is not spoken yet; `serve` refuses this file" for each in config.clusters if _needs_tls(each)]
    found += [f"cluster {each.name}: discovery is not served yet; `serve` refuses this file" for each in config.clusters if each.discovery]
    found += [f"listener {each.name}: unix sockets are not served yet; `serve` refuses this file" for each in config.listeners if _unix(each)]
    used = {route.cluster for route in config.routes} | {each.cluster for each in config.listeners} | {each.home for each in config.listeners}
    found += [f"cluster {each.name}: no route and no listener uses it" for each in config.clusters if each.name not in used]
    return found


def _needs_tls(cluster: Any) -> bool:
    return bool(cluster.tls) or any(url.startswith("https:") for url in cluster.endpoints)


def _unix(listener: Any) -> bool:
    return bool(listener.address.startswith("unix:"))


@main.command()
@_source
@click.option("--hex", "is_hex", is_flag=True, help="KEY and RANGE_END are hexadecimal.")
@click.option("--prefix", is_flag=True, help="All keys that begin with KEY.")
@click.argument("key")
@click.argument("range_end", default="")
def route(is_hex: bool, prefix: bool, key: str, range_end: str, **source: Any) -> None:
    """Say which cluster owns KEY, or each part of the range [KEY, RANGE_END), and why."""
    from gateway.core.keyrange import prefix_end

    config = _config(**source)
    try:
        low = bytes.fromhex(key) if is_hex else key.encode()
        end = bytes.fromhex(range_end) if is_hex else range_end.encode()
    except ValueError:
        raise click.UsageError("with --hex, KEY and RANGE_END are pairs of hexadecimal digits") from None
    routes = Routes(config.table())
    for span in routes.spans(low, prefix_end(low) if prefix else end):
        owner = routes.route_of(span.key)
        text = _quoted(span.key) + (f" to {_quoted(span.end)}" if span.end else "")
        click.echo(f"{text}: cluster {span.cluster}, by {owner.source}")


def _quoted(key: bytes) -> str:
    return repr(key)[1:]


@main.command()
def demo() -> None:
    """Start three etcd clusters and a gateway on this machine and show it working."""
    from gateway.demo import run

    sys.exit(run(None))
