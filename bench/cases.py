"""What is measured, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal, Protocol

Program = Literal["h2load", "load", "fanout", "burst"]


class Series(Protocol):
    """What has a name and belongs to a series."""

    @property
    def series(self) -> str: ...
    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Case:
    """One row. `size` is the number of calls in flight, of calls at once, or of watchers; `longer` stretches the runs of slow calls.
    `targets`: the only ones that it is for; none: all."""

    series: str
    size: int
    program: Program
    work: str
    quick: bool = False
    timeouts: bool = False
    longer: float = 1
    writes: int = 0
    rate: float = 0
    per_connection: int = 100
    targets: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As on the command line and in the table."""
        return f"{self.series}/{self.size}"

    @property
    def connections(self) -> int:
        """Calls in flight are spread over four connections."""
        return min(4, self.size)


READS = (("get", "get", (1, 32, 256, 1024)), ("get-serializable", "get-serializable", (1, 32, 256)), ("list-200", "list-200", (1, 32, 256)))
SINGLE = (("get-own-load", False), ("get-grpc-timeout", True))
WRITES = (("put", "put"), ("txn-create", "create"), ("txn-update", "update"))
IN_FLIGHT = (1, 32, 256)


def _all() -> Iterator[Case]:
    for series, work, sizes in READS:
        for size in sizes:
            yield Case(series, size, "h2load", work, quick=size == 32 or (series, size) == ("get", 1))
    for size in (1, 32):
        yield Case("list-10000", size, "h2load", "list-10000", quick=size == 1, longer=3)
    for size in (1, 32):
        yield Case("pages-10000", size, "load", "pages-10000", quick=size == 1, longer=2)
    for series, timeouts in SINGLE:
        for size in (*IN_FLIGHT, 1024):
            yield Case(series, size, "load", "get", quick=size == 32, timeouts=timeouts)
    for series, work in WRITES:
        for size in IN_FLIGHT:
            yield Case(series, size, "load", work, quick=size == 32)
    yield Case("burst", 1_000, "burst", "list-uncached", quick=True)
    for size, writes in ((1, 10_000), (100, 4_000), (1_000, 2_000)):
        yield Case("watch", size, "fanout", "watch", quick=size == 100, writes=writes)
    for size in (1, 100, 1_000):
        yield Case("watch-paced", size, "fanout", "watch", quick=size == 100, writes=100, rate=50)
    yield Case("watch-clients", 5_000, "fanout", "watch", writes=1_000, rate=100, per_connection=1, targets=("gateway",))


CASES = tuple(_all())


def matches(case: Series, only: tuple[str, ...]) -> bool:
    """Whether one of the patterns means it; without one all are meant."""
    return not only or any(fnmatch(case.name, pattern) or case.series == pattern for pattern in only)


def chosen(only: tuple[str, ...], quick: bool) -> list[Case]:
    """The cases whose name or series matches a pattern; all, or those of the quick run, without one."""
    return [case for case in CASES if matches(case, only) and (case.quick or only or not quick)]
