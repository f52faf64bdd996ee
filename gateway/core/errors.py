"""The errors that clients see: gRPC status codes and etcd's own texts.

Texts and codes are those of etcd's api/v3rpc/rpctypes/error.go; clients compare them letter by letter.
"""

from dataclasses import dataclass
from enum import IntEnum


class Code(IntEnum):
    """gRPC status codes (grpc/status.proto numbering)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


_NAMES = {code.value: code.name for code in Code}


class RpcError(Exception):
    """A call that ends with a status other than OK: the code (one of Code, or whatever an upstream sent) and the text
    that the client gets, letter by letter."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"{_NAMES.get(self.code, self.code)}: {self.text}"


@dataclass(frozen=True, slots=True)
class Status:
    """An error that is always the same. An exception collects a traceback when raised, so each raise makes its own:
    `raise EMPTY_KEY.error()`, `call.fail(EMPTY_KEY.error())`."""

    code: Code
    text: str

    def error(self) -> RpcError:
        """A new exception with this code and text."""
        return RpcError(self.code, self.text)


# Requests. Where versions differ in a code, the newest one is here.

EMPTY_KEY = Status(Code.INVALID_ARGUMENT, "etcdserver: key is not provided")
KEY_NOT_FOUND = Status(Code.INVALID_ARGUMENT, "etcdserver: key not found")
VALUE_PROVIDED = Status(Code.INVALID_ARGUMENT, "etcdserver: value is provided")
LEASE_PROVIDED = Status(Code.INVALID_ARGUMENT, "etcdserver: lease is provided")
TOO_MANY_OPS = Status(Code.INVALID_ARGUMENT, "etcdserver: too many operations in txn request")
DUPLICATE_KEY = Status(Code.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request")
INVALID_API_VERSION = Status(Code.INVALID_ARGUMENT, "etcdserver: invalid client api version")
INVALID_SORT = Status(Code.INVALID_ARGUMENT, "etcdserver: invalid sort option")
REQUEST_TOO_LARGE = Status(Code.INVALID_ARGUMENT, "etcdserver: request is too large")
TOO_MANY_REQUESTS = Status(Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests")
NO_SPACE = Status(Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")
COMPACTED = Status(Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted")
FUTURE_REVISION = Status(Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision")

# Leases

LEASE_NOT_FOUND = Status(Code.NOT_FOUND, "etcdserver: requested lease not found")
LEASE_EXISTS = Status(Code.FAILED_PRECONDITION, "etcdserver: lease already exists")
LEASE_TTL_TOO_LARGE = Status(Code.OUT_OF_RANGE, "etcdserver: too large lease TTL")

# Watches: the first ends a stream, the texts are the `cancel_reason` of a response

WATCH_CANCELED = Status(Code.CANCELLED, "etcdserver: watch canceled")
DUPLICATE_WATCH_ID = "mvcc: duplicate watch ID provided on the WatchStream"
EMPTY_WATCH_RANGE = "mvcc: watcher range is empty"

# Members

MEMBER_EXISTS = Status(Code.FAILED_PRECONDITION, "etcdserver: member ID already exist")
PEER_URL_EXISTS = Status(Code.FAILED_PRECONDITION, "etcdserver: Peer URLs already exists")
MEMBER_BAD_URLS = Status(Code.INVALID_ARGUMENT, "etcdserver: given member URLs are invalid")
MEMBER_NOT_FOUND = Status(Code.NOT_FOUND, "etcdserver: member not found")
MEMBER_NOT_LEARNER = Status(Code.FAILED_PRECONDITION, "etcdserver: can only promote a learner member")
NOT_FOR_LEARNER = Status(Code.FAILED_PRECONDITION, "etcdserver: rpc not supported for learner")
BAD_LEADER_TRANSFEREE = Status(Code.FAILED_PRECONDITION, "etcdserver: bad leader transferee")
CLUSTER_ID_MISMATCH = Status(Code.FAILED_PRECONDITION, "etcdserver: cluster ID mismatch")

# Auth

USER_EMPTY = Status(Code.INVALID_ARGUMENT, "etcdserver: user name is empty")
USER_NOT_FOUND = Status(Code.FAILED_PRECONDITION, "etcdserver: user name not found")
ROLE_NOT_FOUND = Status(Code.FAILED_PRECONDITION, "etcdserver: role name not found")
AUTH_FAILED = Status(Code.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password")
AUTH_NOT_ENABLED = Status(Code.FAILED_PRECONDITION, "etcdserver: authentication is not enabled")
AUTH_OLD_REVISION = Status(Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old")
INVALID_AUTH_TOKEN = Status(Code.UNAUTHENTICATED, "etcdserver: invalid auth token")
PERMISSION_DENIED = Status(Code.PERMISSION_DENIED, "etcdserver: permission denied")

# The cluster's state

NO_LEADER = Status(Code.UNAVAILABLE, "etcdserver: no leader")
NOT_LEADER = Status(Code.FAILED_PRECONDITION, "etcdserver: not leader")
LEADER_CHANGED = Status(Code.UNAVAILABLE, "etcdserver: leader changed")
NOT_CAPABLE = Status(Code.FAILED_PRECONDITION, "etcdserver: not capable")
STOPPED = Status(Code.UNAVAILABLE, "etcdserver: server stopped")
UNHEALTHY = Status(Code.UNAVAILABLE, "etcdserver: unhealthy cluster")
CORRUPT = Status(Code.DATA_LOSS, "etcdserver: corrupt cluster")
TIMEOUT = Status(Code.UNAVAILABLE, "etcdserver: request timed out")
TIMEOUT_LEADER_FAILED = Status(
    Code.UNAVAILABLE, "etcdserver: request timed out, possibly due to previous leader failure"
)
TIMEOUT_CONNECTION_LOST = Status(Code.UNAVAILABLE, "etcdserver: request timed out, possibly due to connection lost")
CANCELED = Status(Code.CANCELLED, "etcdserver: request canceled")
DEADLINE_EXCEEDED = Status(Code.DEADLINE_EXCEEDED, "etcdserver: context deadline exceeded")

# Lock and Election: errors that etcd's server code does not translate, hence UNKNOWN

SESSION_EXPIRED = Status(Code.UNKNOWN, "mutex: session is expired")
MISSING_LEADER_KEY = Status(Code.UNKNOWN, '"leader" field must be provided')
ELECTION_NOT_LEADER = Status(Code.UNKNOWN, "election: not leader")
ELECTION_NO_LEADER = Status(Code.UNKNOWN, "election: no leader")
