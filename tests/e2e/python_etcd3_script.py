"""python-etcd3's whole API over a gateway with three clusters; arguments: its address, and that of a listener with one cluster.

A program of its own: the package has the same name as etcd3-py's, and its generated code wants protobuf's pure Python implementation.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from typing import Any

import etcd3
import grpc

KEYS = ("/a/1", "/b/1", "m")


def values(results: Any) -> list[bytes]:
    return [value for value, _ in results]


def refused(call: Callable[[], Any], text: str) -> None:
    """It must fail with a status whose text has this in it; the client hides some behind errors of its own."""
    try:
        call()
    except Exception as error:
        status = error if isinstance(error, grpc.Call) else error.__context__
        assert isinstance(status, grpc.Call) and text in status.details(), error
    else:
        raise AssertionError(f"not refused: {text}")


def keys(client: Any) -> None:
    for key in KEYS:
        client.put(key, f"of {key}")
        value, meta = client.get(key)
        assert (value, meta.key) == (f"of {key}".encode(), key.encode())
        assert client.get(key, serializable=True)[0] == value
        assert client.put(key, "new", prev_kv=True).prev_kv.value == value
        assert client.replace(key, "new", "newer") and not client.replace(key, "new", "newest")
        assert not client.put_if_not_exists(key, "x") and client.put_if_not_exists(key + "/more", "x")
        assert client.get_response(key).count == 1
        assert client.delete(key + "/more") and not client.delete(key + "/more")
    assert values(client.get_all()) == values(client.get_range("\0", "\xff")) == [b"newer"] * 3
    assert [meta.key for _, meta in client.get_prefix("/", sort_order="descend")] == [b"/b/1", b"/a/1"]
    assert [meta.key for _, meta in client.get_prefix("/", keys_only=True)] == [b"/a/1", b"/b/1"]
    refused(lambda: client.delete_prefix("/"), "shardgate: delete_range over several clusters")
    for prefix in ("/a/", "/b/", "m"):
        assert client.delete_prefix(prefix).deleted == 1
    assert values(client.get_all()) == []


def transactions(client: Any) -> None:
    of = client.transactions
    for key in KEYS:
        good, (put, get) = client.transaction(
            compare=[of.version(key) == 0, of.create(key) == 0, of.mod(key) < 1],
            success=[of.put(key, "1"), of.get(key)],
            failure=[of.get(key)],
        )
        assert good and put.response_put.header.revision and [(value, meta.version) for value, meta in get] == [(b"1", 1)]
        good, (nested,) = client.transaction(
            compare=[of.value(key) == "2"], success=[], failure=[of.txn([of.value(key) == "1"], [of.delete(key)], [])]
        )
        assert not good and nested.response_txn.succeeded
        assert client.get(key) == (None, None)
    puts = [of.put(key, "x") for key in KEYS]
    refused(lambda: client.transaction([], puts, []), "shardgate: txn over several clusters")


def leases(client: Any) -> None:
    lease = client.lease(100)
    for key in KEYS:
        client.put(key, "leased", lease)
    assert sorted(lease.keys) == sorted(key.encode() for key in KEYS)
    assert lease.granted_ttl == 100 and 90 < lease.remaining_ttl <= 100
    assert [answer.TTL for answer in lease.refresh()] == [100]
    assert client.get_lease_info(lease.id).grantedTTL == 100
    lease.revoke()
    assert values(client.get_all()) == []
    assert client.lease(100, 4711).id == 4711
    client.revoke_lease(4711)


def watches(client: Any) -> None:
    seen: list[tuple[str, bytes]] = []
    done = threading.Event()

    def see(response: Any) -> None:
        seen.extend((type(event).__name__, event.key) for event in response.events)
        if len(seen) == 6:
            done.set()

    number = client.add_watch_callback("\0", see, range_end="\0")
    for key in KEYS:
        client.put(key, "1")
        client.delete(key)
    assert done.wait(15), seen
    client.cancel_watch(number)
    for key in KEYS:
        assert [kind for kind, seen_key in seen if seen_key == key.encode()] == ["PutEvent", "DeleteEvent"]
        revision = client.put(key, "2").header.revision
        client.put(key, "3")
        events, cancel = client.watch(key, start_revision=revision, prev_kv=True)
        assert [next(events).value, next(events).prev_value] == [b"2", b"2"]
        cancel()
        assert list(events) == []
        assert client.watch_once(key, timeout=15, start_revision=revision).value == b"2"
        assert client.watch_prefix_once(key, timeout=15, start_revision=revision).value == b"2"


def locks(client: Any) -> None:
    for name in ("/a/lock", "/b/lock", "lock"):
        with client.lock(name, ttl=20) as lock:
            assert lock.is_acquired()
            assert not client.lock(name, ttl=20).acquire(timeout=0.2)
            assert lock.refresh()
        assert not lock.is_acquired()


def maintenance(client: Any, url: str) -> None:
    status = client.status()
    assert status.version.startswith("3.") and status.db_size > 0 and status.leader is not None
    (member,) = client.members
    assert list(member.client_urls) == [url]
    client.compact(client.get_response("m").header.revision)
    assert list(client.list_alarms()) == []
    assert list(client.disarm_alarm()) == []
    refused(client.defragment, "shardgate: defragment concerns one cluster")
    refused(client.hash, "shardgate: hash concerns one cluster")
    refused(client.create_alarm, "shardgate: alarm concerns one cluster")
    refused(lambda: client.snapshot(io.BytesIO()), "shardgate: snapshot concerns one cluster")
    refused(lambda: client.add_member(["http://127.0.0.1:1"]), "shardgate: member_add concerns one cluster")
    refused(lambda: client.remove_member(1), "shardgate: member_remove concerns one cluster")
    refused(lambda: client.update_member(1, ["http://127.0.0.1:1"]), "shardgate: member_update concerns one cluster")


def one_cluster(client: Any) -> None:
    client.put("m", "in one")
    assert client.hash() > 0
    assert client.defragment() is None
    file = io.BytesIO()
    client.snapshot(file)
    assert b"in one" in file.getvalue()
    (alarm,) = client.create_alarm()
    assert [each.member_id for each in client.list_alarms()] == [alarm.member_id]
    client.disarm_alarm()
    assert list(client.list_alarms()) == []
    refused(lambda: client.remove_member(1), "member not found")
    client.delete("m")


def connected(address: str) -> Any:
    host, _, port = address.rpartition(":")
    return etcd3.client(host=host, port=int(port), timeout=15)


def main(address: str, of_one: str) -> None:
    with connected(address) as client:
        for part in (keys, transactions, leases, watches, locks):
            part(client)
        maintenance(client, f"http://{address}")
    with connected(of_one) as client:
        one_cluster(client)
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
