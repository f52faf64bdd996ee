"""What is measured, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

Program = Literal["h2load", "load", "fanout"]


@dataclass(frozen=True, slots=True)
class Case:
    """One row. `size` is the number of calls in flight, or of watchers; `longer` stretches the runs of slow calls."""

    series: str
    size: int
    program: Program
    work: str
    quick: bool = False
    timeouts: bool = False
    longer: float = 1
    writes: int = 0
    rate: float = 0

    @property
    def name(self) -> str:
        """As on the command line and in the table."""
        return f"{self.series}/{self.size}"

    @property
    def connections(self) -> int:
        """Calls in flight are spread over four connections."""
        return min(4, self.size)


READS = (("get", "get"), ("get-serializable", "get-serializable"), ("list-200", "list-200"))
SINGLE = (("get-own-load", "get", False), ("get-grpc-timeout", "get", True))
WRITES = (("put", "put"), ("txn-create", "create"), ("txn-update", "update"))
IN_FLIGHT = (1, 32, 256)


def _all() -> Iterator[Case]:
    for series, work in READS:
        for size in IN_FLIGHT:
            yield Case(series, size, "h2load", work, quick=size == 32 or (series, size) == ("get", 1))
    for size in (1, 32):
        yield Case("list-10000", size, "h2load", "list-10000", quick=size == 1, longer=3)
    for series, work, timeouts in SINGLE:
        for size in IN_FLIGHT:
            yield Case(series, size, "load", work, quick=size == 32, timeouts=timeouts)
    for series, work in WRITES:
        for size in IN_FLIGHT:
            yield Case(series, size, "load", work, quick=size == 32)
    for size, writes in ((1, 10_000), (100, 4_000), (1_000, 1_000)):
        yield Case("watch", size, "fanout", "watch", quick=size == 100, writes=writes)
    for size in (1, 100, 1_000):
        yield Case("watch-paced", size, "fanout", "watch", quick=size == 100, writes=100, rate=50)


CASES = tuple(_all())


def chosen(only: tuple[str, ...], quick: bool) -> list[Case]:
    """The cases whose name or series matches a pattern; all, or those of the quick run, without one."""
    if only:
        return [case for case in CASES if any(fnmatch(case.name, pattern) or case.series == pattern for pattern in only)]
    return [case for case in CASES if case.quick or not quick]
