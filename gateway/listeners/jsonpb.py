"""Protobuf messages as JSON text and back, as etcd's JSON gateway writes and reads them.

Written: proto field names, 64-bit integers as strings, bytes as base64, enums by name, no fields with their zero value.
Read: what etcd 3.5 accepts and what 3.7 accepts (camel case, integers as numbers or strings, both base64 alphabets,
padded or not, unknown fields), but no null in a list, no bytes as a list of numbers, no enum by a name that it does not
have, and of a oneof one field only.

protobuf's own json_format is not used: it takes garbage for base64 and needs twice as long for large replies.
"""

import json
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

MAX_DEPTH = 90
"""Messages within messages; protobuf's parsers refuse more than 100."""


class Malformed(Exception):
    """The text is no JSON, or its JSON no such message; str() says why."""


# writing


def encode(message: Message) -> str:
    """The message as one line of JSON without spaces, fields by number."""
    return "{" + ",".join([_writer(field)(value) for field, value in message.ListFields()]) + "}"


@cache
def _writer(field: FieldDescriptor) -> Callable[[Any], str]:
    """Makes `"name":value` of a field's value."""
    prefix = f'"{field.name}":'
    scalar = _value_writer(field)
    if _repeated(field):
        return lambda values: f"{prefix}[{','.join(map(scalar, values))}]"
    return lambda value: prefix + scalar(value)


def _value_writer(field: FieldDescriptor) -> Callable[[Any], str]:
    match field.type:
        case FieldDescriptor.TYPE_MESSAGE:
            return encode
        case FieldDescriptor.TYPE_BYTES:
            return lambda value: f'"{b2a_base64(value, newline=False).decode()}"'
        case FieldDescriptor.TYPE_INT64 | FieldDescriptor.TYPE_UINT64:
            return lambda value: f'"{value}"'
        case FieldDescriptor.TYPE_ENUM:
            names = {number: f'"{name}"' for name, number in _names(field).items()}
            return lambda number: names.get(number) or str(number)
        case _:
            return lambda value: json.dumps(value, ensure_ascii=False)


def _repeated(field: FieldDescriptor) -> bool:
    """The one test that every supported protobuf has: `label` is gone in 7, `is_repeated` came with 6."""
    return bool(field.default_value == [])


# reading


def decode(body: bytes, kind: type[Message]) -> Message:
    """The message that the body starts with: an empty body is an empty message, what follows the JSON value is ignored.
    Raises Malformed."""
    return next(decode_all(body, kind), kind())


def decode_all(body: bytes, kind: type[Message]) -> Iterator[Message]:
    """A message of each JSON value in the body, with or without space between them. Raises Malformed at a bad one."""
    text = body.decode("utf-8", "replace")
    at = _skip(text, 0)
    while at < len(text):
        value, at = _value(text, at)
        message = kind()
        _fill(message, {} if value is None else value, 0)
        yield message
        at = _skip(text, at)


def _refuse(constant: str) -> None:
    raise Malformed(f"invalid JSON: {constant} is no JSON value")


_JSON = json.JSONDecoder(parse_constant=_refuse)
_SPACE = re.compile(r"[ \t\r\n]*")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        return _JSON.raw_decode(text, at)
    except json.JSONDecodeError as error:
        cut_off = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        raise Malformed("unexpected EOF" if cut_off else f"invalid JSON: {error}") from None
    except RecursionError:
        raise Malformed("invalid JSON: nested too deeply") from None
    except ValueError as error:  # Python bounds the digits of an integer
        raise Malformed(f"invalid JSON: {error}") from None


def _fill(message: Message, value: Any, depth: int) -> None:
    """Set the message's fields from a parsed JSON object."""
    if not isinstance(value, dict):
        raise Malformed(f"invalid value for message {message.DESCRIPTOR.full_name}: {_short(value)} is no object")
    if depth > MAX_DEPTH:
        raise Malformed(f"more than {MAX_DEPTH} messages within each other")
    fields = _fields(message.DESCRIPTOR)
    for name, item in value.items():
        field = fields.get(name)
        if field is not None and item is not None:
            _set(message, field, item, depth)


@cache
def _fields(descriptor: Descriptor) -> Mapping[str, FieldDescriptor]:
    """By both of a field's names."""
    return {name: field for field in descriptor.fields for name in (field.name, field.json_name)}


def _set(message: Message, field: FieldDescriptor, item: Any, depth: int) -> None:
    oneof = field.containing_oneof
    if oneof is not None and message.WhichOneof(oneof.name) is not None:
        raise Malformed(f"field {field.name}: {message.WhichOneof(oneof.name)} is already set, only one of them can be")
    if _repeated(field):
        _extend(getattr(message, field.name), field, item, depth)
    elif field.message_type is not None:
        part = getattr(message, field.name)
        part.SetInParent()
        _fill(part, item, depth + 1)
    else:
        _assign(lambda value: setattr(message, field.name, value), field, item)


def _extend(values: Any, field: FieldDescriptor, items: Any, depth: int) -> None:
    if not isinstance(items, list):
        raise Malformed(f"invalid value for repeated field {field.name}: {_short(items)} is no array")
    for item in items:
        if field.message_type is not None:
            _fill(values.add(), item, depth + 1)
        else:
            _assign(values.append, field, item)


def _assign(put: Callable[[Any], None], field: FieldDescriptor, item: Any) -> None:
    """Convert and put a scalar. protobuf raises ValueError for what is out of range or no Unicode text."""
    kind, read = _READERS.get(field.type, ("integer", _integer))
    try:
        put(read(field, item))
    except ValueError:
        raise Malformed(f"invalid value for {kind} field {field.name}: {_short(item)}") from None


def _bool(field: FieldDescriptor, item: Any) -> bool:
    if not isinstance(item, bool):
        raise ValueError
    return item


def _string(field: FieldDescriptor, item: Any) -> str:
    if not isinstance(item, str):
        raise ValueError
    return item


def _enum(field: FieldDescriptor, item: Any) -> int:
    """By name, or by number: that need not be a known one."""
    if not isinstance(item, str):
        return _integer(field, item)
    value = _names(field).get(item)
    if value is None:
        raise ValueError
    return value


@cache
def _names(field: FieldDescriptor) -> Mapping[str, int]:
    return {value.name: value.number for value in field.enum_type.values} if field.enum_type else {}


_ALPHABET = str.maketrans("-_", "+/", "\r\n")


def _bytes(field: FieldDescriptor, item: Any) -> bytes:
    """base64 of either alphabet; line breaks within are skipped. binascii's error is a ValueError."""
    text = _string(field, item).translate(_ALPHABET)
    digits = text.rstrip("=")
    padding = len(text) - len(digits)
    if padding and (padding > 2 or len(text) % 4):
        raise ValueError
    return a2b_base64(digits + "=" * (-len(digits) % 4), strict_mode=True)


_NUMBER = re.compile(r"\s*-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?\s*", re.ASCII)


def _integer(field: FieldDescriptor, item: Any) -> int:
    """An integer from a JSON number or a string with one; 1.0 and 1e2 are integers too."""
    if isinstance(item, str) and len(item) < 40 and _NUMBER.fullmatch(item):
        item = json.loads(item)
    if isinstance(item, float) and item.is_integer():
        return int(item)
    if isinstance(item, int) and not isinstance(item, bool):
        return item
    raise ValueError


_READERS: Mapping[int, tuple[str, Callable[[FieldDescriptor, Any], Any]]] = {
    FieldDescriptor.TYPE_BOOL: ("bool", _bool),
    FieldDescriptor.TYPE_BYTES: ("base64", _bytes),
    FieldDescriptor.TYPE_ENUM: ("enum", _enum),
    FieldDescriptor.TYPE_STRING: ("string", _string),
}


def _short(item: Any) -> str:
    text = type(item).__name__ if isinstance(item, dict | list) else json.dumps(item)
    return text if len(text) <= 64 else text[:64] + "…"
