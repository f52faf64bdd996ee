"""Promise 3 under faults: what watchers are told through two gateways could have been told by one etcd.

The runs are those of test_linearizable: everybody is there at the same time.
"""

from __future__ import annotations

from tests.check.runs import Run, each_run, recorded
from tests.check.watched import violations
from tests.etcd import default_version


@each_run
def test_watchers_are_told_by_one_etcd(run: Run) -> None:
    record = recorded(run)
    found = violations(record.history)
    assert not found, "\n".join((f"{run}: {len(found)} violations", *(each[:1000] for each in found[:5])))
    told = record.told
    assert told["events"] > 500 and told["progress"] > 10 and told["fragment"] > 1, told
    legs = [len(watcher.legs) for watcher in record.history.watchers]
    assert len(legs) > 20 and sum(legs) > 1.5 * len(legs), "some went on on another stream"


def test_a_gateway_that_forgets_events_is_found_out() -> None:
    found = violations(recorded(Run(default_version(), 1, "calm", module="tests.check.forgetful")).history)
    assert any("is due, it was told" in each for each in found), found
    assert not any(each.startswith("etcd watch") for each in found), found
