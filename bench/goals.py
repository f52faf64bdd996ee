"""What the gateway has to reach, and whether it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import sub, truediv
from statistics import median
from typing import Any

from bench.report import Runs

Results = Mapping[str, Runs]
"""By case."""

NOISE = 0.97
"""What "no slower" has to be at least: two runs of the same thing differ by more."""


@dataclass(frozen=True)
class Goal:
    """A figure of the gateway's runs of a case, set against the figure of another target, or of another case, in the same repetition; or
    by itself. `bound`: what the median of that must be at least, or with `most` at most."""

    text: str
    case: str
    figure: str
    bound: float
    most: bool = False
    target: str = ""
    other: str = ""
    difference: bool = False

    def value(self, results: Results) -> float | None:
        """None where it was not measured."""
        mine = results.get(self.case, {}).get("gateway")
        if not mine:
            return None
        if not self.target and not self.other:
            return float(median(run[self.figure] for run in mine))
        theirs = results.get(self.other or self.case, {}).get(self.target or "gateway")
        if not theirs:
            return None
        compare: Callable[[float, float], float] = sub if self.difference else truediv
        pairs = zip((run[self.figure] for run in mine), (run[self.figure] for run in theirs), strict=True)
        compared = [compare(a, b) for a, b in pairs if b or self.difference]
        return median(compared) if compared else None

    def reached(self, value: float) -> bool:
        """Whether the value is good enough."""
        return value <= self.bound if self.most else value >= self.bound


def _by_etcd(case: str, bound: float) -> Goal:
    return Goal("by etcd directly", case, "rate", bound, target="etcd")


def _by_proxy(case: str, bound: float) -> Goal:
    return Goal("by grpc-proxy", case, "rate", bound, target="grpc-proxy")


GOALS = (
    _by_etcd("get-serializable/32", 4),
    _by_proxy("get-serializable/32", 2),
    _by_etcd("get/32", 1.3),
    _by_etcd("get/256", 2.8),
    _by_etcd("get/1024", 3.3),
    _by_proxy("get/256", 10),
    *(
        Goal("by the same without a new timeout each", f"get-grpc-timeout/{size}", "rate", 0.75, other=f"get-own-load/{size}")
        for size in (32, 256, 1024)
    ),
    _by_etcd("list-200/32", 5),
    _by_etcd("list-10000/1", 4),
    _by_etcd("list-10000/32", 4),
    _by_etcd("pages-10000/1", 4),
    _by_etcd("pages-10000/32", 4),
    Goal("watches that etcd has", "watch/1000", "etcd_watches", 1, most=True),
    Goal("etcd's CPU by etcd's directly", "watch/1000", "etcd_cpu_seconds", 1 / 20, most=True, target="etcd"),
    _by_etcd("watch/1000", 1),
    Goal("p99 ms more than etcd directly", "watch/1000", "p99_ms", 2, most=True, target="etcd", difference=True),
    Goal("p99 ms more than etcd directly", "watch-paced/1000", "p99_ms", 2, most=True, target="etcd", difference=True),
    Goal("events lost, doubled or in another order", "watch-clients/5000", "errors", 0, most=True),
    Goal("growth of memory", "watch-clients/5000", "growth", 0.05, most=True),
    Goal("calls to etcd", "burst/1000", "upstream_calls", 3, most=True),
    *(Goal("by the gateway without cache", f"put/{size}", "rate", NOISE, target="forwarding") for size in (1, 32, 256)),
    Goal("memory by the bytes of keys and values", "memory/200000", "by_raw_size", 2, most=True),
    Goal("by reading pages from etcd", "loading/1000000", "rate", 0.5, target="etcd"),
)


def judged(results: Results, goals: Sequence[Goal] = GOALS) -> list[dict[str, Any]]:
    """The goals whose cases were measured."""
    found = []
    for goal in goals:
        value = goal.value(results)
        if value is not None:
            figures = {"case": goal.case, "what": goal.text, "value": value, "at_most" if goal.most else "at_least": goal.bound}
            found.append(figures | {"reached": goal.reached(value)})
    return found


def lines(judgements: Sequence[Mapping[str, Any]]) -> str:
    """For people."""
    return "\n".join(
        f"{each['case']:20} {each['what']:42} {each['value']:>8.3g}  {'≤' if 'at_most' in each else '≥'} "
        f"{each.get('at_most', each.get('at_least')):<5.3g} {'reached' if each['reached'] else 'NOT REACHED'}"
        for each in judgements
    )
