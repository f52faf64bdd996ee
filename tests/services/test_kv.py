"""KV requests through the gateway, over real etcd."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.txns import txn_error
from gateway.etcdpb import rpc_pb2 as pb
from tests.etcd import BINARIES, cluster
from tests.services.client import WAIT, Client
from tests.services.site import Site

KEYS = {b"/kv/1": "main", b"/events/1": "events", b"/cni/1": "cni", b"/events": "events", b"/eventsx": "main"}


def read(client: Client, key: bytes, range_end: bytes = b"", **fields: Any) -> Any:
    return client.call("kv", "range", pb.RangeRequest(key=key, range_end=range_end, **fields))


def cluster_id(site: Site, name: str) -> int:
    with site.direct(name) as direct:
        return int(direct.call("maintenance", "status", pb.StatusRequest()).header.cluster_id)


def failure(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


def put(key: bytes, **fields: Any) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, **fields))


def get(key: bytes, **fields: Any) -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(key=key, **fields))


def clear(site: Site) -> None:
    for name in site.clusters:
        with site.direct(name) as direct:
            direct.call("kv", "delete_range", pb.DeleteRangeRequest(key=b"\0", range_end=b"\0"))


@pytest.mark.parametrize("key", KEYS)
def test_a_key_lies_in_its_cluster(shared: Site, key: bytes) -> None:
    clear(shared)
    owner = KEYS[key]
    shared.client.put(key, b"v")
    for name in shared.clusters:
        with shared.direct(name) as direct:
            assert read(direct, key).count == (name == owner)
            if name == owner:
                assert read(shared.client, key) == read(direct, key)
    txn = pb.TxnRequest(compare=[pb.Compare(key=key, target=pb.Compare.VERSION, version=1)], success=[put(key), get(key)])
    reply = shared.client.call("kv", "txn", txn)
    assert reply.succeeded and reply.header.cluster_id == cluster_id(shared, owner)
    deleted = shared.client.call("kv", "delete_range", pb.DeleteRangeRequest(key=key, prev_kv=True))
    assert deleted.deleted == 1 and deleted.prev_kvs[0].version == 2
    assert read(shared.client, key).count == 0


def test_a_range_over_all_clusters(shared: Site) -> None:
    clear(shared)
    for key in KEYS:
        shared.client.put(key, key)
    with shared.direct("main") as direct:
        direct.put(b"/events/misplaced")  # the gateway never looks for it there
    reply = read(shared.client, b"/", b"\0")
    assert [kv.key for kv in reply.kvs] == sorted(KEYS) and reply.count == len(KEYS) and not reply.more
    assert all(kv.value == kv.key for kv in reply.kvs)
    first = read(shared.client, b"/", b"\0", limit=2)
    assert [kv.key for kv in first.kvs] == sorted(KEYS)[:2] and first.count == len(KEYS) and first.more


def test_the_header_is_homes_or_that_of_the_first_cluster(shared: Site) -> None:
    assert read(shared.client, b"/cni/", b"/z").header.cluster_id == cluster_id(shared, "main")
    with shared.direct("main") as direct:
        assert read(shared.client, b"/cni/", b"/z").header.revision == read(direct, b"x").header.revision
    assert read(shared.client, b"/cni/", b"/cni0", limit=1).header.cluster_id == cluster_id(shared, "cni")


def test_a_cluster_is_read_at_one_revision(shared: Site) -> None:
    """/a and /z are in main, with other clusters' keys between them, and always change together."""
    clear(shared)
    stop = threading.Event()

    def write() -> None:
        with shared.direct("main") as direct:
            number = 0
            while not stop.is_set():
                number += 1
                value = b"%d" % number
                direct.call("kv", "txn", pb.TxnRequest(success=[put(b"/a", value=value), put(b"/z", value=value)]))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = set()
        for _ in range(100):
            reply = read(shared.client, b"/", b"\0")
            values = {kv.value for kv in reply.kvs}
            assert len(values) <= 1
            assert all(kv.mod_revision <= reply.header.revision for kv in reply.kvs)
            seen |= values
        assert len(seen) > 1
    finally:
        stop.set()
        writer.join()


def test_what_can_not_be_done_over_clusters_is_refused_and_not_done(shared: Site) -> None:
    clear(shared)
    for key in KEYS:
        shared.client.put(key)
    wide = {"key": b"/events/", "range_end": b"/z"}
    requests = {
        "delete_range": pb.DeleteRangeRequest(**wide),
        "txn": pb.TxnRequest(success=[put(b"/events/1", value=b"x"), put(b"/cni/1", value=b"x")]),
        "range": pb.RangeRequest(revision=2, **wide),
    }
    for name, request in requests.items():
        code, text = failure(lambda name=name, request=request: shared.client.call("kv", name, request))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert text.startswith(f"shardgate: {name}") and "'/events/" in text and " is in events" in text
    reply = read(shared.client, b"/", b"\0")
    assert reply.count == len(KEYS) and all(kv.version == 1 for kv in reply.kvs)


def test_errors_of_etcd_come_first(shared: Site) -> None:
    with shared.direct("main") as direct:
        for ops in ([put(b"/events/1"), put(b"/cni/1"), put(b"")], [put(b"/events/1"), put(b"/events/1"), put(b"/cni/1")]):
            request = pb.TxnRequest(success=ops)
            calls = [lambda client=client, request=request: client.call("kv", "txn", request) for client in (shared.client, direct)]
            assert failure(calls[0]) == failure(calls[1])


@pytest.mark.parametrize("name", ["range", "range_stream", "put", "delete_range", "compact", "txn"])
@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05"])
def test_bad_messages_are_answered_as_by_etcd(single: Site, name: str, data: bytes) -> None:
    with single.direct("main") as direct:
        send = Client.replies if name == "range_stream" else Client.call
        answers = []
        for client in (single.client, direct):
            try:
                reply = send(client, "kv", name, data)
                answers.append(list(reply) if name == "range_stream" else reply)
            except grpc.RpcError as error:
                answers.append((error.code(), error.details()))
    assert answers[0] == answers[1]


def nested(depth: int, op: pb.RequestOp) -> bytes:
    """By hand: protobuf makes no message that it would not read."""
    data = op.SerializeToString()
    for _ in range(depth):
        data = field(pb.RequestOp.REQUEST_TXN_FIELD_NUMBER, field(pb.TxnRequest.SUCCESS_FIELD_NUMBER, data))
    return field(pb.TxnRequest.SUCCESS_FIELD_NUMBER, data)


def field(number: int, data: bytes) -> bytes:
    assert len(data) < 1 << 14
    return bytes((number << 3 | 2, len(data) & 0x7F | 0x80, len(data) >> 7)) + data


def test_a_transaction_that_is_too_deep_to_look_into_goes_nowhere(shared: Site) -> None:
    clear(shared)
    shared.client.call("kv", "txn", nested(10, put(b"/events/deep")))
    assert read(shared.client, b"/events/deep").count == 1
    code, text = failure(lambda: shared.client.call("kv", "txn", nested(60, put(b"/events/deeper"))))
    assert code == grpc.StatusCode.INTERNAL and text.startswith("grpc: error unmarshalling request: ")
    for name in shared.clusters:
        with shared.direct(name) as direct:
            assert read(direct, b"/events/deeper").count == 0


def test_with_one_cluster_deep_transactions_are_etcds(single: Site) -> None:
    single.client.channel.unary_unary("/etcdserverpb.KV/Txn")(nested(60, put(b"/events/deeper")), timeout=WAIT)
    assert read(single.client, b"/events/deeper").count == 1


def test_an_unknown_sort_target_kills_no_etcd(shared: Site) -> None:
    bad = {"range_end": b"\0", "sort_order": 1, "sort_target": 99}
    shared.client.put(b"/s/1")
    shared.client.put(b"/s/2")
    txn = pb.TxnRequest(success=[put(b"/s/3"), get(b"/s/", **bad)])
    for name, request in {"range": pb.RangeRequest(key=b"/s/", **bad), "txn": txn}.items():
        answer = failure(lambda name=name, request=request: shared.client.call("kv", name, request))
        assert answer == (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: invalid sort option")
    assert read(shared.client, b"/s/3").count == 0


def test_range_stream(shared: Site) -> None:
    """etcd has it since 3.7; clients go back to `range` from UNIMPLEMENTED."""
    clear(shared)
    for at in range(20):
        shared.client.put(b"/events/%02d" % at)
    request = pb.RangeRequest(key=b"/events/", range_end=b"/events0")
    with shared.direct("events") as direct:
        answers = []
        for client in (shared.client, direct):
            try:
                answers.append(list(client.replies("kv", "range_stream", request)))
            except grpc.RpcError as error:
                answers.append((error.code(), error.details()))
    assert answers[0] == answers[1]
    code, text = failure(lambda: list(shared.client.replies("kv", "range_stream", pb.RangeRequest(key=b"/", range_end=b"\0"))))
    assert code == grpc.StatusCode.UNIMPLEMENTED and text.startswith("shardgate: range_stream over several clusters")


def test_compaction_is_homes(shared: Site) -> None:
    clear(shared)
    with shared.direct("main") as main, shared.direct("events") as events:
        revisions = [shared.client.put(b"/kv/1") for _ in range(3)]
        before = events.put(b"/events/1")
        events.put(b"/events/1")
        shared.client.call("kv", "compact", pb.CompactionRequest(revision=revisions[-1], physical=True))
        assert failure(lambda: read(main, b"/kv/1", revision=revisions[0]))[1] == "etcdserver: mvcc: required revision has been compacted"
        assert read(events, b"/events/1", revision=before).count == 1


def test_a_cluster_that_is_down_takes_only_its_own_keys_along(own: Site) -> None:
    for key in KEYS:
        own.client.put(key)
    own.clusters["events"].kill()
    assert read(own.client, b"/kv/1").count == 1
    assert read(own.client, b"/cni/", b"/cni0").count == 1
    for key, end in ((b"/events/1", b""), (b"/", b"\0")):
        assert failure(lambda key=key, end=end: read(own.client, key, end))[0] == grpc.StatusCode.UNAVAILABLE
    own.clusters["events"].restart()
    own.clusters["events"].wait()
    assert read(own.client, b"/", b"\0").count == len(KEYS)


def test_a_cluster_that_hangs_uses_up_the_deadline(own: Site) -> None:
    own.client.put(b"/kv/1")
    own.clusters["events"].members[0].stop()
    request = pb.RangeRequest(key=b"/", range_end=b"\0")
    assert failure(lambda: own.client.call("kv", "range", request, timeout=1))[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    assert read(own.client, b"/kv/1").count == 1
    own.clusters["events"].members[0].cont()
    assert read(own.client, b"/", b"\0").count == 1


# etcd's errors, as gateway.core.txns knows them

NAMES = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b""])
ENDS = st.sampled_from([b"", b"", b"c", b"e", b"\0"])
FLAGS = st.sampled_from([False, False, False, True])
OPS = st.one_of(
    st.builds(pb.RequestOp, request_range=st.builds(pb.RangeRequest, key=NAMES, range_end=ENDS)),
    st.builds(pb.RequestOp, request_put=st.builds(pb.PutRequest, key=NAMES, value=st.sampled_from([b"", b"v"]), ignore_value=FLAGS)),
    st.builds(pb.RequestOp, request_put=st.builds(pb.PutRequest, key=NAMES, lease=st.integers(0, 1), ignore_lease=FLAGS)),
    st.builds(pb.RequestOp, request_put=st.builds(pb.PutRequest, key=NAMES)),
    st.builds(pb.RequestOp, request_delete_range=st.builds(pb.DeleteRangeRequest, key=NAMES, range_end=ENDS)),
)


def txns(ops: st.SearchStrategy[pb.RequestOp], most: int) -> st.SearchStrategy[pb.TxnRequest]:
    few = st.lists(ops, max_size=most)
    return st.builds(pb.TxnRequest, success=few, failure=few)


MANY = st.builds(pb.TxnRequest, failure=st.builds(lambda op, count: [op] * count, OPS, st.sampled_from([126, 127, 128, 129])))
TXNS = MANY | txns(st.recursive(OPS, lambda inner: st.builds(pb.RequestOp, request_txn=txns(inner, 3)), max_leaves=10), 4)


@pytest.fixture(scope="module", params=BINARIES)
def etcd(request: pytest.FixtureRequest) -> Any:
    with cluster(request.param) as running, Client(running.address) as client:
        yield client


@settings(max_examples=100, deadline=None)
@given(request=TXNS)
def test_random_transactions_have_etcds_errors(etcd: Client, request: pb.TxnRequest) -> None:
    """Held in a branch that is not taken, a transaction is checked and not carried out."""
    never = pb.Compare(key=b"never", target=pb.Compare.VERSION, result=pb.Compare.GREATER, version=1 << 40)
    held = pb.TxnRequest(compare=[never], success=[pb.RequestOp(request_txn=request)])
    wanted = txn_error(held)
    if wanted is None:
        etcd.call("kv", "txn", held)
    else:
        code, text = failure(lambda: etcd.call("kv", "txn", held))
        assert (code.value[0], text) == (wanted.code, wanted.text)
