"""The Avro values: against fastavro, an independent implementation, in both directions; and byte by byte for errors."""

from __future__ import annotations

import io
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from cardinal_streams.errors import MalformedMessage, MessageError, OutOfRange, TrailingBytes, TruncatedMessage
from cardinal_streams.limits import COUNT_MAX, NUMBER_ON_WIRE_MAX, WEIGHT_MAX
from cardinal_streams.message import avro
from cardinal_streams.message.messages import Batch, SubBatchMsg, decode, encode
from tests.cardinal_streams.helpers import hash_of, vectors

INTS = [case for case in vectors("avro_int.json")["vectors"] if -(1 << 31) <= case["int"] < 1 << 31]
H, ID = hash_of("block"), hash_of("id")
HASHES = st.binary(min_size=32, max_size=32)
NAMES = st.text(min_size=1, max_size=20)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    names = draw(st.lists(NAMES, max_size=12, unique=True))
    parts = [draw(st.integers(0, 3)) for _ in names]
    values, deletes, counts, ids = (
        [name for name, part in zip(names, parts, strict=True) if part == n] for n in range(4)
    )
    return Batch(
        hash=H,
        number=draw(st.integers(0, NUMBER_ON_WIRE_MAX)),
        parent=draw(HASHES),
        weight=draw(st.integers(0, WEIGHT_MAX)),
        values={name: draw(st.binary(max_size=200)) for name in values},
        deletes=frozenset(deletes),
        counts={name: draw(st.integers(1, COUNT_MAX)) for name in counts},
        sub_batches={name: draw(HASHES.filter(any)) for name in ids},
    )


ITEMS = st.builds(
    SubBatchMsg,
    st.just(H),
    st.just(ID),
    st.just(0),
    st.lists(st.text(min_size=1, max_size=20), max_size=12).map(tuple),
    st.dictionaries(NAMES, st.binary(max_size=80), max_size=12),
)
BATCH_SCHEMA = parse_schema(
    {
        "type": "record",
        "name": "batch",
        "avro.codec": "snappy",
        "namespace": "cloud.rivet.cardinal",
        "fields": [
            {"name": "num", "type": "long"},
            {"name": "weight", "type": "bytes"},
            {"name": "parent", "type": {"name": "par", "type": "fixed", "size": 32}},
            {
                "name": "updates",
                "type": {
                    "name": "upd",
                    "type": "map",
                    "values": {
                        "type": "record",
                        "name": "update",
                        "fields": [
                            {"name": "value", "type": "bytes"},
                            {"name": "count", "type": "int"},
                            {"name": "delete", "type": "boolean"},
                            {"name": "subbatch", "type": {"name": "subb", "type": "fixed", "size": 32}},
                        ],
                    },
                },
            },
        ],
    }
)
SUB_BATCH_SCHEMA = parse_schema(
    {
        "type": "record",
        "name": "update",
        "fields": [
            {"name": "delete", "type": {"name": "del", "type": "array", "items": "string"}},
            {"name": "updates", "type": {"name": "upd", "type": "map", "values": "bytes"}},
        ],
    }
)
ZEROS = bytes(32)
# num 3, weight 3, parent, one map block of size 43: "b/s" with sub batch …05.
BATCH = bytes.fromhex("060203" + "00" * 31 + "03" + "014e" + "06622f73" + "000000" + "00" * 31 + "05" + "00")


def read_batch(raw: bytes) -> Batch:
    message = decode(b"\x00" + H, raw)
    assert isinstance(message, Batch)
    return message


def read_item(raw: bytes) -> SubBatchMsg:
    message = decode(b"\x02" + H + ID + b"\x00", raw)
    assert isinstance(message, SubBatchMsg)
    return message


def written_by_fastavro(schema: Any, record: Any) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, schema, record)
    return out.getvalue()


@pytest.mark.parametrize("case", INTS, ids=lambda case: str(case["int"]))
def test_ints_are_those_of_the_real_producer(case: dict[str, Any]) -> None:
    raw = bytes.fromhex(case["hex"])
    assert avro.encode_varint(case["int"]) == raw
    assert avro.decode_varint(raw) == case["int"]


@pytest.mark.parametrize("number", [0, -1, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63)])
def test_the_ends_of_the_ranges_come_back(number: int) -> None:
    assert avro.decode_varint(avro.encode_varint(number)) == number


def record_of(batch: Batch) -> dict[str, Any]:
    unset = {"value": b"", "count": 0, "delete": False, "subbatch": ZEROS}
    updates = {name: unset | {"value": value} for name, value in batch.values.items()}
    updates |= {name: unset | {"delete": True} for name in batch.deletes}
    updates |= {name: unset | {"count": count} for name, count in batch.counts.items()}
    updates |= {name: unset | {"subbatch": id_} for name, id_ in batch.sub_batches.items()}
    weight = batch.weight.to_bytes((batch.weight.bit_length() + 7) // 8, "big")
    return {"num": batch.number, "weight": weight, "parent": batch.parent, "updates": updates}


@given(batches())
def test_fastavro_and_we_read_each_others_batches(batch: Batch) -> None:
    ours, record = encode(batch).value, record_of(batch)
    assert schemaless_reader(io.BytesIO(ours), BATCH_SCHEMA, None) == record
    assert read_batch(ours) == batch
    assert read_batch(written_by_fastavro(BATCH_SCHEMA, record)) == batch


@given(ITEMS)
def test_fastavro_and_we_read_each_others_sub_batches(item: SubBatchMsg) -> None:
    ours, record = encode(item).value, {"delete": list(item.deletes), "updates": item.updates}
    assert schemaless_reader(io.BytesIO(ours), SUB_BATCH_SCHEMA, None) == record
    assert read_item(ours) == item
    assert read_item(written_by_fastavro(SUB_BATCH_SCHEMA, record)) == item


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 200, 250])
def test_blocks_have_at_most_a_hundred_items(count: int) -> None:
    updates = {f"k{index:03d}": b"v" for index in range(count)}
    item = SubBatchMsg(H, ID, 0, tuple(updates), updates)
    raw = encode(item).value
    deletes = [(-min(100, count - start), 5 * min(100, count - start)) for start in range(0, count, 100)]
    cursor = avro.AvroCursor(raw)
    for items, size in deletes:
        assert (cursor.read_varint(), cursor.read_varint()) == (items, size)
        cursor.read_exactly(size, "a block")
    assert cursor.read_varint() == 0
    assert read_item(raw) == item


def test_every_cut_of_a_batch_is_truncated() -> None:
    assert read_batch(BATCH).sub_batches.keys() == {"b/s"}
    for size in range(len(BATCH)):
        with pytest.raises(TruncatedMessage):
            read_batch(BATCH[:size])


def test_every_cut_of_a_sub_batch_is_truncated() -> None:
    raw = bytes.fromhex("010c0a622f732f34" + "00" + "01120a622f732f3504abcd" + "00")
    assert read_item(raw) == SubBatchMsg(H, ID, 0, ("b/s/4",), {"b/s/5": b"\xab\xcd"})
    for size in range(len(raw)):
        with pytest.raises(TruncatedMessage):
            read_item(raw[:size])


@pytest.mark.parametrize(
    ("what", "raw", "error", "offset"),
    [
        ("trailing", BATCH + b"\0", TrailingBytes, len(BATCH)),
        ("overlong varint", b"\x86\x00" + BATCH[1:], MalformedMessage, 0),
        ("varint above 64 bits", b"\xff" * 9 + b"\x02" + BATCH[1:], MalformedMessage, 0),
        ("varint of eleven bytes", b"\xff" * 10 + b"\x01" + BATCH[1:], MalformedMessage, 0),
        ("negative weight length", b"\x06\x01" + BATCH[2:], MalformedMessage, 1),
        ("weight longer than the value", b"\x06\xfe\xff\xff\xff\x0f" + BATCH[2:], TruncatedMessage, 6),
        ("block size too small", BATCH.replace(b"\x01\x4e", b"\x01\x4c"), MalformedMessage, len(BATCH) - 1),
        ("block size too large", BATCH.replace(b"\x01\x4e", b"\x01\x50"), MalformedMessage, len(BATCH) - 1),
        ("block size negative", BATCH.replace(b"\x01\x4e", b"\x01\x4d"), MalformedMessage, 35),
        ("more items than bytes", BATCH.replace(b"\x01\x4e", b"\xfe\xff\xff\xff\x0f"), MessageError, None),
        ("boolean 02", BATCH[:43] + b"\x02" + BATCH[44:], MalformedMessage, 43),
        ("no entry where one is announced", BATCH[:35] + b"\x02", TruncatedMessage, 36),
    ],
)
def test_what_is_wrong_and_where(what: str, raw: bytes, error: type[MessageError], offset: int | None) -> None:
    with pytest.raises(error) as caught:
        read_batch(raw)
    assert caught.value.part == "value"
    assert offset is None or caught.value.offset == offset


def test_a_repeated_map_key_is_refused() -> None:
    entry = b"\x02k" + b"\x02v"
    with pytest.raises(MalformedMessage, match="repeated"):
        read_item(b"\x00" + b"\x03\x10" + entry + entry + b"\x00")


def test_a_count_above_32_bits_is_refused() -> None:
    entry = b"\x04a/" + b"\x00" + avro.encode_varint(1 << 31) + b"\x00" + ZEROS
    raw = b"\x00\x00" + ZEROS + b"\x02" + entry + b"\x00"
    with pytest.raises(OutOfRange):
        read_batch(raw)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_a_message_error(raw: bytes) -> None:
    for read in (read_batch, read_item, avro.decode_varint):
        offset = 0
        try:
            read(raw)
        except MessageError as error:
            offset = error.offset
        assert 0 <= offset <= len(raw)


@given(batches(), st.data())
def test_a_changed_byte_is_another_batch_or_a_message_error(batch: Batch, data: st.DataObject) -> None:
    raw = bytearray(encode(batch).value)
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        found = read_batch(bytes(raw))
    except MessageError:
        return
    assert found != batch
