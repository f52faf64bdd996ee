"""The file descriptors that every Go program with protobuf code carries: what etcd itself says its wire format is."""

import re
import zlib
from collections.abc import Iterator

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError

GZIP = b"\x1f\x8b\x08"
LONGEST = 1 << 20


def embedded(program: bytes) -> dict[str, FileDescriptorProto]:
    """By file name: gzipped ones (gogo protobuf, etcd up to 3.6) and plain ones (3.7)."""
    return {file.name: file for file in (*_gzipped(program), *_plain(program))}


def _gzipped(program: bytes) -> Iterator[FileDescriptorProto]:
    for found in re.finditer(re.escape(GZIP), program):
        try:
            data = zlib.decompressobj(31).decompress(program[found.start() : found.start() + LONGEST])
            yield FileDescriptorProto.FromString(data)
        except (zlib.error, DecodeError):
            continue


def _plain(program: bytes) -> Iterator[FileDescriptorProto]:
    """They begin with field 1, the name. Their end is not marked: it is where their fields do."""
    for found in re.finditer(rb"\n(.)[a-z0-9_./]{1,100}\.proto\x12", program, re.DOTALL):
        start = found.start()
        if found.end() - 1 - (start + 2) == found[1][0]:
            try:
                yield FileDescriptorProto.FromString(program[start : _end(program, start)])
            except DecodeError:
                continue


def _end(program: bytes, at: int) -> int:
    """Skip the length-delimited fields of a FileDescriptorProto; `syntax` (12) is the last one of a proto3 file."""
    field = 0
    while field != 12 and program[at] & 7 == 2:
        field, length, shift = program[at] >> 3, 0, 0
        while True:
            at += 1
            length |= (program[at] & 0x7F) << shift
            shift += 7
            if program[at] < 0x80:
                break
        at += 1 + length
    return at
