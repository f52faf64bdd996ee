"""Runs that are recorded once, and judged by more than one test."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random

import pytest

from tests.check.faults import one_by_one
from tests.check.history import History
from tests.check.stage import stage
from tests.etcd import BINARIES, default_version, wait_for

SOAK = float(os.environ.get("SHARDGATE_SOAK_SECONDS", "600"))

HITS, FOLLOWERS = "shardgate_cache_hits_total", "shardgate_flight_followers_total"

BACK = 10.0
"""Seconds after the last fault in which the gateways have to read from memory again."""

CONNECTIONS = "cut cut_feed lag slow hole"
MEMBER = "stop kill compact defragment cut+compact"
LEADER = "move_leader stop_leader kill"
ALONE = f"{CONNECTIONS} {MEMBER}"
TOGETHER = "hole+stop lag+compact kill+cut slow+cut_feed+defragment"


@dataclass(frozen=True)
class Run:
    """What goes wrong in front of what."""

    version: str
    size: int
    faults: str
    module: str = "gateway"
    seed: int = 0
    pause: float = 0.25

    def __str__(self) -> str:
        return f"{self.version}-{self.size}-{self.faults.replace(' ', '-')}"


@dataclass(frozen=True)
class Record:
    """What came of it: the history, and the sum of each gateway's counters of reads from memory and of shared calls."""

    run: Run
    history: History
    hits: list[float]
    followers: list[float]

    @property
    def told(self) -> Counter[str]:
        """How many of each kind of watch response there were."""
        replies = [told.reply for watcher in self.history.watchers for leg in watcher.legs for told in leg.told]
        return Counter(
            "created" if each.created else "fragment" if each.fragment else "events" if each.events else "progress" for each in replies
        )


RUNS = [
    Run(default_version(), 1, CONNECTIONS),
    Run(default_version(), 1, MEMBER),
    Run(default_version(), 3, LEADER),
    *(Run(version, 1, "lag kill compact") for version in BINARIES if version != default_version()),
]
"""What `make test` goes through: some seconds for each fault."""

each_run = pytest.mark.parametrize("run", RUNS, ids=str)


@cache
def recorded(run: Run) -> Record:
    """It takes place at the first call."""
    with stage(run.version, run.size, run.module, run.seed) as built:
        one_by_one(built, run.faults, Random(run.seed), run.pause)
        for process in built.gateways:
            wait_for("reads from memory", lambda process=process: process.status()["clusters"][0]["cache"]["caching"], BACK)
        time.sleep(run.pause)
        hits, followers = ([process.metric(name) for process in built.gateways] for name in (HITS, FOLLOWERS))
    return Record(run, built.history, hits, followers)


def soaked(seconds: float) -> Iterator[Record]:
    """Runs of every kind, longer ones, in an order and with details that differ each time."""
    until, seed = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        seed += 1
        rnd = Random(seed)
        size, names = rnd.choice(((1, f"{ALONE} {TOGETHER}"), (3, f"{ALONE} {TOGETHER} {LEADER} lag+stop_leader")))
        faults = rnd.sample(names.split(), len(names.split()))
        run = Run(list(BINARIES)[seed % len(BINARIES)], size, " ".join(faults), seed=seed, pause=rnd.uniform(0.2, 1.5))
        yield recorded.__wrapped__(run)  # nobody else wants it: it is not kept
