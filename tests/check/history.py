"""What clients did and saw, and whether one etcd could have answered so."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Write:
    """A put of a value that nobody else writes, None for a deletion. `revision` 0: the client does not know what became of it."""

    key: bytes
    value: bytes | None
    start: float
    end: float
    revision: int


@dataclass(frozen=True)
class Read:
    """What was found, by key. `connection`: who asked. `keys`: what was asked for."""

    keys: tuple[bytes, ...]
    found: dict[bytes, bytes]
    revision: int
    start: float
    end: float
    connection: str
    serializable: bool = False


@dataclass
class History:
    """`truth`: every change of the cluster as (revision, key, value or None), in order."""

    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    truth: list[tuple[int, bytes, bytes | None]] = field(default_factory=list)
    watched: dict[str, list[tuple[int, bytes, bytes | None]]] = field(default_factory=dict)

    def violations(self) -> list[str]:
        """What no etcd would have answered; empty if all is well."""
        return [*self._lost_writes(), *self._wrong_values(), *self._stale_reads(), *self._backwards(), *self._watchers()]

    def _lost_writes(self) -> Iterable[str]:
        happened: dict[tuple[bytes, bytes], list[int]] = {}
        for revision, key, value in self.truth:
            if value is not None:
                happened.setdefault((key, value), []).append(revision)
        for write in self.writes:
            if write.value is None:
                continue
            found = happened.get((write.key, write.value), [])
            if write.revision and found != [write.revision]:
                yield f"acknowledged at {write.revision}, but the cluster has it at {found}: {write}"
            elif len(found) > 1:
                yield f"written more than once, at {found}: {write}"

    def _wrong_values(self) -> Iterable[str]:
        changes: dict[bytes, list[tuple[int, bytes | None]]] = {}
        for revision, key, value in self.truth:
            changes.setdefault(key, []).append((revision, value))
        revisions = {key: [revision for revision, _ in found] for key, found in changes.items()}
        for read in self.reads:
            wanted = {}
            for key in read.keys:
                at = bisect_right(revisions.get(key, []), read.revision)
                value = changes[key][at - 1][1] if at else None
                if value is not None:
                    wanted[key] = value
            if wanted != read.found:
                yield f"at {read.revision} the cluster had {wanted}: {read}"

    def _stale_reads(self) -> Iterable[str]:
        """What anybody was told before a linearizable read began, it has to see."""
        told = [*self.writes, *(read for read in self.reads if not read.serializable)]
        known = sorted([(each.end, each.revision) for each in told if each.revision])
        ends = [end for end, _ in known]
        highest = [0]
        for _, revision in known:
            highest.append(max(highest[-1], revision))
        for read in self.reads:
            floor = highest[bisect_left(ends, read.start)]
            if not read.serializable and read.revision < floor:
                yield f"revision {floor} was known before it began: {read}"

    def _backwards(self) -> Iterable[str]:
        last: dict[str, Read] = {}
        for read in sorted(self.reads, key=lambda read: read.start):
            before = last.get(read.connection)
            if before is not None and read.revision < before.revision and before.end <= read.start:
                yield f"went back from {before.revision}: {read}"
            last[read.connection] = read

    def _watchers(self) -> Iterable[str]:
        """Each heard all that happened from its first event to its last, in order, once."""
        for name, heard in self.watched.items():
            if not heard:
                yield f"{name} heard nothing"
                continue
            wanted = [change for change in self.truth if heard[0][0] <= change[0] <= heard[-1][0]]
            if heard != wanted:
                odd = next((pair for pair in zip(heard, wanted, strict=False) if pair[0] != pair[1]), None)
                yield f"{name} heard {len(heard)} changes of {len(wanted)}; the first that differs: {odd}"
