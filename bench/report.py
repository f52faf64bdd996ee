"""Medians and ratios out of the runs, as a table for people and as JSON."""

from __future__ import annotations

import math
from statistics import median
from typing import Any

Runs = dict[str, list[dict[str, Any]]]
"""One case: by target the result of each repetition, in order."""

COLUMNS = ("case", "target", "per second", "/etcd", "/grpc-proxy", "p50 ms", "p99 ms", "etcd µs", "proxy µs", "RSS MB", "errors")


def ratio(runs: Runs, target: str, other: str) -> float | None:
    """The median over the repetitions of target's rate by that of other in the same repetition."""
    if target == other or other not in runs or target not in runs:
        return None
    pairs = [mine["rate"] / its["rate"] for mine, its in zip(runs[target], runs[other], strict=True) if its["rate"]]
    return median(pairs) if pairs else None


def summary(runs: Runs, target: str) -> dict[str, float | None]:
    """One row's figures; CPU in microseconds per call or event."""
    mine = runs[target]

    def middle(values: list[float]) -> float | None:
        kept = [value for value in values if not math.isnan(value)]
        return median(kept) if kept else None

    def cpu(name: str) -> float | None:
        return middle([run[f"{name}_cpu_seconds"] / run["calls"] * 1e6 for run in mine if run["calls"] and f"{name}_cpu_seconds" in run])

    return {
        "rate": middle([run["rate"] for run in mine]),
        "by_etcd": ratio(runs, target, "etcd"),
        "by_grpc_proxy": ratio(runs, target, "grpc-proxy"),
        "p50_ms": middle([run["p50_ms"] for run in mine]),
        "p99_ms": middle([run["p99_ms"] for run in mine]),
        "etcd_cpu_us": cpu("etcd"),
        "proxy_cpu_us": cpu("proxy"),
        "proxy_rss_mb": middle([run["proxy_rss_bytes"] / 1e6 for run in mine if "proxy_rss_bytes" in run]),
        "errors": sum(run["errors"] for run in mine),
    }


def rows(name: str, runs: Runs) -> list[tuple[str, ...]]:
    """The table's rows of one case; one with errors ends in `!` and the first error's text."""
    return [
        (name if number == 0 else "", target, *_cells(summary(runs, target)), _errors(runs[target])) for number, target in enumerate(runs)
    ]


def _cells(figures: dict[str, float | None]) -> list[str]:
    formats = ("{:,.0f}", "{:.2f}", "{:.2f}", "{:.3f}", "{:.3f}", "{:.1f}", "{:.1f}", "{:.0f}")
    values = [value for key, value in figures.items() if key != "errors"]
    return ["" if value is None else text.format(value) for text, value in zip(formats, values, strict=True)]


def _errors(runs: list[dict[str, Any]]) -> str:
    total = sum(run["errors"] for run in runs)
    return f"{total} ! {next(run['error'] for run in runs if run['errors'])[:60]}" if total else "0"


def table(lines: list[tuple[str, ...]]) -> str:
    """All rows under their headings, in columns."""
    every = [COLUMNS, *lines]
    widths = [max(len(line[column]) for line in every) for column in range(len(COLUMNS) - 1)]
    return "\n".join("  ".join([*map(_pad, line, widths, range(len(widths))), line[-1]]) for line in every)


def _pad(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column < 2 else cell.rjust(width)
