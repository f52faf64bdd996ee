"""What goes wrong, each by its name; several may go wrong at once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import grpc

from gateway.etcdpb import rpc_pb2 as pb
from tests.check.stage import Stage
from tests.etcd import Member
from tests.services.client import Client

Fault = Callable[[Stage, Random], None]

LOSES_WRITES = ("3.5.0", "3.5.1", "3.5.2")
"""Versions that note an entry as applied before it is, and have lost it if they are killed then (3.5.3 does it within the apply). Nobody
writes to them when they are killed, for longer than their backend takes to commit (0.1 s)."""


def calm(stage: Stage, rnd: Random) -> None:
    """Nothing."""
    time.sleep(0.5)


def cut(stage: Stage, rnd: Random) -> None:
    """All connections of one gateway to one member are reset."""
    stage.relays.do(rnd.randrange(stage.relay_count), "cut")


def cut_feed(stage: Stage, rnd: Random) -> None:
    """The feeds' connections are reset, calls go on."""
    for relay in range(stage.relay_count):
        stage.relays.do(relay, "cut", "feed")


def lag(stage: Stage, rnd: Random) -> None:
    """The feeds hear of everything late, calls are as fast as ever."""
    for _ in range(3):
        with _held(stage, range(stage.relay_count), "feed"):
            time.sleep(rnd.uniform(0.05, 0.7))
        time.sleep(0.1)


def hole(stage: Stage, rnd: Random) -> None:
    """Nothing passes between one gateway and the cluster for seconds."""
    relays = stage.relays_of(rnd.randrange(len(stage.gateways)))
    with _held(stage, relays, "all"):
        time.sleep(rnd.uniform(1.1, 1.8))


def slow(stage: Stage, rnd: Random) -> None:
    """What passes between gateways and cluster takes a while, so that more is under way at a time."""
    for relay in range(stage.relay_count):
        stage.relays.do(relay, "delay", "0.01")
    try:
        time.sleep(1.2)
    finally:
        for relay in range(stage.relay_count):
            stage.relays.do(relay, "delay", "0")


@contextmanager
def _held(stage: Stage, relays: Sequence[int], which: str) -> Iterator[None]:
    for relay in relays:
        stage.relays.do(relay, "hold", which)
    try:
        yield
    finally:
        for relay in relays:
            stage.relays.do(relay, "release")


def stop(stage: Stage, rnd: Random) -> None:
    """SIGSTOP of a member, and SIGCONT."""
    _stopped(rnd.choice(stage.etcd.members), rnd.uniform(0.5, 1.5))


def _stopped(member: Member, seconds: float) -> None:
    with member_lock:
        member.stop()
        try:
            time.sleep(seconds)
        finally:
            member.cont()


member_lock = threading.Lock()
"""One member at a time is taken away, so that three have a quorum."""


def kill(stage: Stage, rnd: Random) -> None:
    """kill -9 of a member, which comes back."""
    member = rnd.choice(stage.etcd.members)
    with member_lock:
        with stage.workload.writing.alone() if member.version in LOSES_WRITES else contextlib.nullcontext():
            time.sleep(0.25 if member.version in LOSES_WRITES else 0)
            member.kill()
        time.sleep(rnd.uniform(0, 0.3))
        member.restart()
        member.wait()


def _leader(stage: Stage) -> tuple[Member, Any]:
    """And what it says of itself. Raises TimeoutError."""
    until = time.monotonic() + 15
    while time.monotonic() < until:
        for member in stage.etcd.members:
            with Client(member.address) as client, contextlib.suppress(grpc.RpcError):
                status = client.call("maintenance", "status", pb.StatusRequest(), 2)
                if status.leader == status.header.member_id:
                    return member, status
        time.sleep(0.1)
    raise TimeoutError("no member leads")


def move_leader(stage: Stage, rnd: Random) -> None:
    """Leadership is handed over."""
    leader, status = _leader(stage)
    with Client(leader.address) as client, contextlib.suppress(grpc.RpcError):  # it may have lost it meanwhile
        members = client.call("cluster", "member_list", pb.MemberListRequest()).members
        others = [each.ID for each in members if each.ID != status.header.member_id]
        client.call("maintenance", "move_leader", pb.MoveLeaderRequest(targetID=rnd.choice(others)), 5)


def stop_leader(stage: Stage, rnd: Random) -> None:
    """The leader is stopped until the others have one of theirs, and then goes on as if nothing had been."""
    _stopped(_leader(stage)[0], 2)


def compact(stage: Stage, rnd: Random) -> None:
    """Through a gateway or directly, to what the log has; not to a deletion, which etcd 3.5 does not tell a watch that begins there."""
    found = [revision for revision, events in stage.collector.log[:-1] if all(event.type == event.PUT for event in events)]
    if found:
        stage.compact(rnd.choice([stage.gateways[0].address, stage.etcd.members[-1].address]), rnd.choice(found[-20:]))


def defragment(stage: Stage, rnd: Random) -> None:
    """A member answers nothing meanwhile."""
    with Client(rnd.choice(stage.etcd.members).address) as client, contextlib.suppress(grpc.RpcError):
        client.call("maintenance", "defragment", pb.DefragmentRequest())


FAULTS: dict[str, Fault] = {
    each.__name__: each
    for each in (calm, cut, cut_feed, lag, slow, hole, stop, kill, move_leader, stop_leader, compact, defragment)
}


def one_by_one(stage: Stage, names: str, rnd: Random, pause: float) -> None:
    """Those of a list of names separated by spaces; "a+b" are at the same time."""
    for name in names.split():
        time.sleep(pause)
        for done in [stage.hands.submit(FAULTS[each], stage, Random(rnd.random())) for each in name.split("+")]:
            done.result()
    time.sleep(pause)
