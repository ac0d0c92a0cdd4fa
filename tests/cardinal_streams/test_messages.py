"""Keys and values of the messages: the layouts, and what is refused."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal_streams.errors import (
    MalformedMessage,
    MessageError,
    OutOfRange,
    OversizedMessage,
    PayloadOutOfRange,
    PrefixConflict,
    TrailingBytes,
    TruncatedMessage,
    UnknownPrefixByte,
)
from cardinal_streams.limits import COUNT_MAX, NUMBER_ON_WIRE_MAX, U64_MAX, WEIGHT_MAX, MessageLimits
from cardinal_streams.message.messages import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Message,
    Ping,
    Record,
    Reorg,
    ReorgComplete,
    SubBatchHeader,
    SubBatchMsg,
    decode,
    encode,
)
from tests.cardinal_streams.helpers import hash_of, vectors
from tests.cardinal_streams.test_avro import BATCH_SCHEMA, written_by_fastavro

H, ID = hash_of("block"), hash_of("id")
HEX, ID_HEX = H.hex(), ID.hex()

HASHES = st.binary(min_size=32, max_size=32)
IDS = HASHES.filter(any)
KEYS = st.text(min_size=1, max_size=30) | st.binary(min_size=1, max_size=30).map(os.fsdecode)
NUMBERS = st.integers(0, NUMBER_ON_WIRE_MAX)
COUNTS = st.integers(0, COUNT_MAX)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    parts: tuple[dict[str, Any], ...] = ({}, {}, {}, {})
    for name in draw(st.sets(KEYS, max_size=12)):
        part = draw(st.integers(0, 3))
        contents = (st.binary(max_size=30), st.just(True), st.integers(1, COUNT_MAX), IDS)[part]
        parts[part][name] = draw(contents)
    values, deletes, counts, sub_batches = parts
    return Batch(
        draw(HASHES),
        draw(NUMBERS),
        draw(HASHES),
        draw(st.integers(0, WEIGHT_MAX)),
        values,
        frozenset(deletes),
        counts,
        sub_batches,
    )


MESSAGES: st.SearchStrategy[Message] = st.one_of(
    batches(),
    st.builds(SubBatchHeader, HASHES, IDS, COUNTS),
    st.builds(
        SubBatchMsg,
        HASHES,
        IDS,
        COUNTS,
        st.lists(KEYS, max_size=5).map(tuple),
        st.dictionaries(KEYS, st.binary(max_size=30), max_size=5),
    ),
    st.builds(BatchMsg, HASHES, KEYS, st.binary(max_size=100)),
    st.builds(BatchDeleteMsg, HASHES, KEYS),
    st.builds(Reorg, HASHES, NUMBERS),
    st.builds(ReorgComplete, HASHES, NUMBERS),
    st.builds(Ping, HASHES, st.binary(max_size=20)),
)


@pytest.mark.parametrize(
    ("message", "key", "value"),
    [
        (Batch(H, 0, bytes(32), 0), "00" + HEX, "0000" + "00" * 32 + "00"),
        (
            Batch(H, 1, ID, 0xFF, counts={"a/": 1}),
            "00" + HEX,
            "0202ff" + ID_HEX + "014c04612f000200" + "00" * 32 + "00",
        ),
        (SubBatchHeader(H, ID, 0), "01" + HEX + ID_HEX, "00"),
        (SubBatchHeader(H, ID, 70), "01" + HEX + ID_HEX, "8c01"),
        (SubBatchMsg(H, ID, 64, ("b/s/4",), {}), "02" + HEX + ID_HEX + "8001", "010c0a622f732f340000"),
        (SubBatchMsg(H, ID, 63, (), {"b/s/5": b"\xab\xcd"}), "02" + HEX + ID_HEX + "7e", "0001120a622f732f3504abcd00"),
        (BatchMsg(H, "a/b", b"\x88"), "03" + HEX + "612f62", "88"),
        (BatchMsg(H, "a/\u00e9", b""), "03" + HEX + "612fc3a9", ""),
        (BatchMsg(H, "a/\udcff\udc80", b""), "03" + HEX + "612fff80", ""),
        (BatchDeleteMsg(H, "b/c"), "04" + HEX + "622f63", ""),
        (Reorg(H, 1234567), "05" + HEX, "8eda9601"),
        (ReorgComplete(H, 1234570), "06" + HEX, "94da9601"),
        (Ping(H, b"now"), "ff" + HEX, "6e6f77"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_layouts(message: Message, key: str, value: str) -> None:
    assert encode(message) == Record(bytes.fromhex(key), bytes.fromhex(value))
    assert decode(bytes.fromhex(key), bytes.fromhex(value)) == message


@given(MESSAGES)
def test_what_is_written_is_read_again(message: Message) -> None:
    assert decode(*encode(message)) == message


@given(MESSAGES)
def test_equal_messages_have_equal_bytes(message: Message) -> None:
    again = decode(*encode(message))
    assert encode(again) == encode(message)


@given(st.binary(max_size=120), st.binary(max_size=120))
def test_any_bytes_are_a_message_or_a_message_error(key: bytes, value: bytes) -> None:
    try:
        message = decode(key, value)
    except MessageError:
        return
    assert encode(message).key == key


@given(MESSAGES, st.data())
def test_no_cut_key_is_the_same_message(message: Message, data: st.DataObject) -> None:
    key, value = encode(message)
    try:
        found = decode(key[: data.draw(st.integers(0, len(key) - 1))], value)
    except MessageError:
        return
    assert found != message


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("", "", TruncatedMessage),
        ("00", "", TruncatedMessage),
        ("00" + HEX[:-2], "", TruncatedMessage),
        ("00" + HEX + "00", "00" * 35, TrailingBytes),
        ("00" + HEX, "", TruncatedMessage),
        ("01" + HEX, "00", TruncatedMessage),
        ("01" + HEX + ID_HEX[:-2], "00", TruncatedMessage),
        ("01" + HEX + ID_HEX + "00", "00", TrailingBytes),
        ("01" + HEX + ID_HEX, "", TruncatedMessage),
        ("01" + HEX + "00" * 32, "00", MalformedMessage),
        ("02" + HEX + "00" * 32 + "00", "0000", MalformedMessage),
        ("01" + HEX + ID_HEX, "0000", TrailingBytes),
        ("01" + HEX + ID_HEX, "01", OutOfRange),
        ("01" + HEX + ID_HEX, "8080808010", OutOfRange),
        ("02" + HEX + ID_HEX, "0000", TruncatedMessage),
        ("02" + HEX + ID_HEX[:-2], "0000", TruncatedMessage),
        ("02" + HEX + ID_HEX + "80", "0000", TruncatedMessage),
        ("02" + HEX + ID_HEX + "8000", "0000", MalformedMessage),
        ("02" + HEX + ID_HEX + "0000", "0000", TrailingBytes),
        ("02" + HEX + ID_HEX + "01", "0000", OutOfRange),
        ("02" + HEX + ID_HEX + "8080808010", "0000", OutOfRange),
        ("02" + HEX + ID_HEX + "00", "00", TruncatedMessage),
        ("03" + HEX, "00", TruncatedMessage),
        ("03" + HEX[:-2], "00", TruncatedMessage),
        ("04" + HEX, "", TruncatedMessage),
        ("04" + HEX + "61", "00", TrailingBytes),
        ("05" + HEX, "01", OutOfRange),
        ("05" + HEX, "", TruncatedMessage),
        ("05" + HEX + "00", "00", TrailingBytes),
        ("06" + HEX, "0000", TrailingBytes),
        ("06" + HEX[:-2], "00", TruncatedMessage),
        ("07" + HEX, "00", UnknownPrefixByte),
        ("fd" + HEX, "00", UnknownPrefixByte),
        ("ff", "00", TruncatedMessage),
    ],
)
def test_wrong_keys_and_values(key: str, value: str, error: type[MessageError]) -> None:
    with pytest.raises(error):
        decode(bytes.fromhex(key), bytes.fromhex(value))


def batch_value(number: int = 1, weight: bytes = b"\1", updates: dict[str, dict[str, Any]] | None = None) -> bytes:
    unset = {"value": b"", "count": 0, "delete": False, "subbatch": bytes(32)}
    entries = {name: unset | entry for name, entry in (updates or {}).items()}
    return written_by_fastavro(BATCH_SCHEMA, {"num": number, "weight": weight, "parent": bytes(32), "updates": entries})


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (batch_value(number=-1), OutOfRange),
        (batch_value(number=-5), OutOfRange),
        (batch_value(weight=b"\1" + bytes(32)), OutOfRange),
        (batch_value(weight=bytes(33)), OutOfRange),
        (batch_value(updates={"a/": {"count": -1}}), OutOfRange),
        (batch_value(updates={"a/": {"count": 1, "delete": True}}), MalformedMessage),
        (batch_value(updates={"a/": {"value": b"x", "delete": True}}), MalformedMessage),
        (batch_value(updates={"a/": {"value": b"x", "subbatch": ID}}), MalformedMessage),
        (batch_value(updates={"a/": {"count": 1, "subbatch": ID}}), MalformedMessage),
    ],
)
def test_a_batch_out_of_range_or_of_two_minds(value: bytes, error: type[MessageError]) -> None:
    with pytest.raises(error):
        decode(b"\0" + H, value)


def test_the_greatest_numbers() -> None:
    batch = Batch(H, NUMBER_ON_WIRE_MAX, ID, WEIGHT_MAX, counts={"a/": COUNT_MAX})
    assert decode(*encode(batch)) == batch
    assert encode(batch).value[9:11] == b"\x01\x40"


def test_a_weight_may_have_leading_zeros() -> None:
    message = decode(b"\0" + H, batch_value(weight=b"\x05".rjust(32, b"\0")))
    assert isinstance(message, Batch)
    assert message.weight == 5


def test_an_entry_where_nothing_is_set_is_an_empty_value() -> None:
    message = decode(b"\0" + H, batch_value(updates={"x/1": {}}))
    assert isinstance(message, Batch)
    assert message.values == {"x/1": b""}


@pytest.mark.parametrize(
    "message",
    [
        Batch(H, -1, ID, 0),
        Batch(H, NUMBER_ON_WIRE_MAX + 1, ID, 0),
        Batch(H, U64_MAX, ID, 0),
        Batch(H, U64_MAX + 1, ID, 0),
        Batch(H, 0, ID, -1),
        Batch(H, 0, ID, WEIGHT_MAX + 1),
        Batch(H[:-1], 0, ID, 0),
        Batch(H, 0, ID + b"\0", 0),
        Batch(H, 0, ID, 0, counts={"a/": 0}),
        Batch(H, 0, ID, 0, counts={"a/": -1}),
        Batch(H, 0, ID, 0, counts={"a/": COUNT_MAX + 1}),
        Batch(H, 0, ID, 0, values={"": b""}),
        Batch(H, 0, ID, 0, values={"\ud800": b""}),
        Batch(H, 0, ID, 0, sub_batches={"a": bytes(32)}),
        Batch(H, 0, ID, 0, sub_batches={"a": b"short"}),
        SubBatchHeader(H, ID, -1),
        SubBatchHeader(H, ID, COUNT_MAX + 1),
        SubBatchHeader(H, bytes(32), 1),
        SubBatchMsg(H, ID, -1),
        SubBatchMsg(H, ID, COUNT_MAX + 1),
        SubBatchMsg(H, ID, 0, ("",)),
        BatchMsg(H, "", b""),
        BatchDeleteMsg(H, ""),
        Reorg(H, -1),
        Reorg(H, NUMBER_ON_WIRE_MAX + 1),
        ReorgComplete(b"", 0),
        Ping(b"", b""),
    ],
    ids=str,
)
def test_what_cannot_be_written(message: Message) -> None:
    with pytest.raises(PayloadOutOfRange):
        encode(message)


def test_a_name_in_two_parts_of_a_batch_cannot_be_written() -> None:
    with pytest.raises(PrefixConflict):
        encode(Batch(H, 0, ID, 0, values={"a": b"1"}, deletes=frozenset({"a"})))


def test_sizes_are_limited() -> None:
    limits = MessageLimits(key_bytes_max=40, value_bytes_max=10)
    assert decode(b"\x03" + H + b"1234567", b"0123456789", limits) == BatchMsg(H, "1234567", b"0123456789")
    with pytest.raises(OversizedMessage):
        decode(b"\x03" + H + b"12345678", b"", limits)
    with pytest.raises(OversizedMessage):
        decode(b"\x03" + H + b"1", b"01234567890", limits)


def test_real_reorg_numbers_beyond_32_bits_are_another_number_and_ours_are_not() -> None:
    """The real producer writes 4294967301 as 5 (facts, key byte layouts); ours is an Avro long."""
    case = next(c for c in vectors("producer_messages.json")["cases"] if c["name"].startswith("reorg_number_over"))
    real = decode(bytes.fromhex(case["message"]["key"]), bytes.fromhex(case["message"]["value"]))
    assert real == Reorg(bytes.fromhex(case["hash"]), 5)
    ours = Reorg(bytes.fromhex(case["hash"]), case["number"])
    assert decode(*encode(ours)) == ours
