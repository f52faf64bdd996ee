"""Placeholder until the watch work lands: overwrite it."""

from gateway.core.store import Event, Window
from gateway.etcdpb import rpc_pb2 as pb


class Watchers:
    """Counts revisions only."""

    def __init__(self, window: Window) -> None:
        self.revision = 0

    def start(self, revision: int) -> None:
        """All events after it will come."""
        self.revision = revision

    def append(self, revision: int, events: list[Event]) -> None:
        """One revision."""
        self.revision = revision

    def deliver(self, header: pb.ResponseHeader) -> None:
        """Nothing."""
