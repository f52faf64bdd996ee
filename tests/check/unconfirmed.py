"""A broken gateway: it answers linearizable reads from memory without asking the cluster, and hears of changes late."""

import asyncio
from collections.abc import Sequence
from typing import Any

from gateway.cli import main
from gateway.etcdpb import rpc_pb2 as pb
from gateway.upstream.confirm import Reader
from gateway.upstream.feed import Feed

events = Feed._events


def late(self: Feed, header: pb.ResponseHeader, happened: Sequence[Any]) -> None:
    asyncio.get_running_loop().call_later(0.05, events, self, header, list(happened))


def at_once(self: Feed, reader: Reader) -> None:
    (reader.confirmed if self.live else reader.unconfirmed)()


Feed._events = late  # type: ignore[method-assign]
Feed.confirm = Feed.current = at_once  # type: ignore[method-assign]
main()
