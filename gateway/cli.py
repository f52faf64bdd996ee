"""The command line: serve, check, route, demo."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from gateway.config import Config, ConfigError, Listener, from_flags, load, refusals, warnings
from gateway.core.keyrange import EVERYTHING_FROM, bounds, prefix_end
from gateway.core.routes import Route, Routes, Span


def _version() -> str:
    try:
        return version("shardgate")
    except PackageNotFoundError:
        return "unknown (not installed)"


_SOURCE = (
    click.option("--config", "-c", "path", metavar="FILE", help="The YAML file; config/minimal.yaml is one."),
    click.option("--etcd-servers", "servers", metavar="URLS", multiple=True, help="Instead of a file: kube-apiserver's own flag, http://127.0.0.1:12379,…"),
    click.option("--etcd-servers-overrides", "overrides", metavar="TEXT", multiple=True, help="Its other one: /events#http://127.0.0.1:22379;url,…"),
    click.option("--etcd-prefix", "prefix", metavar="PREFIX", help="And what its keys begin with.  [default: /registry]"),
    click.option("--listen", metavar="HOST:PORT", help="With --etcd-servers: where clients connect.  [default: 127.0.0.1:2379]"),
    click.option("--admin", metavar="HOST:PORT", help="With --etcd-servers: metrics and health, 127.0.0.1:9379 say.  [default: none]"),
)
"""Where the configuration comes from: a file, or a kube-apiserver's own flags."""


def _source(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_SOURCE):
        function = option(function)
    return function


def _config(path: str | None, servers: Sequence[str], overrides: Sequence[str], **flags: str | None) -> Config:
    """The configuration; ends the process with what is wrong with it."""
    given = {name: value for name, value in flags.items() if value is not None}
    if bool(path) == bool(servers):
        raise click.UsageError("give --config FILE or --etcd-servers URLS, one of them")
    if path and (overrides or given):
        raise click.UsageError("--etcd-servers-overrides, --etcd-prefix, --listen and --admin go with --etcd-servers, not with a file")
    try:
        if path:
            return load(path)
        return from_flags(",".join(servers), ",".join(overrides), given.pop("listen", "127.0.0.1:2379"), **given)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="shardgate")
def main() -> None:
    """An etcd v3 gateway: one address in front of many etcd clusters, each key prefix in its own."""


@main.command()
@_source
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Wins over the file's log.level.")
@click.option("--log-format", type=click.Choice(["logfmt", "json"]), help="Wins over the file's log.format.")
def serve(log_level: str | None, log_format: str | None, **source: Any) -> None:
    """Run the gateway until SIGTERM or Ctrl-C."""
    config = _config(**source)
    if refused := refusals(config):
        click.echo(str(ConfigError(source["path"] or "flags", refused)), err=True)
        sys.exit(1)
    from gateway.server import run  # heavy: the other commands do without

    given = {key: value for key, value in (("level", log_level), ("format", log_format)) if value}
    sys.exit(run(config.model_copy(update={"log": config.log.model_copy(update=given)})))


@main.command()
@_source
def check(**source: Any) -> None:
    """Check the configuration and print what it means."""
    config = _config(**source)
    for warning in warnings(config):
        click.echo(f"warning: {warning}", err=True)
    for refusal in refusals(config):
        click.echo(f"warning: serve refuses this: {refusal}", err=True)
    listeners = [(each.name, each.address, _keys(each), config.home_of(each)) for each in config.listeners]
    admin = [("(admin)", config.admin.address, "", "")] if config.admin else []
    _print_table(("LISTENER", "ADDRESS", "KEYS", "HOME"), [*listeners, *admin])
    _print_table(("PREFIX", "CLUSTER", "CACHE", "FROM"), [_row(each) for each in sorted(config.table(), key=lambda each: each.below)])
    _print_table(("CLUSTER", "ENDPOINTS"), [(each.name, " ".join(each.endpoints) or "(discovery)") for each in config.clusters])


def _keys(listener: Listener) -> str:
    return f"all to {listener.cluster}" if listener.cluster else "by route"


def _row(route: Route) -> tuple[str, ...]:
    prefix = route.below.decode("utf-8", "backslashreplace") or '""'
    return prefix, route.cluster, "on" if route.cache else "off", route.source


def _print_table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Aligned, and a blank line after it; nothing without rows."""
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    click.echo()


@main.command()
@_source
@click.option("--listener", "name", metavar="NAME", help="As its clients see it.  [default: the first without a cluster]")
@click.option("--prefix", "is_prefix", is_flag=True, help="All keys that begin with KEY.")
@click.option("--from-key", is_flag=True, help="All keys from KEY on.")
@click.option("--hex", "is_hex", is_flag=True, help="KEY and RANGE_END are hexadecimal, for keys that are no text.")
@click.argument("key")
@click.argument("range_end", default="")
def route(name: str | None, is_prefix: bool, from_key: bool, is_hex: bool, key: str, range_end: str, **source: Any) -> None:
    """Say which cluster owns KEY, or each part of the range [KEY, RANGE_END), and why."""
    if bool(range_end) + is_prefix + from_key > 1:
        raise click.UsageError("give one of RANGE_END, --prefix and --from-key")
    low, end = _bytes(key, is_hex), _bytes(range_end, is_hex)
    if not low:
        raise click.UsageError("KEY is empty, which etcd refuses; all keys are --hex --from-key 00")
    end = prefix_end(low) if is_prefix else EVERYTHING_FROM if from_key else end
    config = _config(**source)
    routes = config.routes_for(_listener(config, name))
    for span in routes.spans(low, end):
        click.echo(f"{_range(span)}: cluster {span.cluster}, by {', '.join(_sources(routes, span))}")


def _bytes(text: str, is_hex: bool) -> bytes:
    try:
        return bytes.fromhex(text) if is_hex else text.encode("utf-8", "surrogateescape")
    except ValueError:
        raise click.UsageError("with --hex, KEY and RANGE_END are pairs of hexadecimal digits") from None


def _listener(config: Config, name: str | None) -> Listener:
    found = [each for each in config.listeners if each.name == name or (name is None and not each.cluster)]
    if name is not None and not found:
        raise click.UsageError(f"there is no listener {name!r}; there are {', '.join(each.name for each in config.listeners)}")
    return [*found, *config.listeners][0]


def _range(span: Span) -> str:
    low, end = str(span.key)[1:], str(span.end)[1:]
    return low if not span.end else f"{low} to the last key" if span.end == EVERYTHING_FROM else f"{low} to {end}"


def _sources(routes: Routes, span: Span) -> list[str]:
    """Which routes lead to the cluster, in key order."""
    low, high = bounds(span.key, span.end)
    first = [routes.route_of(low).source]
    others = [each.source for start, _, each in routes.intervals() if low < start and (high is None or start < high)]
    return list(dict.fromkeys(first + others))


@main.command()
@click.option("--keep/--no-keep", default=None, help="Stay up after the tour, or end.  [default: stay up on a terminal]")
def demo(keep: bool | None) -> None:
    """Start three etcd clusters and a gateway on this machine (ports 23790 to 23820) and show it working."""
    from gateway.demo import run

    sys.exit(run(keep))
