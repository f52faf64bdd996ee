"""Random requests, good and bad, as the bytes that go over the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from gateway.core.keyrange import prefix_end
from gateway.etcdpb import rpc_pb2 as pb
from gateway.etcdpb.methods import method

NOW = 1 << 50
"""In a generated request a revision near this one is relative: NOW - 2 stands for two revisions before the current one."""

LARGEST = (1 << 63) - 1
KEYS = (b"a", b"a\0", b"a/b", b"a/b/c", b"a0", b"b", b"\0", b"\xff", b"\xff\xff", b"long" * 20)
LEASES = (7, 8, 9)
UNKNOWN_LEASE = 999

PATHS = {
    pb.RangeRequest: "/etcdserverpb.KV/Range",
    pb.PutRequest: "/etcdserverpb.KV/Put",
    pb.DeleteRangeRequest: "/etcdserverpb.KV/DeleteRange",
    pb.TxnRequest: "/etcdserverpb.KV/Txn",
    pb.CompactionRequest: "/etcdserverpb.KV/Compact",
    pb.LeaseGrantRequest: "/etcdserverpb.Lease/LeaseGrant",
    pb.LeaseRevokeRequest: "/etcdserverpb.Lease/LeaseRevoke",
    pb.LeaseTimeToLiveRequest: "/etcdserverpb.Lease/LeaseTimeToLive",
    pb.LeaseLeasesRequest: "/etcdserverpb.Lease/LeaseLeases",
}
KEEP_ALIVE = method("lease", "lease_keep_alive").path.decode()
RANGE_STREAM = method("kv", "range_stream").path.decode()


@dataclass(frozen=True)
class Op:
    """One call: where to, and the message, or bytes that are none."""

    path: str
    request: Any

    def data(self, now: int) -> bytes:
        """The bytes to send when the current revision is `now`."""
        return self.request if isinstance(self.request, bytes) else resolved(self.request, now).SerializeToString()


def op(request: Any) -> Op:
    """The call that a message belongs to."""
    return Op(PATHS[type(request)], request)


def resolved(message: Any, now: int) -> Any:
    """A copy with relative revisions made absolute."""
    copy = type(message)()
    copy.CopyFrom(message)
    _resolve(copy, now)
    return copy


def _resolve(message: Any, now: int) -> None:
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if field.is_repeated else (value,):
                _resolve(each, now)
        elif field.name.endswith("revision") and abs(value - NOW) < 1000:
            setattr(message, field.name, value - NOW + now)


def weighted(*choices: tuple[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """One of these, as often as its number says (one_of would take equal ones for one)."""
    return st.sampled_from([choice for weight, choice in choices for _ in range(weight)]).flatmap(lambda choice: choice)


def revisions(usual: int = 4) -> st.SearchStrategy[int]:
    """0, and those near the current one; some past, compacted, future, negative, absurd."""
    odd = st.sampled_from((1, 2, -1, -LARGEST, LARGEST, NOW + 100))
    return weighted((usual, st.just(0)), (4, st.integers(NOW - 9, NOW)), (1, st.just(NOW + 1)), (1, odd))


class Requests:
    """Strategies over a set of keys."""

    def __init__(self, keys: Sequence[bytes], orders: Sequence[int] = (0, 1, 2) * 4 + (7,)) -> None:
        self.keys = keys
        self.order = st.sampled_from(orders)
        self.key = st.sampled_from(keys)
        ends = [*keys, *(prefix_end(key) for key in keys), *(key + b"\0" for key in keys)]
        self.end = weighted((3, st.just(b"")), (1, st.just(b"\0")), (6, st.sampled_from(ends)))
        self.any_key = weighted((30, self.key), (1, st.just(b"")))
        self.lease = st.sampled_from((0,) * 12 + LEASES * 2 + (UNKNOWN_LEASE, -1))
        self.value = st.sampled_from((b"", b"v", b"w", b"x" * 99, b"\0\xff"))

    def ranges(self) -> st.SearchStrategy[Any]:
        """Every option; sort_target only as far as etcd 3.4 and 3.5 survive it."""
        few = revisions(40)
        return st.builds(
            pb.RangeRequest,
            key=self.any_key, range_end=self.end, limit=st.sampled_from((0, 0, 1, 2, 3, -1, 1000, LARGEST, -LARGEST)), revision=revisions(),
            sort_order=self.order, sort_target=st.integers(0, 4), serializable=st.booleans(),
            keys_only=st.booleans(), count_only=st.sampled_from((False, False, True)), min_mod_revision=few, max_mod_revision=few,
            min_create_revision=few, max_create_revision=few,
        )  # fmt: skip

    def puts(self) -> st.SearchStrategy[Any]:
        """Also those that etcd refuses: value and ignore_value, unknown leases."""
        rarely = st.sampled_from((False,) * 9 + (True,))
        return st.builds(
            pb.PutRequest, key=self.any_key, value=self.value, lease=self.lease, prev_kv=st.booleans(), ignore_value=rarely,
            ignore_lease=rarely,
        )  # fmt: skip

    def deletes(self) -> st.SearchStrategy[Any]:
        """Single keys and ranges."""
        return st.builds(pb.DeleteRangeRequest, key=self.any_key, range_end=self.end, prev_kv=st.booleans())

    def compares(self) -> st.SearchStrategy[Any]:
        """Target and union fit mostly: etcd takes the zero value of what is missing."""
        unions = st.one_of(
            st.fixed_dictionaries({"value": self.value}),
            *(st.fixed_dictionaries({name: revisions()}) for name in ("version", "create_revision", "mod_revision")),
            st.fixed_dictionaries({"lease": self.lease}),
            st.just({}),
        )
        end = weighted((4, st.just(b"")), (1, self.end))
        return st.tuples(st.integers(0, 3), st.integers(0, 4), self.any_key, end, unions).map(_compare)

    def ops(self, depth: int) -> st.SearchStrategy[Any]:
        """Operations of a transaction, empty and nested ones among them."""
        nested = [(3, st.builds(pb.RequestOp, request_txn=self.txns(depth - 1)))] if depth else []
        return weighted(
            (6, st.builds(pb.RequestOp, request_range=self.ranges())),
            (8, st.builds(pb.RequestOp, request_put=self.puts())),
            (3, st.builds(pb.RequestOp, request_delete_range=self.deletes())),
            (1, st.just(pb.RequestOp())),
            *nested,
        )

    def txns(self, depth: int = 2) -> st.SearchStrategy[Any]:
        """Few operations each, so that some of them are valid."""
        ops = st.lists(self.ops(depth), max_size=3)
        return st.builds(pb.TxnRequest, compare=st.lists(self.compares(), max_size=2), success=ops, failure=ops)

    def writes(self) -> st.SearchStrategy[Op]:
        """What makes events."""
        return weighted((4, self.puts()), (1, self.deletes()), (2, self.txns(1))).map(op)

    def kv(self) -> st.SearchStrategy[Op]:
        """The KV service."""
        requests = weighted((6, self.ranges()), (6, self.puts()), (2, self.deletes()), (6, self.txns()))
        streams = self.ranges().map(lambda request: Op(RANGE_STREAM, request))
        return weighted((20, requests.map(op)), (1, compactions()), (1, streams))

    def malformed(self) -> st.SearchStrategy[Op]:
        """Bytes that are no message, or a message in an odd way: cut off, twice, with unknown fields."""
        paths = st.sampled_from(sorted(path for path in PATHS.values() if "Grant" not in path))  # a lease's id could be etcd's choice
        bytes_of = st.one_of(self.ranges(), self.puts(), self.txns(1)).map(lambda message: message.SerializeToString())
        cut = st.tuples(bytes_of, st.integers(1, 40)).map(lambda pair: pair[0][: -pair[1]])
        twice = st.tuples(bytes_of, bytes_of).map(b"".join)
        noise = st.one_of(st.just(b""), st.binary(max_size=30), cut, twice, bytes_of.map(lambda data: data + b"\xfa\x7f\x02hi"))
        return st.one_of(
            st.builds(Op, paths, noise),
            st.builds(Op, st.sampled_from(("/etcdserverpb.KV/Nothing", "/no.Service/Range", "/etcdserverpb.KV/", "//", "/a/b/c")), noise),
        )

    def everything(self) -> st.SearchStrategy[Op]:
        """KV and leases, with bad bytes now and then."""
        return weighted((20, self.kv()), (5, leases()), (1, self.malformed()))

    def preset(self) -> list[Op]:
        """Something to work on."""
        grants = [op(pb.LeaseGrantRequest(ID=lease, TTL=5000)) for lease in LEASES]
        puts = [op(pb.PutRequest(key=key, value=b"%d" % at, lease=LEASES[0] if at % 4 == 1 else 0)) for at, key in enumerate(self.keys)]
        return [*grants, *puts, *puts[::2]]


def _compare(parts: Any) -> Any:
    result, target, key, end, union = parts
    return pb.Compare(result=result, target=target, key=key, range_end=end, **union)


def compactions() -> st.SearchStrategy[Op]:
    """Past, future, negative, again."""
    return st.builds(pb.CompactionRequest, revision=revisions(), physical=st.booleans()).map(op)


def leases() -> st.SearchStrategy[Op]:
    """With TTLs that outlive the test; a lease that etcd names itself would differ between two."""
    ids = st.sampled_from((*LEASES, *LEASES, UNKNOWN_LEASE, 0, -1))
    ttl = st.sampled_from((5000, 5000, 9_000_000_000, 9_000_000_001, LARGEST))
    return weighted(
        (3, st.builds(pb.LeaseGrantRequest, TTL=ttl, ID=st.sampled_from((*LEASES, LARGEST))).map(op)),
        (2, st.builds(pb.LeaseRevokeRequest, ID=ids).map(op)),
        (3, st.builds(pb.LeaseTimeToLiveRequest, ID=ids, keys=st.booleans()).map(op)),
        (1, st.just(op(pb.LeaseLeasesRequest()))),
        (2, st.builds(pb.LeaseKeepAliveRequest, ID=ids).map(lambda request: Op(KEEP_ALIVE, request))),
    )


def odd() -> list[Op]:
    """What random requests rarely hit: sizes and counts at the limits."""
    puts = [pb.RequestOp(request_put=pb.PutRequest(key=b"n%d" % number)) for number in range(129)]
    nested = pb.RequestOp(request_txn=pb.TxnRequest(success=puts[:128]))
    deep = pb.TxnRequest()
    for _ in range(20):
        deep = pb.TxnRequest(success=[pb.RequestOp(request_txn=deep)])
    return [
        *(op(pb.PutRequest(key=b"big", value=b"x" * size)) for size in (1_500_000, 1_572_850, 1_573_000, 2_097_100, 2_097_152, 2_200_000)),
        op(pb.RangeRequest(key=b"big")),
        op(pb.TxnRequest(success=puts[:128])),
        op(pb.TxnRequest(success=puts)),
        op(pb.TxnRequest(compare=[pb.Compare(key=b"n")] * 129)),
        op(pb.TxnRequest(success=[nested])),
        op(deep),
        op(pb.TxnRequest()),
        op(pb.TxnRequest(success=[pb.RequestOp(request_range=pb.RangeRequest(key=b"n0", sort_order=9))])),
        op(pb.RangeRequest(key=b"\0", range_end=b"\0", limit=5, sort_order=2)),
        op(pb.DeleteRangeRequest(key=b"\0", range_end=b"\0", prev_kv=True)),
        Op("/etcdserverpb.KV/Put", b"\x0a\x01k\x12\x01v" * 3),
        Op("/etcdserverpb.KV/Put", b"\x0a\xff\xff\xff\xff\x7f"),
        Op("/etcdserverpb.KV/Range", b"\x0a\x01k\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        Op("/etcdserverpb.KV/Range", b"\x0b\x0a\x01k\x0c\x0a\x01k"),
        Op("/etcdserverpb.KV/Range", b"\x08\x01"),
        Op("/etcdserverpb.KV/Range", b"\x00"),
        Op("/etcdserverpb.Lease/LeaseRevoke", b"\x0a\x01x"),
        Op("/etcdserverpb.Maintenance/Alarm", b"\xff"),
        Op("/v3lockpb.Lock/Lock", b"\xff"),
        Op("/v3lockpb.Lock/Unlock", b""),
        Op("/v3electionpb.Election/Proclaim", b""),
        Op("/v3electionpb.Election/Resign", b""),
        Op("/v3electionpb.Election/Leader", b""),
        Op("/v3electionpb.Election/Leader", b"\x0a\x02no"),
    ]
