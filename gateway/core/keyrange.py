"""Key ranges as etcd writes them: range_end b"" is the single key, b"\\0" is everything from the key on."""

EVERYTHING_FROM = b"\0"


def after(key: bytes) -> bytes:
    """The next key in byte order."""
    return key + b"\0"


def prefix_end(prefix: bytes) -> bytes:
    """The end of the range of all keys with a prefix; b"\\0" (etcd's "to the last key") where there is no such key."""
    for at in range(len(prefix) - 1, -1, -1):
        if prefix[at] < 0xFF:
            return prefix[:at] + bytes((prefix[at] + 1,))
    return EVERYTHING_FROM


def bounds(key: bytes, range_end: bytes) -> tuple[bytes, bytes | None]:
    """[low, high) of etcd's (key, range_end); high None: to the last key."""
    if not range_end:
        return key, after(key)
    return key, None if range_end == EVERYTHING_FROM else range_end
