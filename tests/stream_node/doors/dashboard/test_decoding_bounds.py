"""Goal: no message can make a page decode for long, and honest messages are decoded.

Method: bombs by hand, each some hundred bytes that stand for very many values; the file format of Avro is written here.
"""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from stream_node.doors.dashboard.decoding import check_avro, decode

SYNC = b"0" * 16


def zigzag(number: int) -> bytes:
    number, out = number << 1, b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def avro_file(schema: Any, block: bytes) -> bytes:
    def text(data: bytes) -> bytes:
        return zigzag(len(data)) + data

    head = b"Obj\x01" + zigzag(1) + text(b"avro.schema") + text(json.dumps(schema).encode()) + zigzag(0) + SYNC
    return head + zigzag(1) + text(block) + SYNC


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": each} for key, each in fields.items()]}


def doubling() -> dict[str, Any]:
    schema = record("r0", a="null", b="null")
    for level in range(1, 30):
        schema = record(f"r{level}", a=schema, b=f"r{level - 1}")
    return schema


BOMBS = {
    "an array of nothing": ({"type": "array", "items": "null"}, zigzag(1 << 40) + zigzag(0)),
    "an array of empty records": ({"type": "array", "items": record("r")}, zigzag(1 << 40) + zigzag(0)),
    "a record that contains itself": (record("r", a="r"), b""),
    "a list that may be very deep": (record("r", a=["null", "r"]), zigzag(1) * 100_000 + zigzag(0)),
    "records of records of records": (doubling(), b""),
    "types in types": ({"type": "array", "items": "long"} | {"items": json.loads("[" * 60 + '"long"' + "]" * 60)}, b""),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_of_avro_are_shown_as_bytes(bomb: str) -> None:
    data = avro_file(*BOMBS[bomb])
    for view in ("auto", "avro"):
        assert decode(data, view, 256 * 1024).view in ("hex", "text"), bomb


def test_compressed_avro_is_not_decoded() -> None:
    out = io.BytesIO()
    fastavro.writer(out, record("r", a="bytes"), [{"a": bytes(10_000_000)}], codec="deflate")
    assert len(out.getvalue()) < 20_000
    found = decode(out.getvalue(), "avro", 256 * 1024)
    assert (found.view, found.note) == ("hex", "this is not avro: it is compressed (deflate)")


def test_honest_avro_is_decoded() -> None:
    """A wide record with options, arrays, maps, and a named type that is used twice."""
    schema = record(
        "order",
        **{f"f{n}": ["null", "long"] for n in range(60)},
        lines={"type": "array", "items": ["null", record("line", sku="string", count="int")]},
        tags={"type": "map", "values": "string"},
        first=["null", "line"],
        state={"type": "enum", "name": "state", "symbols": ["NEW", "OLD"]},
        when={"type": "long", "logicalType": "timestamp-millis"},
    )
    row = {f"f{n}": n for n in range(60)} | {"lines": [{"sku": "a", "count": 1}], "tags": {"k": "v"}}
    out = io.BytesIO()
    fastavro.writer(out, schema, [row | {"first": None, "state": "NEW", "when": 0}])
    found = decode(out.getvalue(), "auto", 256 * 1024)
    assert (found.view, '"sku": "a"' in found.text) == ("avro", True)


def test_names_with_and_without_a_namespace_are_one_type() -> None:
    inner = record("inner", a="long") | {"namespace": "com.shop"}
    out = io.BytesIO()
    fastavro.writer(out, record("outer", a=inner, b="com.shop.inner"), [{"a": {"a": 1}, "b": {"a": 2}}])
    assert decode(out.getvalue(), "auto", 256 * 1024).view == "avro"


def laughs(levels: int) -> bytes:
    """Shared values (tags 28 and 29), each an array of the one before twice."""
    out = b"\x98" + bytes([levels + 1]) + b"\xd8\x1c\x80"
    for level in range(levels):
        number = bytes([level]) if level < 24 else bytes([0x18, level])
        out += b"\xd8\x1c\x82" + 2 * (b"\xd8\x1d" + number)
    return out


@pytest.mark.parametrize(
    "data",
    [
        laughs(40),
        b"\xc4\x82\x1b" + b"\x7f" * 8 + b"\x01",
        b"\x81" * 100_000,
        b"\x9f" * 1_000,
        b"\x9b" + b"\xff" * 8 + b"\x00",
        b"\x5b" + b"\xff" * 8,
        b"\x81\xff",
        b"\x1c",
        b"",
    ],
)
def test_bombs_of_cbor_are_refused(data: bytes) -> None:
    pytest.importorskip("cbor2", reason="the extra `spark` is not installed")
    found = decode(data, "cbor", 256 * 1024)
    assert found.view == "hex"
    assert found.note.startswith("this is not cbor: ")


@pytest.mark.parametrize(
    "data",
    ["00", "f6", "f97e00", "a26161016162820203", "9f0102ff", "bf6161f5ff", "7f6161ff", "c11a514b67b0", "d9d9f78101"],
)
def test_honest_cbor_is_let_through(data: str) -> None:
    pytest.importorskip("cbor2", reason="the extra `spark` is not installed")
    assert decode(bytes.fromhex(data), "cbor", 256 * 1024).view == "cbor"


def test_what_is_no_type_is_refused() -> None:
    for schema in (5, None, "unknown", {"type": None}):
        with pytest.raises(ValueError, match="type"):
            check_avro("null", schema)
