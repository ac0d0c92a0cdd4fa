"""Bytes made by real implementations: appendix values, decode matrix, go-bare example, stream messages."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest

import bare
from tests.bare.samples import (
    PERSON,
    TYPES,
    AppendixEnum,
    AppendixStruct,
    CreateStreamRequest,
    Customer,
    Department,
    Employee,
    Init,
    PullRequest,
    PullResponse,
    PushConfirm,
    PushRequest,
    Status,
    StreamMessage,
    vectors,
)

APPENDIX = vectors("appendix_values.json")
MATRIX = vectors("decode_matrix.json")
STREAM = vectors("stream_messages.json")

DATA_16 = bytes.fromhex("aaeeffeeddccbbaaeeddccbbeeddccbb")

STREAM_TYPES: dict[str, Any] = {
    cls.__name__: cls for cls in (CreateStreamRequest, Init, PushRequest, PushConfirm, PullRequest, PullResponse)
} | {
    "union (CreateStreamRequest | PushRequest)": Annotated[
        CreateStreamRequest | PushRequest, bare.Union({0: CreateStreamRequest, 1: PushRequest})
    ]
}


def value_of(type_name: str, text: str) -> Any:
    """The value that the `draft` column of the vectors describes."""
    match type_name:
        case "uint" | "int" | "u32" | "i16":
            return int(text)
        case "f64":
            return float(text)
        case "bool" | "str":
            return json.loads(text)
        case "data" | "data[16]":
            return DATA_16
        case "enum":
            return AppendixEnum[text]
        case "optional<u32>":
            return None if text == "none" else int(text)
        case "list<str>":
            return text.split(",")
        case "list<uint>[10]":
            return [int(part) for part in text.split()]
        case "map<u32><str>":
            return {0: "zero", 255: "max"}
        case "union":
            kind, _, rest = text.partition(" ")
            tag = {"int": 0, "uint": 255, "str": 256}[kind]
            return bare.Tagged(tag, rest if kind == "str" else int(rest))
        case "struct":
            return AppendixStruct(255, -255, "BARE")
    raise AssertionError(type_name)


@pytest.mark.parametrize("case", APPENDIX["values"], ids=lambda case: f"{case['type']}-{case['hex'][:20]}")
def test_appendix_values_are_encoded_and_decoded(case: dict[str, str]) -> None:
    type_, message = TYPES[case["type"]], bytes.fromhex(case["hex"])
    value = value_of(case["type"], case["draft"])
    assert bare.encode(value, type_) == message
    decoded = bare.decode(message, type_)
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize("case", MATRIX["cases"], ids=lambda case: f"{case['type']}-{case['note']}")
def test_the_decode_matrix_is_followed_in_its_strict_column(case: dict[str, str]) -> None:
    type_, message = TYPES[case["type"]], bytes.fromhex(case["hex"])
    if not case["draft"].startswith("error"):
        assert bare.encode(bare.decode(message, type_), type_) == message
        return
    with pytest.raises(bare.DecodeError) as raised:
        bare.decode(message, type_)
    assert 0 <= raised.value.offset <= len(message)
    assert raised.value.path.startswith("$")


def test_the_decode_matrix_agrees_with_the_strictest_peer_on_offsets() -> None:
    """bare-ts names a byte with each error. Ours is the same, but for lengths that no message can hold."""
    different = {}
    for case in MATRIX["cases"]:
        peer = case["peers"]["bare-ts lib-0.4.1"]
        if peer.startswith("err BareError (byte:"):
            with pytest.raises(bare.DecodeError) as raised:
                bare.decode(bytes.fromhex(case["hex"]), TYPES[case["type"]])
            theirs = int(peer.partition(":")[2].partition(")")[0])
            if raised.value.offset != theirs:
                different[case["type"], case["note"]] = (raised.value.offset, theirs)
    assert different == {("str", "length 2^64-1"): (10, 1), ("list<u8>", "length 2^64-1"): (0, 1)}


@pytest.mark.parametrize("name", ["customer", "employee", "terminated"])
def test_go_bare_example_messages_round_trip(name: str) -> None:
    message = bytes.fromhex(APPENDIX["go_bare_example_files"][name])
    person = bare.decode(message, PERSON)
    assert bare.encode(person, PERSON) == message
    match name:
        case "customer":
            assert isinstance(person, Customer)
            assert (person.name, person.orders[0].quantity) == ("James Smith", 5)
        case "employee":
            assert isinstance(person, Employee)
            assert person.department is Department.ADMINISTRATION
        case _:
            assert person is None


def test_go_bare_example_people_are_decoded_one_after_the_other() -> None:
    message = bytes.fromhex(APPENDIX["go_bare_example_files"]["people"])
    decoder = bare.Decoder(PERSON)
    at, people = 0, []
    while at < len(message):
        person, at = decoder.decode_prefix(message, at)
        people.append(person)
    assert [type(person) for person in people] == [Customer, Employee, type(None)]


def stream_value(type_name: str, fields: dict[str, Any]) -> Any:
    """The value of a stream message as the vectors describe it: numbers as text, data as hex."""
    data = bytes.fromhex(fields.get("data_hex", ""))
    match type_name:
        case "CreateStreamRequest":
            return CreateStreamRequest(fields["stream_name"])
        case "Init":
            return Init(fields["stream_name"])
        case "PushRequest":
            return PushRequest(int(fields["request_id"]), data)
        case "PushConfirm":
            status = Status[fields["status"].upper()]
            return PushConfirm(int(fields["request_id"]), status, int(fields["index"]))
        case "PullRequest":
            return PullRequest(int(fields["request_id"]), int(fields["index"]), int(fields["limit"]))
        case "PullResponse":
            messages = [
                StreamMessage(int(message["index"]), bytes.fromhex(message["data_hex"]))
                for message in fields["messages"]
            ]
            return PullResponse(int(fields["request_id"]), messages)
    return stream_value("PushRequest" if fields["tag"] else "CreateStreamRequest", fields)


@pytest.mark.parametrize("case", STREAM["vectors"], ids=lambda case: f"{case['type']}-{case['hex'][:20]}")
def test_stream_messages_are_those_of_bare_ts(case: dict[str, Any]) -> None:
    type_, message = STREAM_TYPES[case["type"]], bytes.fromhex(case["hex"])
    value = stream_value(case["type"], case["value"])
    assert bare.encode(value, type_) == message
    assert bare.decode(message, type_) == value
