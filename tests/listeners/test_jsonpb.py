"""JSON text and messages. What real etcd accepts and writes is compared in test_json_etcd.py."""

import json
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from gateway.etcdpb import kv_pb2, rpc_pb2
from gateway.etcdpb.methods import METHODS
from gateway.listeners.jsonpb import MAX_DEPTH, Malformed, decode, decode_all, encode


def range_request(text: str) -> Message:
    return decode(text.encode(), rpc_pb2.RangeRequest)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"key":"Zm9v"}', {"key": b"foo"}),
        ("", {}),
        (" \n", {}),
        ("null", {}),
        ('{"key":"Zm9v"} trailing', {"key": b"foo"}),
        ('{"range_end":"Zm9v"}', {"range_end": b"foo"}),
        ('{"rangeEnd":"Zm9v"}', {"range_end": b"foo"}),
        ('{"unknown":{"a":[1,null]},"key":"Zm9v"}', {"key": b"foo"}),
        ('{"key":null,"limit":null}', {}),
        ('{"key":""}', {}),
        ('{"key":"Zm9"}', {"key": b"fo"}),
        ('{"key":"Zm8"}', {"key": b"fo"}),
        ('{"key":"_-8="}', {"key": b"\xff\xef"}),
        ('{"key":"/+8="}', {"key": b"\xff\xef"}),
        ('{"key":"Zm9v\\n"}', {"key": b"foo"}),
        ('{"limit":1,"revision":"-5"}', {"limit": 1, "revision": -5}),
        ('{"limit":1.0}', {"limit": 1}),
        ('{"limit":"1.0"}', {"limit": 1}),
        ('{"limit":1e2}', {"limit": 100}),
        ('{"limit":" 1"}', {"limit": 1}),
        ('{"limit":9223372036854775807}', {"limit": 2**63 - 1}),
        ('{"sort_order":"DESCEND","sortTarget":3}', {"sort_order": "DESCEND", "sort_target": "MOD"}),
        ('{"sort_order":77}', {"sort_order": 77}),
        ('{"serializable":true}', {"serializable": True}),
    ],
)
def test_accepted(text: str, expected: dict[str, Any]) -> None:
    assert range_request(text) == rpc_pb2.RangeRequest(**expected)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"key":', "unexpected EOF"),
        ('{"key":"Zm9v', "unexpected EOF"),
        ("{", "unexpected EOF"),
        ("key=Zm9v", "invalid JSON: Expecting value"),
        ('{"key":"Zm9v",}', "invalid JSON: "),
        ('{"key":NaN}', "invalid JSON: NaN"),
        ("\ufeff{}", "invalid JSON"),
        ("[]", "invalid value for message etcdserverpb.RangeRequest: list is no object"),
        ('"x"', 'invalid value for message etcdserverpb.RangeRequest: "x" is no object'),
        ('{"key":5}', "invalid value for base64 field key: 5"),
        ('{"key":"Z"}', "invalid value for base64 field key"),
        ('{"key":"Zm9v===="}', "invalid value for base64 field key"),
        ('{"key":"Zm9v="}', "invalid value for base64 field key"),
        ('{"key":"Zm 9v"}', "invalid value for base64 field key"),
        ('{"key":"Zm9v!"}', "invalid value for base64 field key"),
        ('{"key":"\\ud800"}', "invalid value for base64 field key"),
        ('{"limit":"x"}', 'invalid value for integer field limit: "x"'),
        ('{"limit":""}', "invalid value for integer field limit"),
        ('{"limit":"1_0"}', "invalid value for integer field limit"),
        ('{"limit":"01"}', "invalid value for integer field limit"),
        ('{"limit":true}', "invalid value for integer field limit: true"),
        ('{"limit":1.5}', "invalid value for integer field limit"),
        ('{"limit":1e400}', "invalid value for integer field limit"),
        ('{"limit":9223372036854775808}', "invalid value for integer field limit"),
        ('{"limit":%s}' % ("9" * 5000), "invalid JSON: Exceeds the limit"),
        ('{"sort_order":"NOPE"}', 'invalid value for enum field sort_order: "NOPE"'),
        ('{"sort_order":"2"}', "invalid value for enum field sort_order"),
        ('{"serializable":"true"}', "invalid value for bool field serializable"),
        ('{"serializable":1}', "invalid value for bool field serializable"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_refused(text: str, why: str) -> None:
    with pytest.raises(Malformed) as error:
        range_request(text)
    assert why in str(error.value)
    assert len(str(error.value)) < 200


def test_strings_and_their_errors() -> None:
    assert decode(b'{"name":"\xc3\xa9"}', rpc_pb2.AuthenticateRequest).name == "é"
    for wrong in (b'{"name":5}', b'{"name":"\\ud800"}'):
        with pytest.raises(Malformed, match="invalid value for string field name"):
            decode(wrong, rpc_pb2.AuthenticateRequest)


def test_lists_and_oneofs() -> None:
    request = decode(b'{"success":[{"requestRange":{}},{}],"compare":null}', rpc_pb2.TxnRequest)
    assert [op.WhichOneof("request") for op in request.success] == ["request_range", None]
    assert decode(b'{"peerURLs":["a","b"]}', rpc_pb2.MemberAddRequest).peerURLs == ["a", "b"]
    for text, why in {
        '{"success":{}}': "invalid value for repeated field success: dict is no array",
        '{"success":[null]}': "invalid value for message etcdserverpb.RequestOp",
        '{"success":[{"request_range":{},"request_put":{}}]}': "request_range is already set",
        '{"compare":[{"version":1,"value":""}]}': "version is already set",
    }.items():
        with pytest.raises(Malformed, match=why):
            decode(text.encode(), rpc_pb2.TxnRequest)


@pytest.mark.parametrize("levels", [MAX_DEPTH // 2, 200])
def test_transactions_within_each_other(levels: int) -> None:
    """What is accepted can also be serialised and parsed; each level is two messages."""
    text = b'{"success":[{"request_txn":' * levels + b"{}" + b"}]}" * levels
    if 2 * levels > MAX_DEPTH:
        with pytest.raises(Malformed, match="within each other"):
            decode(text, rpc_pb2.TxnRequest)
    else:
        request = decode(text, rpc_pb2.TxnRequest)
        assert rpc_pb2.TxnRequest.FromString(request.SerializeToString()) == request


def test_many_values_in_a_body() -> None:
    body = b'{"ID":1}{"ID":"2"}\n {"ID":3} {"ID":'
    found = []
    with pytest.raises(Malformed, match="unexpected EOF"):
        for message in decode_all(body, rpc_pb2.LeaseKeepAliveRequest):
            found.append(message.ID)
    assert found == [1, 2, 3]


def test_written_as_etcd_writes() -> None:
    reply = rpc_pb2.RangeResponse(
        header=rpc_pb2.ResponseHeader(cluster_id=2**64 - 1, revision=-1),
        kvs=[kv_pb2.KeyValue(key=b"foo", version=1), kv_pb2.KeyValue()],
        more=True,
        count=2,
    )
    assert encode(reply) == (
        '{"header":{"cluster_id":"18446744073709551615","revision":"-1"},'
        '"kvs":[{"key":"Zm9v","version":"1"},{}],"more":true,"count":"2"}'
    )
    assert encode(rpc_pb2.HashResponse(hash=5)) == '{"hash":5}'
    assert encode(rpc_pb2.AlarmMember(alarm=1)) == '{"alarm":"NOSPACE"}'
    assert encode(rpc_pb2.AlarmMember(alarm=77)) == '{"alarm":77}'
    assert encode(rpc_pb2.StatusResponse(errors=['"é\n'])) == '{"errors":["\\"é\\n"]}'


MESSAGES = sorted({kind for rpc in METHODS.values() for kind in (rpc.request, rpc.reply)}, key=lambda kind: kind.__name__)


@given(st.sampled_from(MESSAGES), st.binary(max_size=200))
def test_any_message_survives_and_equals_json_format(kind: type[Message], data: bytes) -> None:
    """protobuf's own translation is the oracle, on random messages."""
    message = random_message(kind, data)
    text = encode(message)
    theirs = json_format.MessageToDict(message, preserving_proto_field_name=True)
    assert json.loads(text) == theirs
    assert decode(text.encode(), kind) == message


def random_message(kind: type[Message], data: bytes) -> Message:
    """Fill fields by the bytes of `data`, a few levels deep."""
    source = iter(data)
    message = kind()
    _fill(message, source, 0)
    return message


def _fill(message: Any, source: Any, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        choice = next(source, 0)
        oneof = field.containing_oneof
        if choice % 3 == 0 or depth > 4 or (oneof is not None and message.WhichOneof(oneof.name)):
            continue
        repeated = field.default_value == []
        if field.message_type is not None:
            part = getattr(message, field.name).add() if repeated else getattr(message, field.name)
            part.SetInParent()
            _fill(part, source, depth + 1)
            continue
        value = {9: "é" * (choice % 4), 12: bytes([choice]) * (choice % 5), 8: True}.get(field.type, choice % 3)
        if repeated:
            getattr(message, field.name).extend([value] * (choice % 4))
        else:
            setattr(message, field.name, value)
