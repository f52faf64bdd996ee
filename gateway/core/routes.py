"""INTERFACE SKETCH, to be implemented: key or range -> cluster(s), over a flattened sorted table of disjoint intervals."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a range that lies in one cluster. etcd's conventions: end None = the single key, b"\\0" = to the end of keys."""

    cluster: str
    key: bytes
    end: bytes | None


class Routes:
    """Immutable routing table: clusters by name only."""

    def cluster_of(self, key: bytes) -> str:
        """The owner of one key: one bisect."""
        raise NotImplementedError

    def spans(self, key: bytes, range_end: bytes) -> tuple[Span, ...]:
        """etcd's range convention (range_end b"" = one key, b"\\0" = from key on). Neighbouring intervals of the same cluster are one span. An
        empty or reversed range belongs to the key's owner as one span. Never empty."""
        raise NotImplementedError

    def clusters(self) -> tuple[str, ...]:
        """The names of all clusters in the table, each once."""
        raise NotImplementedError
