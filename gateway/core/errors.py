"""The errors that clients see: gRPC status codes and etcd's own texts.

Texts and codes are those of etcd's api/v3rpc/rpctypes/error.go; clients compare them letter by letter.
"""

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


class RpcError(Exception):
    """A call that ends with a status other than OK: the code and the exact text that the client gets."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"{Code(self.code).name}: {self.text}"
