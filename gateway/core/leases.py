"""What a gateway knows of leases: their TTL, and which clusters have a copy. Only a memory: the home cluster is the truth."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass
class Lease:
    """A lease of the home cluster. `ttl`: seconds as granted. `copies`: names of the clusters that were granted the same id."""

    ttl: int
    copies: set[str] = field(default_factory=set)


class LeaseBook:
    """Leases by id; the longest unused ones are forgotten above `size`."""

    def __init__(self, size: int = 100_000) -> None:
        self._size = size
        self._leases: OrderedDict[int, Lease] = OrderedDict()

    def __len__(self) -> int:
        return len(self._leases)

    def remember(self, number: int, ttl: int) -> Lease:
        """The lease exists on the home cluster with this granted TTL."""
        lease = self._leases.setdefault(number, Lease(ttl))
        lease.ttl = ttl
        self._leases.move_to_end(number)
        while len(self._leases) > self._size:
            self._leases.popitem(last=False)
        return lease

    def get(self, number: int) -> Lease | None:
        """What is known of a lease; None: nothing, it may exist all the same."""
        lease = self._leases.get(number)
        if lease is not None:
            self._leases.move_to_end(number)
        return lease

    def forget(self, number: int) -> None:
        """The lease is gone."""
        self._leases.pop(number, None)
