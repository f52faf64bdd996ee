"""A broken gateway: of what happened in a cluster, its watchers are not told every fiftieth revision."""

from gateway.cli import main
from gateway.core.store import Event
from gateway.core.watchers import Watchers

note = Watchers._note


def forget(self: Watchers, revision: int, happened: list[Event]) -> None:
    if revision % 50:
        note(self, revision, happened)


Watchers._note = forget  # type: ignore[method-assign]
main()
